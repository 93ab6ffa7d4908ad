"""What the tests of the core share: random weights, generated attention calls, and a reference written head by head.

`reference_attention` knows nothing of the code under test: it slices the matrices one head at a time, turns rotary
pairs as complex numbers, and takes the softmax over the allowed keys only. Axes: B batch, Sq queries, Sk keys,
E embed_dim, H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from mha_core.attention import MultiHeadAttention
from mha_core.config import AttentionConfig
from mha_core.layouts import AttentionWeights
from mha_core.masks import MaskSizes, MaskSpec, build_mask

PROJECTIONS = (("separate", "stacked"), ("fused", "stacked"), ("fused", "interleaved"))
SPLITS = ("view", "einops")
KERNELS = ("explicit", "chunked", "sdpa")
TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
}


def rng(seed: int) -> torch.Generator:
    """A generator of its own for each test."""
    return torch.Generator().manual_seed(seed)


def random_weights(config: AttentionConfig, seed: int, dtype: torch.dtype = torch.float64) -> AttentionWeights:
    """Normal matrices of variance 1 / fan_in and normal biases, drawn without the code under test."""
    generator = rng(seed)
    rows, kv_rows, width = config.num_heads * config.head_dim, config.kv_heads * config.head_dim, config.embed_dim
    shapes = ((rows, width), (kv_rows, config.key_dim), (kv_rows, config.value_dim), (width, rows))
    matrices = [torch.randn(s, generator=generator, dtype=torch.float64) / math.sqrt(s[1]) for s in shapes]
    biases = [torch.randn(s[0], generator=generator, dtype=torch.float64) if config.bias else None for s in shapes]
    return AttentionWeights(*matrices, *biases).map(lambda tensor: tensor.to(dtype))


def build(config: AttentionConfig, weights: AttentionWeights, **changes: object) -> MultiHeadAttention:
    """The module under test, in evaluation mode, in the weights' dtype (loaded last, so that nothing is rounded)."""
    layer = MultiHeadAttention.from_config(replace(config, **changes), weights).to(weights.q.dtype).eval()
    layer.load_weights(weights)
    return layer


def build_engines(config: AttentionConfig, weights: AttentionWeights) -> Iterator[tuple[str, MultiHeadAttention]]:
    """Every engine the sizes allow: one module per projection, its head split and kernel switched in place."""
    same_width = config.key_dim == config.value_dim == config.embed_dim
    for projection, layout in PROJECTIONS if same_width else PROJECTIONS[:1]:
        layer = build(config, weights, projection=projection, qkv_layout=layout)
        for split, kernel in itertools.product(SPLITS, KERNELS):
            layer.config = replace(layer.config, head_split=split, kernel=kernel)
            yield f"{projection} {layout} {split} {kernel}", layer


def assert_near(got: Tensor, expected: Tensor, what: str = "") -> None:
    """Equal shapes, and values within the tolerance of `got`'s dtype (quicker than torch.testing in a long loop)."""
    assert got.shape == expected.shape, f"{what}: {tuple(got.shape)} is not {tuple(expected.shape)}"
    difference = (got.double() - expected.double()).abs().max().item() if got.numel() else 0.0
    assert torch.allclose(got.double(), expected.double(), **TOLERANCE[got.dtype]), f"{what}: off by {difference}"


