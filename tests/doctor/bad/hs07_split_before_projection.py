# case: HS-07
# class: SelfAttention
# kwargs: {"embed_size": 32, "heads": 4}
# expect: reach
# where: any
# fix: self.values = nn.Linear(self.embed_size, self.embed_size, bias=False)
# fix: self.keys = nn.Linear(self.embed_size, self.embed_size, bias=False)
# fix: self.queries = nn.Linear(self.embed_size, self.embed_size, bias=False)
# fix: values = self.values(values).reshape(N, value_len, self.heads, self.head_dim)
# fix: keys = self.keys(keys).reshape(N, key_len, self.heads, self.head_dim)
# fix: queries = self.queries(query).reshape(N, query_len, self.heads, self.head_dim)
# fix: pass
# fix: pass
# fix: pass
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super(SelfAttention, self).__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads

        self.values = nn.Linear(self.head_dim, self.head_dim, bias=False)  # wrong
        self.keys = nn.Linear(self.head_dim, self.head_dim, bias=False)  # wrong
        self.queries = nn.Linear(self.head_dim, self.head_dim, bias=False)  # wrong
        self.fc_out = nn.Linear(heads * self.head_dim, embed_size)

    def forward(self, values, keys, query, mask):
        N = query.shape[0]
        value_len, key_len, query_len = values.shape[1], keys.shape[1], query.shape[1]

        # Split the embedding into self.heads different pieces
        values = values.reshape(N, value_len, self.heads, self.head_dim)  # wrong
        keys = keys.reshape(N, key_len, self.heads, self.head_dim)  # wrong
        queries = query.reshape(N, query_len, self.heads, self.head_dim)  # wrong

        values = self.values(values)  # wrong
        keys = self.keys(keys)  # wrong
        queries = self.queries(queries)  # wrong

        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        attention = torch.softmax(energy / (self.head_dim ** (1 / 2)), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values]).reshape(
            N, query_len, self.heads * self.head_dim
        )
        return self.fc_out(out)
