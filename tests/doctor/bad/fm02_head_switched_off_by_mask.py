# case: FM-02
# class: PrunedAttention
# kwargs: {"embed_dim": 24, "num_heads": 4, "pruned": (1,)}
# expect: row_sums, reach, determinism, gradients
# where: any
# fix: out, w = self.mha(x, x, x, need_weights=need_weights, average_attn_weights=False)
import torch
import torch.nn as nn


class PrunedAttention(nn.Module):
    """Switches heads off by hiding every key from them."""

    def __init__(self, embed_dim, num_heads, pruned):
        super().__init__()
        self.pruned = pruned
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, need_weights=False):
        B, S, _ = x.shape
        off = torch.zeros(self.mha.num_heads, dtype=torch.bool, device=x.device)
        off[list(self.pruned)] = True
        mask = off.view(1, -1, 1, 1).expand(B, -1, S, S).reshape(-1, S, S)
        out, w = self.mha(x, x, x, attn_mask=mask, need_weights=need_weights, average_attn_weights=False)  # wrong
        return (out, w) if need_weights else out
