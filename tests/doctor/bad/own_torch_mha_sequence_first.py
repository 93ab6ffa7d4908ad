# case: own
# class: ViTBlockAttention
# kwargs: {"dim": 24, "heads": 3}
# expect: batch_independence, reach
# fix: self.attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
import torch.nn as nn


class ViTBlockAttention(nn.Module):
    def __init__(self, dim, heads, dropout=0.1):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, dropout=dropout)  # wrong

    def forward(self, x):
        # x: (batch, patches, dim)
        b, n, d = x.shape
        h = self.norm(x)
        return self.attn(h, h, h, need_weights=False)[0]  # wrong: batch first
