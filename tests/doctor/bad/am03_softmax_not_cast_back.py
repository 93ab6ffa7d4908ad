# case: AM-03
# class: Attention
# kwargs: {"hidden_size": 24, "num_heads": 3}
# expect: half_precision
# fix: probs = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states):
        b, s, e = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, s, self.num_heads, -1).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, s, self.num_heads, -1).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, s, self.num_heads, -1).transpose(1, 2)
        scores = torch.matmul(q * (e // self.num_heads) ** -0.5, k.transpose(2, 3))
        probs = nn.functional.softmax(scores, dim=-1, dtype=torch.float32)  # wrong
        out = torch.matmul(probs, v)  # wrong: raises here in bfloat16
        return self.o_proj(out.transpose(1, 2).reshape(b, s, e))
