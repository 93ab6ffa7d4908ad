# case: own
# class: MultiHeadAttention
# kwargs: {"d_model": 24, "n_head": 3}
# expect: padding
# fix: mask = mask[:, None, None, :]
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.w_q, self.w_k, self.w_v, self.w_concat = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        """mask: (batch, length), 1 for words and 0 for padding"""
        b, s, e = x.shape
        q, k, v = (w(x).view(b, s, self.n_head, -1).transpose(1, 2) for w in (self.w_q, self.w_k, self.w_v))
        score = q / (e // self.n_head) ** 0.5 @ k.transpose(2, 3)
        if mask is not None:
            mask = mask[:, None, :, None]  # wrong
            score = score.masked_fill(mask == 0, torch.finfo(score.dtype).min)
        return self.w_concat((score.softmax(-1) @ v).transpose(1, 2).reshape(b, s, e))
