# class: MultiHeadAttention
# kwargs: {"d_model": 20, "n_heads": 4, "d_head": 5}
# by_design: permutation
# may_warn: fully_masked, half_precision
# causal: true
# probe: m(x)
import einops
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    """In the style of TransformerLens: one matrix per head, causal."""

    def __init__(self, d_model, n_heads, d_head):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_head
        self.W_Q = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_K = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_V = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_O = nn.Parameter(torch.empty(n_heads, d_head, d_model))
        for w in (self.W_Q, self.W_K, self.W_V, self.W_O):
            nn.init.normal_(w, std=d_model ** -0.5)
        self.b_Q = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_K = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_V = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_O = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("IGNORE", torch.tensor(-1e5))

    def forward(self, normalized_resid_pre):
        q = torch.einsum("bsm,hmd->bshd", normalized_resid_pre, self.W_Q) + self.b_Q
        k = torch.einsum("bsm,hmd->bshd", normalized_resid_pre, self.W_K) + self.b_K
        v = torch.einsum("bsm,hmd->bshd", normalized_resid_pre, self.W_V) + self.b_V
        attn_scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.d_head ** 0.5
        attn_scores = self.apply_causal_mask(attn_scores)
        pattern = attn_scores.softmax(-1)
        z = torch.einsum("bhqk,bkhd->bqhd", pattern, v)
        return einops.einsum(z, self.W_O, "b s h d, h d m -> b s m") + self.b_O

    def apply_causal_mask(self, attn_scores):
        mask = torch.triu(torch.ones(attn_scores.shape[-2:], device=attn_scores.device), diagonal=1).bool()
        return attn_scores.masked_fill(mask, float("-inf"))
