# case: own
# class: MultiHeadSelfAttention
# kwargs: {"hidden_size": 96, "num_attention_heads": 3}
# expect: scale
# fix: self.scale = self.head_dim ** 0.5
import torch
from torch import nn


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.scale = self.num_heads ** 0.5  # wrong
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        b, s, e = x.shape
        q = self.query(x).view(b, s, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.key(x).view(b, s, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.value(x).view(b, s, self.num_heads, self.head_dim).transpose(1, 2)
        attn = torch.softmax(q / self.scale @ k.transpose(-1, -2), dim=-1)  # wrong: scale from num_heads
        return (attn @ v).transpose(1, 2).reshape(b, s, e)
