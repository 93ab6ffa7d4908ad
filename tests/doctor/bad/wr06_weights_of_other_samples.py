# case: WR-06
# class: Attention
# kwargs: {"n_feats": 24, "n_heads": 3}
# expect: batch_independence, row_sums
# where: any
# fix: weights = attn.view(self.n_heads, B, S, S).transpose(0, 1)
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self, n_feats, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.w_qs = nn.Linear(n_feats, n_feats)
        self.w_ks = nn.Linear(n_feats, n_feats)
        self.w_vs = nn.Linear(n_feats, n_feats)
        self.fc = nn.Linear(n_feats, n_feats)

    def forward(self, x):
        """Returns the output (B, S, E) and the weights (B, H, S, S)."""
        B, S, E = x.shape
        d = E // self.n_heads
        q, k, v = (w(x).view(B, S, self.n_heads, d).permute(2, 0, 1, 3).reshape(-1, S, d)
                   for w in (self.w_qs, self.w_ks, self.w_vs))
        attn = torch.softmax(torch.bmm(q / d ** 0.5, k.transpose(1, 2)), dim=2)
        out = torch.bmm(attn, v).view(self.n_heads, B, S, d).permute(1, 2, 0, 3).reshape(B, S, E)
        weights = attn.view(B, self.n_heads, S, S)  # wrong
        return self.fc(out), weights
