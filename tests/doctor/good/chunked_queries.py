# class: ChunkedAttention
# kwargs: {"dim": 24, "heads": 4, "chunk": 4}
# probe: m(x)
import torch
import torch.nn as nn


class ChunkedAttention(nn.Module):
    def __init__(self, dim, heads, chunk=128):
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.q, self.k, self.v, self.o = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, context=None):
        context = x if context is None else context
        b, s, e = x.shape
        d = e // self.heads
        q = self.q(x).view(b, s, self.heads, d).transpose(1, 2) * d ** -0.5
        k = self.k(context).view(b, context.shape[1], self.heads, d).transpose(1, 2)
        v = self.v(context).view(b, context.shape[1], self.heads, d).transpose(1, 2)
        parts = []
        for part in q.split(self.chunk, dim=2):
            parts.append(torch.softmax(part @ k.transpose(-1, -2), dim=-1) @ v)
        out = torch.cat(parts, dim=2)
        return self.o(out.transpose(1, 2).reshape(b, s, e))