def rotate_as_complex(tensor: Tensor, theta: float, first: int) -> Tensor:
    """(S, D): turn the complex number x[d] + i x[d + D/2] by position * theta^(-2d/D) (Su et al. 2021)."""
    length, width = tensor.shape
    half = width // 2
    pairs = torch.complex(tensor[:, :half], tensor[:, half:])
    for position, channel in itertools.product(range(length), range(half)):
        angle = (first + position) * theta ** (-2 * channel / width)
        pairs[position, channel] *= complex(math.cos(angle), math.sin(angle))
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def reference_attention(
    weights: AttentionWeights, config: AttentionConfig, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output (B, Sq, E) and weights (B, H, Sq, Sk) in float64, one batch entry and one head at a time."""
    w = weights.map(lambda tensor: tensor.double())
    query, key, value = query.double(), key.double(), value.double()
    heads, width, batch = config.num_heads, config.head_dim, query.shape[0]
    group, (q_len, k_len) = heads // config.kv_heads, (query.shape[1], key.shape[1])
    scale = config.scale if config.scale is not None else 1 / math.sqrt(width)
    allowed = torch.ones(batch, heads, q_len, k_len, dtype=torch.bool) & (True if mask is None else mask)
    maps, outputs = torch.zeros(batch, heads, q_len, k_len, dtype=torch.float64), []
    for b in range(batch):
        contexts = []
        for h in range(heads):
            rows, shared = slice(h * width, (h + 1) * width), slice(h // group * width, (h // group + 1) * width)
            q = query[b] @ w.q[rows].T + (w.q_bias[rows] if config.bias else 0)
            k = key[b] @ w.k[shared].T + (w.k_bias[shared] if config.bias else 0)
            v = value[b] @ w.v[shared].T + (w.v_bias[shared] if config.bias else 0)
            if config.rope_theta is not None:
                q = rotate_as_complex(q, config.rope_theta, k_len - q_len)
                k = rotate_as_complex(k, config.rope_theta, 0)
            scores = (q @ k.T) * scale
            for i in range(q_len):
                seen = allowed[b, h, i]
                if seen.any():
                    maps[b, h, i, seen] = torch.softmax(scores[i, seen], 0)
            contexts.append(maps[b, h] @ v)
        outputs.append(torch.cat(contexts, -1) @ w.out.T + (w.out_bias if config.bias else 0))
    return torch.stack(outputs), maps


@dataclass(frozen=True)
class Call:
    """One generated call: the layer, its weights, the inputs and the mask."""

    config: AttentionConfig
    weights: AttentionWeights
    query: Tensor
    key: Tensor | None
    value: Tensor | None
    mask: Tensor | None
    chunk_rows: int

    @property
    def full(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value with the defaults spelled out."""
        key = self.query if self.key is None else self.key
        return self.query, key, key if self.value is None else self.value


@st.composite
def mask_specs(draw: st.DrawFn, q_len: int, k_len: int) -> MaskSpec:
    """Any combination of the four kinds."""
    kinds = draw(st.lists(st.sampled_from(("padding", "causal", "local", "custom")), unique=True))
    cells = st.text("01", min_size=k_len, max_size=k_len)
    return MaskSpec(
        kinds=tuple(kinds),
        window=draw(st.integers(0, 5)),
        direction=draw(st.sampled_from(("both", "back", "ahead"))),
        alignment=draw(st.sampled_from(("bottom_right", "top_left"))),
        custom=tuple(draw(st.lists(cells, min_size=q_len, max_size=q_len))) if "custom" in kinds else None,
    )


@st.composite
def mask_tensors(draw: st.DrawFn, batch: int, heads: int, q_len: int, k_len: int) -> Tensor | None:
    """A built mask (some padded lengths are 0, so that whole rows are hidden), or one drawn per head."""
    if draw(st.integers(0, 4)) == 0:
        shape = draw(st.sampled_from(((batch, heads, q_len, k_len), (1, heads, 1, k_len), (q_len, k_len))))
        return torch.rand(shape, generator=rng(draw(st.integers(0, 999)))) < 0.6
    lengths = torch.tensor([draw(st.integers(0, k_len)) for _ in range(batch)])
    return build_mask(draw(mask_specs(q_len, k_len)), MaskSizes(batch, q_len, k_len, lengths))


@st.composite
def calls(draw: st.DrawFn, *, plain: bool = False) -> Call:
    """A call of any shape; `plain` leaves out what nn.MultiheadAttention has not (groups, rotary, scale, head_size)."""
    heads = draw(st.sampled_from((1, 2, 3, 4, 6)))
    rotary = not plain and draw(st.booleans())
    width = heads * draw(st.sampled_from((2, 4, 6) if rotary else (1, 2, 3, 5, 7)))
    size = None if plain else draw(st.sampled_from((None, 2, 4, 14) if rotary else (None, 1, 3, 11)))
    width += 0 if size is None else draw(st.sampled_from((0, 1)))
    kv_heads = heads if plain else draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    kind = draw(st.sampled_from(("self", "memory", "three", "widths")))
    config = AttentionConfig(
        embed_dim=width,
        num_heads=heads,
        num_kv_heads=None if kv_heads == heads else kv_heads,
        head_size=size,
        bias=draw(st.booleans()),
        kdim=draw(st.sampled_from((5, 11))) if kind == "widths" else None,
        vdim=draw(st.sampled_from((None, 7))) if kind == "widths" else None,
        scale=None if plain else draw(st.sampled_from((None, 0.0, 1.0, 0.37, -0.5))),
        rope_theta=draw(st.sampled_from((10_000.0, 31.0))) if rotary else None,
    )
    batch, q_len = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from((1, 2, 5, 7, 11)))
    k_len = q_len if kind == "self" else draw(st.sampled_from((1, 3, 5, 7, 13)))
    seed, dtype = draw(st.integers(0, 2**20)), draw(st.sampled_from((torch.float32, torch.float64)))
    generator = rng(seed)
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in ((batch, q_len, width), (batch, k_len, config.key_dim), (batch, k_len, config.value_dim))
    )
    return Call(
        config=config,
        weights=random_weights(config, seed + 1, dtype),
        query=query,
        key=None if kind == "self" else key,
        value=value if kind in ("three", "widths") else None,
        mask=draw(mask_tensors(batch, heads, q_len, k_len)),
        chunk_rows=draw(st.sampled_from((1, 2, 3, 5, 256))),
    )
