# case: MS-05
# class: SelfAttention
# kwargs: {"embed_dim": 20, "num_heads": 4}
# expect: padding, causality
# where: any
# fix: mask = mask.repeat_interleave(self.mha.num_heads, dim=0)
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, mask=None):
        """mask: (B, S) bool, True marks padding."""
        if mask is not None:
            mask = mask.unsqueeze(1).repeat(1, x.size(1), 1)
            mask = mask.contiguous()  # wrong
        return self.mha(x, x, x, attn_mask=mask, need_weights=False)[0]
