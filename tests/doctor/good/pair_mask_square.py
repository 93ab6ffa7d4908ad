# class: Attention
# kwargs: {"d_model": 28, "nhead": 4}
# may_warn: half_precision
# probe: m(x, keep[:, None, :].expand(-1, x.shape[1], -1))
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.d_head = d_model // nhead
        self.nhead = nhead
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        """mask: (L, L) or (B, L, L), nonzero where position i may look at position j."""
        B, L, D = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q.view(B, L, self.nhead, self.d_head).permute(0, 2, 1, 3)
        k = k.view(B, L, self.nhead, self.d_head).permute(0, 2, 3, 1)
        v = v.view(B, L, self.nhead, self.d_head).permute(0, 2, 1, 3)
        scores = q @ k / self.d_head ** 0.5
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)
            scores = torch.where(mask.bool(), scores, torch.finfo(scores.dtype).min)
        out = scores.softmax(dim=-1) @ v
        return self.out_proj(out.permute(0, 2, 1, 3).reshape(B, L, D))
