# case: own
# class: Encoder
# kwargs: {"hidden_size": 24, "num_heads": 2}
# expect: padding
# where: any
# fix: out, _ = self.attention(x, x, x, key_padding_mask=~attention_mask.bool() if attention_mask is not None else None)
from torch import nn


class Encoder(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(hidden_size, num_heads, batch_first=True)

    def forward(self, x, attention_mask=None):
        """attention_mask: (batch, seq) from the tokenizer, 1 for tokens, 0 for padding."""
        out, _ = self.attention(x, x, x, key_padding_mask=attention_mask.bool() if attention_mask is not None else None)  # wrong
        return out
