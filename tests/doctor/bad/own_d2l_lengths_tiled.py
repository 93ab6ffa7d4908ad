# case: own
# class: MultiHeadAttention
# kwargs: {"num_hiddens": 24, "num_heads": 3}
# expect: padding, batch_independence
# fix: valid_lens = valid_lens.repeat_interleave(self.num_heads, dim=0)
import math

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.Linear(num_hiddens, num_hiddens)
        self.W_k = nn.Linear(num_hiddens, num_hiddens)
        self.W_v = nn.Linear(num_hiddens, num_hiddens)
        self.W_o = nn.Linear(num_hiddens, num_hiddens)

    def transpose_qkv(self, X):
        X = X.reshape(X.shape[0], X.shape[1], self.num_heads, -1).permute(0, 2, 1, 3)
        return X.reshape(-1, X.shape[2], X.shape[3])

    def forward(self, queries, keys, values, valid_lens=None):
        q, k, v = self.transpose_qkv(self.W_q(queries)), self.transpose_qkv(self.W_k(keys)), self.transpose_qkv(self.W_v(values))
        scores = torch.bmm(q / math.sqrt(q.shape[-1]), k.transpose(1, 2))
        if valid_lens is not None:
            valid_lens = valid_lens.repeat(self.num_heads)  # wrong
            hidden = torch.arange(k.shape[1])[None, :] >= valid_lens[:, None]
            scores = scores.masked_fill(hidden[:, None, :], -1e6)
        out = torch.bmm(scores.softmax(dim=-1), v)
        out = out.reshape(-1, self.num_heads, out.shape[1], out.shape[2]).permute(0, 2, 1, 3)
        return self.W_o(out.reshape(out.shape[0], out.shape[1], -1))
