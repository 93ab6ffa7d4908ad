# case: CA-04
# class: CausalAttention
# kwargs: {"d_model": 24, "nhead": 2}
# expect: causality, reach
# fix: return self.mha(x, x, x, attn_mask=nn.Transformer.generate_square_subsequent_mask(x.size(1)).to(x.dtype), is_causal=True, need_weights=False)[0]
import torch.nn as nn


class CausalAttention(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.mha = nn.MultiheadAttention(d_model, nhead, batch_first=True)

    def forward(self, x):
        return self.mha(x, x, x, is_causal=True, need_weights=False)[0]  # wrong
