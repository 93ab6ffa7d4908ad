# case: MV-10
# class: GPTAttention
# kwargs: {"hidden": 24, "heads": 2}
# options: causal=true
# expect: padding, fully_masked
# fix: scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
import torch
from torch import nn


class GPTAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, hidden * 3)
        self.dense = nn.Linear(hidden, hidden)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (batch, seq), 1 = token, 0 = padding"""
        b, s, e = hidden_states.shape
        q, k, v = self.qkv(hidden_states).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q / q.size(-1) ** 0.5, k.transpose(-1, -2))
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * -1e4  # wrong
        causal = torch.ones(s, s, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(causal, torch.finfo(scores.dtype).min)
        return self.dense((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, e))
