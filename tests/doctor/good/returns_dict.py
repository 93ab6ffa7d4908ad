# class: Attention
# kwargs: {"hidden": 20, "heads": 5}
# probe: m(x)["hidden_states"]
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden, heads, drop=0.0):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, hidden * 3)
        self.out = nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(drop)

    def forward(self, hidden_states):
        b, s, e = hidden_states.shape
        q, k, v = self.qkv(hidden_states).reshape(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        probs = torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2), dim=-1)
        ctx = (self.drop(probs) @ v).transpose(1, 2).reshape(b, s, e)
        return {"hidden_states": self.out(ctx), "attentions": probs}
