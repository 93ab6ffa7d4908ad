# case: MS-03
# class: ResidualAttentionBlock
# kwargs: {"d_model": 24, "n_head": 2}
# options: causal=true
# expect: reach, batch_independence
# fix: self.attn = nn.MultiheadAttention(d_model, n_head, batch_first=True)
import torch
from torch import nn


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_head)  # wrong
        self.ln_1 = nn.LayerNorm(d_model)

    def forward(self, x):
        # x: (batch, context_length, width)
        L = x.shape[1]
        mask = torch.full((L, L), float("-inf"), device=x.device, dtype=x.dtype).triu_(1)
        y = self.ln_1(x)
        return x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]  # wrong: batch first
