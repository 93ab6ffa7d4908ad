# class: SelfAttentionLayer
# kwargs: {"hidden_dim": 26, "n_heads": 2}
# may_warn: fully_masked
# probe: m(x, ~keep)
import torch.nn as nn


class SelfAttentionLayer(nn.Module):
    def __init__(self, hidden_dim, n_heads, dropout=0.1):
        super().__init__()
        self.attn = nn.MultiheadAttention(hidden_dim, n_heads, dropout=dropout, batch_first=True)

    def forward(self, x, padding_mask=None):
        """padding_mask: (batch, seq), True at padding."""
        out, _ = self.attn(x, x, x, key_padding_mask=padding_mask, need_weights=False)
        return out
