# case: MS-01
# class: MaskedSelfAttention
# kwargs: {"embed_dim": 24, "num_heads": 3}
# expect: padding, batch_independence
# fix: attn_mask = attn_mask.repeat_interleave(self.num_heads, dim=0)
import torch
import torch.nn as nn


class MaskedSelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, padding_mask=None):
        """padding_mask: (B, S) bool, True where the token is padding."""
        attn_mask = None
        if padding_mask is not None:
            B, S = padding_mask.shape
            attn_mask = padding_mask[:, None, :].expand(B, S, S)
            attn_mask = attn_mask.repeat(self.num_heads, 1, 1)  # wrong
        out, weights = self.attn(x, x, x, attn_mask=attn_mask, average_attn_weights=False)
        return out, weights
