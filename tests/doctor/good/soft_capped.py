# class: GemmaLikeAttention
# kwargs: {"hidden_size": 32, "num_heads": 4, "num_kv_heads": 2}
# options: causal=true
# by_design: permutation, scale
# may_warn: half_precision, fully_masked
# causal: true
# probe: m(x)
import torch
from torch import nn


class GemmaLikeAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, num_kv_heads, softcap=50.0):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.softcap = num_heads, num_kv_heads, softcap
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)

    def forward(self, hidden_states):
        b, s, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, s, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, s, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, s, self.num_kv_heads, self.head_dim).transpose(1, 2)
        n_rep = self.num_heads // self.num_kv_heads
        k = k[:, :, None].expand(-1, -1, n_rep, -1, -1).flatten(1, 2)
        v = v[:, :, None].expand(-1, -1, n_rep, -1, -1).flatten(1, 2)
        attn = (q @ k.transpose(2, 3)) * self.head_dim ** -0.5
        attn = torch.tanh(attn / self.softcap) * self.softcap
        attn = attn.masked_fill(torch.ones(s, s, dtype=torch.bool, device=attn.device).triu(1), torch.finfo(attn.dtype).min)
        attn = nn.functional.softmax(attn, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.o_proj((attn @ v).transpose(1, 2).reshape(b, s, -1))
