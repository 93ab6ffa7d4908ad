"""Small attention modules for the tests of calling: one formula, dressed in the conventions people use.

`truth` computes what every one of them should give from its weights, independently of how the module is written.
"""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

E, H = 24, 4
D = E // H


class Base(nn.Module):
    """Four projections; subclasses say how they are called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.num_heads = H
        self.q, self.k, self.v, self.o = (nn.Linear(E, E) for _ in range(4))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scaled dot-product attention of batch-first inputs; `keep` broadcasts to (B, H, Sq, Sk)."""
        split = [part.unflatten(-1, (H, D)).transpose(1, 2) for part in (self.q(query), self.k(key), self.v(value))]
        scores = split[0] @ split[1].transpose(-2, -1) / math.sqrt(D)
        if keep is not None:
            scores = scores.masked_fill(~keep.bool(), -1e9)
        weights = scores.softmax(-1)
        return self.o((weights @ split[2]).transpose(1, 2).flatten(2)), weights


def truth(layer: Base, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
    """The output by torch's own kernel; keep (B, Sq, Sk), True = may attend."""
    split = [part.unflatten(-1, (H, D)).transpose(1, 2) for part in (layer.q(query), layer.k(key), layer.v(value))]
    mask = None if keep is None else keep.unsqueeze(1)
    output = F.scaled_dot_product_attention(*split, attn_mask=mask)
    return layer.o(output.transpose(1, 2).flatten(2))


class Plain(Base):
    def forward(self, x):
        return self.attend(x, x, x)[0]


class KeepKeys(Base):
    def forward(self, x, mask=None):
        return self.attend(x, x, x, None if mask is None else mask[:, None, None, :])[0]


class KeepThree(Base):
    def forward(self, hidden_states, attention_mask=None):
        keep = None if attention_mask is None else attention_mask.unsqueeze(1)
        return self.attend(hidden_states, hidden_states, hidden_states, keep)[0]


class KeepFour(Base):
    def forward(self, x, mask=None):
        if mask is not None:
            assert mask.dim() == 4
        return self.attend(x, x, x, mask)[0]


class HideKeys(Base):
    def forward(self, src, pad_mask=None):
        keep = None if pad_mask is None else ~pad_mask[:, None, None, :]
        return self.attend(src, src, src, keep)[0]


class Square(Base):
    def forward(self, x, attn_mask=None):
        if attn_mask is not None:
            assert attn_mask.shape == (x.shape[1], x.shape[1])
        return self.attend(x, x, x, attn_mask)[0]


class HiddenSquare(Base):
    """mask: (S, S), True where a position may not be attended."""

    def forward(self, x, mask=None):
        return self.attend(x, x, x, None if mask is None else ~mask)[0]


class Additive(Base):
    def forward(self, x, attn_bias_mask=None):
        if attn_bias_mask is not None:
            attn_bias_mask = attn_bias_mask > -1
        return self.attend(x, x, x, attn_bias_mask)[0]


class PerHead(Base):
    def forward(self, query, key, value, attn_mask=None):
        """attn_mask: (B * H, Sq, Sk), True = may attend"""
        keep = None if attn_mask is None else attn_mask.view(query.shape[0], H, query.shape[1], key.shape[1])
        return self.attend(query, key, value, keep)[0]


class ValueKeyQuery(Base):
    def forward(self, values, keys, query, mask):
        return self.attend(query, keys, values, mask)


class Lengths(Base):
    def forward(self, queries, keys, values, valid_lens=None):
        keep = None
        if valid_lens is not None:
            lengths = valid_lens.view(valid_lens.shape[0], 1, -1, 1)
            keep = torch.arange(keys.shape[1]) < lengths
        return self.attend(queries, keys, values, keep)[0]


class MustHaveMask(Base):
    def forward(self, x, mask):
        return self.attend(x, x, x, mask.unsqueeze(1).unsqueeze(2))[0]


class Context(Base):
    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        return self.attend(x, context, context, None if mask is None else mask[:, None, None])[0]


class SequenceFirst(Base):
    def forward(self, x):
        """x: (S, B, E)"""
        y = x.transpose(0, 1)
        return self.attend(y, y, y)[0].transpose(0, 1)


class SequenceFirstByNames(Base):
    def forward(self, x):
        seq_len, batch, _ = x.shape
        assert seq_len != batch
        y = x.transpose(0, 1)
        return self.attend(y, y, y)[0].transpose(0, 1)


class AlongTheBatch(Base):
    def forward(self, x):
        y = x.transpose(0, 1)
        return self.attend(y, y, y)[0].transpose(0, 1)


class MaskIgnored(Base):
    def forward(self, x, mask=None):
        """mask: (B, S), 1 for real tokens, 0 for padding"""
        if mask is not None:
            mask[:, None, None, :].expand(x.shape[0], H, x.shape[1], x.shape[1])
        return self.attend(x, x, x)[0]


class MaskRaises(Base):
    def forward(self, x, key_padding_mask=None):
        """key_padding_mask: (B, S), True for padding"""
        if key_padding_mask is not None:
            x = x + key_padding_mask.view(-1, 2)
        return self.attend(x, x, x)[0]


class Swapped(Base):
    def forward(self, x, mask=None):
        """mask: (B, S), True = may attend"""
        return self.attend(x, x, x, None if mask is None else ~mask.bool()[:, None, None, :])[0]


class Residual(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(E)

    def forward(self, x, mask=None):
        y = self.norm(x)
        return x + self.attend(y, y, y, None if mask is None else mask[:, None, None, :])[0]


Pair = namedtuple("Pair", "attn out")


@dataclass
class Result:
    attention: Tensor
    hidden: Tensor


class Returns(Base):
    """Wraps output and weights in the way asked for."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x):
        output, weights = self.attend(x, x, x)
        flat = weights.flatten(0, 1)
        by_heads = weights.transpose(0, 1)
        return {
            "tuple": (output, weights),
            "reversed": (weights, output),
            "named": Pair(weights, output),
            "dict": {"attn_weights": weights, "output": output},
            "dataclass": Result(weights, output),
            "nested": (output, (weights, None)),
            "flat": (output, flat),
            "heads first": (output, by_heads),
            "flat heads first": (output, by_heads.flatten(0, 1)),
        }[self.form]


class NeedWeights(Base):
    def forward(self, x, return_attention=False):
        output, weights = self.attend(x, x, x)
        return (output, weights) if return_attention else output


class Dropped(Base):
    """Three kinds of dropout knobs."""

    def __init__(self) -> None:
        super().__init__()
        self.attn_dropout, self.drop = 0.3, nn.Dropout(0.4)
        self.config = type("Config", (), {})()
        self.config.attention_probs_dropout_prob = 0.5

    def forward(self, x):
        y = F.dropout(x, self.attn_dropout, self.training)
        y = F.dropout(y, self.config.attention_probs_dropout_prob, self.training)
        return self.drop(self.attend(y, y, y)[0])


class Functional(nn.Module):
    """On split heads, (B, H, S, D)."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, q, k, v, mask=None):
        scores = q @ k.transpose(2, 3) / self.temperature
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = scores.softmax(-1)
        return weights @ v, weights


class HeadsThird(nn.Module):
    def forward(self, q, k, v):
        B, S, _, dim = q.shape  # noqa: N806
        assert k.shape[0] == B > S - q.shape[1]
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / dim**0.5
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


class Bmm(nn.Module):
    def forward(self, queries, keys, values, valid_lens=None):
        scores = torch.bmm(queries, keys.transpose(1, 2)) / queries.shape[-1] ** 0.5
        if valid_lens is not None:
            hidden = torch.arange(keys.shape[1]) >= valid_lens.view(valid_lens.shape[0], -1, 1)
            scores = scores.masked_fill(hidden, -1e6)
        return torch.bmm(scores.softmax(-1), values)


class Cached(Base):
    """Causal, with a cache of a given form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x, past_key_value=None, use_cache=False):
        seen = (
            []
            if not past_key_value
            else [past_key_value]
            if self.form == "tokens"
            else list(past_key_value.values() if isinstance(past_key_value, dict) else past_key_value)
        )
        context = torch.cat([*seen[:1], x], 1) if seen else x
        q_len, k_len = x.shape[1], context.shape[1]
        keep = torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)
        output = self.attend(x, context, context, keep)[0]
        if self.form == "in place":
            if past_key_value is not None:
                past_key_value["x"] = context
            return output
        made = {"tuple": (context, context), "list": [context, context], "dict": {"k": context, "v": context}}
        return (output, made[self.form]) if use_cache else output


class Stranger(Base):
    def forward(self, x, wavelength):
        return self.attend(x, x, x)[0] * wavelength


class Bound(Base):
    """Works on nine tokens only."""

    def __init__(self) -> None:
        super().__init__()
        self.relative_bias = nn.Parameter(torch.randn(9, 9))

    def forward(self, x):
        split = [part.unflatten(-1, (H, D)).transpose(1, 2) for part in (self.q(x), self.k(x), self.v(x))]
        scores = split[0] @ split[1].transpose(-2, -1) / math.sqrt(D) + self.relative_bias
        return self.o((scores.softmax(-1) @ split[2]).transpose(1, 2).flatten(2))


class AlwaysRaises(Base):
    def forward(self, x):
        return self.attend(x, x, x)[0].transpose(1, 2).view(x.shape[0], -1)


class Growing(Base):
    """Keeps the tokens of every call."""

    def forward(self, x, mask=None):
        self.seen = torch.cat([self.seen, x], 1) if hasattr(self, "seen") else x
        return self.attend(x, self.seen, self.seen, None if mask is None else mask[:, None, None, :])[0]


class Star(Base):
    def forward(self, *args):
        return self.attend(args[0], args[0], args[0])[0]


class StarThree(Base):
    def forward(self, *args):
        query, key, value = args
        return self.attend(query, key, value)[0]


class Named(Base):
    def forward(self, *, query, key, value, mask=None):
        return self.attend(query, key, value, mask)[0]


class Rotated(Base):
    """As in LLaMA's own code: complex angles, additive mask."""

    def forward(self, x, start_pos, freqs_cis, mask):
        split = [part(x).unflatten(-1, (H, D)) for part in (self.q, self.k, self.v)]
        for place in (0, 1):
            pairs = torch.view_as_complex(split[place].unflatten(-1, (-1, 2)).contiguous())
            split[place] = torch.view_as_real(pairs * freqs_cis[:, None, :]).flatten(3)
        q, k, v = (part.transpose(1, 2) for part in split)
        scores = q @ k.transpose(2, 3) / math.sqrt(D)
        scores = scores if mask is None else scores + mask
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
