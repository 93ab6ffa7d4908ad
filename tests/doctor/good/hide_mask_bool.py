# class: MHA
# kwargs: {"dim": 21, "heads": 3}
# may_warn: half_precision
# probe: m(x, hide_mask=~keep)
import torch
from torch import nn, Tensor


class MHA(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.proj_q = nn.Linear(dim, dim)
        self.proj_k = nn.Linear(dim, dim)
        self.proj_v = nn.Linear(dim, dim)
        self.proj_o = nn.Linear(dim, dim)

    def forward(self, x: Tensor, hide_mask: Tensor | None = None) -> Tensor:
        """
        x: (batch, tokens, dim)
        hide_mask: (batch, tokens) bool, True where a token must not be attended to
        """
        b, t, d = x.shape
        q, k, v = [p(x).unflatten(-1, (self.heads, d // self.heads)).transpose(1, 2)
                   for p in (self.proj_q, self.proj_k, self.proj_v)]
        score = torch.einsum("bhqd,bhkd->bhqk", q, k) / (d // self.heads) ** 0.5
        if hide_mask is not None:
            score = score.masked_fill(hide_mask[:, None, None], -3e38 if score.dtype == torch.float32 else -6e4)
        weight = score.softmax(-1)
        return self.proj_o(torch.einsum("bhqk,bhkd->bhqd", weight, v).transpose(1, 2).flatten(2))
