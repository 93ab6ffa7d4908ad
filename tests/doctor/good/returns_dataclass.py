# class: Attention
# kwargs: {"dim": 24, "n_head": 3}
# may_warn: half_precision
# probe: m(x, mask=keep).output
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class AttentionOutput:
    output: torch.Tensor
    weights: torch.Tensor | None = None


class Attention(nn.Module):
    def __init__(self, dim, n_head):
        super().__init__()
        self.n_head, self.hd = n_head, dim // n_head
        self.wq = nn.Linear(dim, dim)
        self.wk = nn.Linear(dim, dim)
        self.wv = nn.Linear(dim, dim)
        self.wo = nn.Linear(dim, dim)

    def forward(self, x, mask=None, return_weights=False) -> AttentionOutput:
        """mask is a bool tensor (B, S): True = keep, False = padding."""
        B, S, _ = x.shape
        q = self.wq(x).view(B, S, self.n_head, self.hd)
        k = self.wk(x).view(B, S, self.n_head, self.hd)
        v = self.wv(x).view(B, S, self.n_head, self.hd)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.hd ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask.logical_not()[:, None, None, :], torch.finfo(scores.dtype).min)
        w = scores.softmax(-1)
        y = torch.einsum("bhqk,bkhd->bqhd", w, v).flatten(2)
        return AttentionOutput(self.wo(y), w if return_weights else None)
