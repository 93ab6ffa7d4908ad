# class: AttentionWithSinks
# kwargs: {"hidden_size": 32, "num_heads": 4, "num_kv_heads": 2}
# options: causal=true
# by_design: permutation, row_sums, constant_values
# may_warn: fully_masked, half_precision
# causal: true
# probe: m(x)
import torch
import torch.nn as nn


class AttentionWithSinks(nn.Module):
    """GPT-OSS style attention: a learned logit per head takes part in the softmax and is dropped afterwards."""

    def __init__(self, hidden_size, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size)
        self.sinks = nn.Parameter(torch.randn(num_heads))
        self.scaling = self.head_dim ** -0.5

    def forward(self, hidden_states):
        B, S, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(B, S, -1, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(B, S, -1, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(B, S, -1, self.head_dim).transpose(1, 2)
        groups = self.num_heads // self.num_kv_heads
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)

        attn_weights = torch.matmul(q, k.transpose(2, 3)) * self.scaling
        future = torch.ones(S, S, dtype=torch.bool, device=q.device).triu(1)
        attn_weights = attn_weights.masked_fill(future, float("-inf"))
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(B, -1, S, -1)
        combined = torch.cat([attn_weights, sinks], dim=-1)
        combined = combined - combined.max(dim=-1, keepdim=True).values
        probs = torch.softmax(combined, dim=-1)
        scores = probs[..., :-1]
        out = torch.matmul(scores, v)
        return self.o_proj(out.transpose(1, 2).reshape(B, S, -1)), scores
