# class: TransformerSelfAttention
# kwargs: {"d_model": 22, "nhead": 2}
# layout: sbe
# options: batch_first=false
# may_warn: fully_masked
# probe: m(x.transpose(0, 1), ~keep).transpose(0, 1)
from torch import nn


class TransformerSelfAttention(nn.Module):
    """DETR style: tensors are (sequence, batch, channels) throughout."""

    def __init__(self, d_model, nhead, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, src_key_padding_mask=None):
        src2 = self.self_attn(src, src, value=src, key_padding_mask=src_key_padding_mask)[0]
        return self.norm(src + self.dropout(src2))
