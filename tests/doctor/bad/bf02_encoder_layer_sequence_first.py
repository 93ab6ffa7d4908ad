# case: BF-02
# class: Encoder
# kwargs: {"d_model": 20, "nhead": 2}
# expect: batch_independence, reach
# fix: self.layer = nn.TransformerEncoderLayer(d_model, nhead, 40, dropout=0.0, batch_first=True)
import torch.nn as nn


class Encoder(nn.Module):
    """x: (batch, seq, d_model)"""

    def __init__(self, d_model, nhead):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 40, dropout=0.0)  # wrong

    def forward(self, x):
        return self.layer(x)  # wrong: batch first
