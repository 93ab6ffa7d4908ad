# case: own
# class: EncoderLayer
# kwargs: {"d_model": 24, "nhead": 3}
# expect: padding
# where: any
# fix: h = self.self_attn(x, x, x, key_padding_mask=src_key_padding_mask, need_weights=False)[0]
import torch.nn as nn


class EncoderLayer(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x, src_key_padding_mask=None):
        """src_key_padding_mask: (B, S), True = padding"""
        h = self.self_attn(x, x, x, need_weights=False)[0]  # wrong
        return self.norm(x + h)
