# class: EncoderBlock
# kwargs: {"d_model": 20, "nhead": 4}
# may_warn: fully_masked
# probe: m(x, ~keep)
import torch.nn as nn


class EncoderBlock(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward=40, dropout=0.1):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            d_model, nhead, dim_feedforward, dropout, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, src, src_key_padding_mask=None):
        return self.layer(src, src_key_padding_mask=src_key_padding_mask)
