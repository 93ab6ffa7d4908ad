# case: own
# class: Attention
# kwargs: {"hidden_dim": 24, "n_heads": 2}
# expect: gradients
# fix: context = torch.matmul(probs, v)
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self, hidden_dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_k, self.to_v, self.fc = (nn.Linear(hidden_dim, hidden_dim) for _ in range(4))

    def forward(self, query, key, value):
        B = query.shape[0]
        q, k, v = (f(t).view(B, -1, self.n_heads, f.out_features // self.n_heads).transpose(1, 2)
                   for f, t in ((self.to_q, query), (self.to_k, key), (self.to_v, value)))
        probs = torch.softmax(torch.matmul(q / q.shape[-1] ** 0.5, k.transpose(2, 3)), dim=-1)
        context = torch.matmul(probs.detach(), v)  # wrong
        return self.fc(context.transpose(1, 2).reshape(B, -1, self.fc.in_features)), probs
