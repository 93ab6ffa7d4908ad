# class: DecoderSelfAttention
# kwargs: {"d_model": 24, "nhead": 4}
# options: causal=true
# by_design: permutation
# may_warn: fully_masked
# causal: true
# probe: m(x)
import torch.nn as nn


class DecoderSelfAttention(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)

    def forward(self, tgt, tgt_key_padding_mask=None):
        """tgt_key_padding_mask: bool, True for padding"""
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device).to(tgt.dtype)
        return self.attn(tgt, tgt, tgt, key_padding_mask=tgt_key_padding_mask, attn_mask=causal)[0]
