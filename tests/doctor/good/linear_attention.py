# class: LinearAttention
# kwargs: {"d_model": 24, "n_heads": 4}
# probe: m(x, x, x, keep)
import torch
import torch.nn as nn
import torch.nn.functional as F


class LinearAttention(nn.Module):
    """Transformers are RNNs (Katharopoulos et al., 2020), the bidirectional form."""

    def __init__(self, d_model, n_heads, eps=1e-6):
        super().__init__()
        self.n_heads, self.eps = n_heads, eps
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def forward(self, queries, keys, values, key_mask=None):
        """key_mask: (N, S), True or 1 for keys that may be attended."""
        N, L, _ = queries.shape
        _, S, _ = keys.shape
        H = self.n_heads
        Q = F.elu(self.query_projection(queries).view(N, L, H, -1)) + 1
        K = F.elu(self.key_projection(keys).view(N, S, H, -1)) + 1
        V = self.value_projection(values).view(N, S, H, -1)
        if key_mask is not None:
            K = K * key_mask[:, :, None, None].to(K.dtype)
        KV = torch.einsum("nshd,nshm->nhmd", K, V)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)
        out = torch.einsum("nlhd,nhmd,nlh->nlhm", Q, KV, Z)
        return self.out_projection(out.reshape(N, L, -1))
