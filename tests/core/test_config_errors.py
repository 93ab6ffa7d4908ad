"""Every dimension mistake ends in an `MhaError` that says what is wrong and suggests what works, before any tensor.

Suggestions are applied, not read: each must give a valid configuration. Inputs of the layer are views of one number
with sizes that no machine could hold, so that touching them before the check would fail in another way.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mha_core import AttentionConfig, MhaError, MultiHeadAttention, scaled_dot_product_attention
from mha_core.config import MAX_EMBED_DIM, MAX_HEADS

FAST = settings(max_examples=300, deadline=None, derandomize=True)


def mistake(**choices: object) -> MhaError:
    with pytest.raises(MhaError) as caught:
        AttentionConfig(**choices)
    return caught.value


def repaired(choices: dict[str, object], error: MhaError) -> list[AttentionConfig]:
    """Apply each suggestion; fields that are not the layer's (positions) belong to the experiment."""
    of_layer = set(AttentionConfig.__dataclass_fields__)
    changes = [{name: v for name, v in s.changes if name in of_layer} for s in error.try_]
    return [AttentionConfig(**choices | change) for change in changes]


def test_the_sentence_of_the_design() -> None:
    error = mistake(embed_dim=512, num_heads=7)
    assert str(error) == (
        "embed_dim 512 is not divisible by num_heads 7 (512 = 7 x 73 + 1). "
        "Try num_heads 4 or 8, or embed_dim 511 or 518, or untie it: head_size 73."
    )
    assert (error.field, error.got, error.need) == ("num_heads", 7, "a divisor of embed_dim 512")
    assert [dict(s.changes) for s in error.try_] == [
        {"num_heads": 4},
        {"num_heads": 8},
        {"embed_dim": 511},
        {"embed_dim": 518},
        {"head_size": 73},
    ]
    assert getattr(error, "try") == error.try_
    assert isinstance(error, ValueError)
    assert error.as_dict() == {
        "field": "num_heads",
        "got": 7,
        "need": "a divisor of embed_dim 512",
        "try": ["num_heads 4", "num_heads 8", "embed_dim 511", "embed_dim 518", "untie it: head_size 73"],
        "message": str(error),
    }


@FAST
@example(1031, 7)  # a prime width above the largest number of heads: the width itself is a divisor, but too many heads
@example(MAX_EMBED_DIM, MAX_HEADS - 1)
@example(5, 7)
@given(st.integers(1, 4000) | st.integers(1, MAX_EMBED_DIM), st.integers(1, 40) | st.integers(1, MAX_HEADS))
def test_every_suggestion_for_heads_works(embed_dim: int, num_heads: int) -> None:
    assume(embed_dim % num_heads)
    error = mistake(embed_dim=embed_dim, num_heads=num_heads)
    quotient, remainder = embed_dim // num_heads, embed_dim % num_heads
    assert f"({embed_dim} = {num_heads} x {quotient} + {remainder})" in str(error)
    assert error.try_
    for config in repaired({"embed_dim": embed_dim, "num_heads": num_heads}, error):
        kept = (config.embed_dim == embed_dim) + (config.num_heads == num_heads) + (config.head_size is None)
        assert kept == 2, "one thing is changed"
        assert (config.head_dim * config.num_heads == config.embed_dim) == (config.head_size is None)


@FAST
@given(st.integers(2, 96), st.integers(2, 200))
def test_every_suggestion_for_kv_heads_works(num_heads: int, kv_heads: int) -> None:
    assume(num_heads % kv_heads)
    choices = {"embed_dim": 3 * num_heads, "num_heads": num_heads, "num_kv_heads": kv_heads}
    error = mistake(**choices)
    assert error.field == "num_kv_heads"
    assert f"num_heads {num_heads} is not divisible by num_kv_heads {kv_heads}" in str(error)
    assert "cannot share key/value heads evenly" in str(error)
    assert all(config.num_kv_heads != kv_heads for config in repaired(choices, error))


@FAST
@example(3, 5461)  # the next even head_dim would make the width 16,386, more than is allowed
@given(st.integers(1, 40), st.integers(0, 200).map(lambda n: 2 * n + 1))
def test_every_suggestion_for_odd_rotary_heads_works(num_heads: int, head_dim: int) -> None:
    choices = {"embed_dim": num_heads * head_dim, "num_heads": num_heads, "rope_theta": 10_000.0}
    error = mistake(**choices)
    assert f"head_dim is {head_dim} (embed_dim {num_heads * head_dim} / num_heads {num_heads}), an odd" in str(error)
    assert error.field == "rope_theta"
    assert all(config.rope_theta is None or config.head_dim % 2 == 0 for config in repaired(choices, error))


@pytest.mark.parametrize("widths", [{"kdim": 11}, {"vdim": 13}, {"kdim": 11, "vdim": 13}])
def test_fused_projection_needs_one_width(widths: dict[str, int]) -> None:
    choices = {"embed_dim": 14, "num_heads": 2, "projection": "fused", **widths}
    error = mistake(**choices)
    k, v = widths.get("kdim", 14), widths.get("vdim", 14)
    assert f"one fused matrix needs one input width, but embed_dim is 14, kdim {k} and vdim {v}" in str(error)
    assert str(error).endswith("Try projection separate, or kdim and vdim = embed_dim.")
    assert len(repaired(choices, error)) == 2


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({"embed_dim": 0}, "embed_dim is 0; it must be a whole number from 1 to 16384. Try embed_dim 1."),
        ({"embed_dim": 10**30}, "it must be a whole number from 1 to 16384. Try embed_dim 16384."),
        ({"embed_dim": 512.0}, "embed_dim is 512.0; it must be a whole number"),
        ({"embed_dim": "512"}, "embed_dim is 512; it must be a whole number"),
        ({"embed_dim": True}, "embed_dim is True; it must be a whole number"),
        ({"num_heads": -3}, "num_heads is -3; it must be a whole number from 1 to 1024. Try num_heads 1."),
        ({"num_kv_heads": 0}, "num_kv_heads is 0; it must be a whole number"),
        ({"kdim": 0}, "kdim is 0; it must be a whole number"),
        ({"vdim": 16_385}, "vdim is 16385; it must be a whole number"),
        ({"bias": 1}, "bias is 1; it must be true or false"),
        ({"dropout": 1.0}, "dropout is 1.0; it must be a number from 0 to 0.99"),
        ({"dropout": math.nan}, "dropout is nan; it must be a number"),
        ({"scale": math.inf}, "scale is inf; it must be a number from -1e+06 to 1e+06"),
        ({"rope_theta": 0.5}, "rope_theta is 0.5; it must be a number from 1 to 1e+09"),
        ({"projection": "both"}, "projection is both; it must be one of separate, fused. Try projection separate."),
        ({"qkv_layout": "x"}, "qkv_layout is x; it must be one of stacked, interleaved"),
        ({"head_split": "x"}, "head_split is x; it must be one of view, einops"),
        ({"kernel": "flash"}, "kernel is flash; it must be one of explicit, chunked, sdpa"),
        ({"kernel": ["sdpa"]}, "it must be one of explicit, chunked, sdpa"),
    ],
)
def test_values_out_of_range(choices: dict[str, object], text: str) -> None:
    error = mistake(**choices)
    assert text in str(error)
    assert error.field == next(iter(choices))
    assert error.got == choices[error.field] or error.got != error.got


def test_sizes_that_follow_from_others() -> None:
    config = AttentionConfig(30, 6, num_kv_heads=3, kdim=11)
    assert (config.head_dim, config.kv_heads, config.key_dim, config.value_dim) == (5, 3, 11, 30)
    assert config.softmax_scale == pytest.approx(1 / math.sqrt(5))
    assert replace(config, scale=0.0).softmax_scale == 0.0, "a scale of 0 is a scale"
    assert AttentionConfig(30, 6).kv_heads == 6


def test_a_bad_layer_allocates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("a tensor was touched")

    for name in ("empty", "empty_like", "randn", "zeros"):
        monkeypatch.setattr(torch, name, forbidden)
    monkeypatch.setattr(torch.nn, "Linear", forbidden)
    with pytest.raises(MhaError, match=r"16383 = 1000 x 16 \+ 383"):
        MultiHeadAttention(16_383, 1000)


# --- inputs of a layer with E = 14, kdim 11, vdim 13 ----------------------------------------------------------------

HUGE = 10**12  # tokens; as numbers these tensors would take petabytes


def shaped(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A view of a single number: any arithmetic on a huge one fails for want of memory."""
    return torch.zeros(1, dtype=dtype).expand(shape)


@pytest.mark.parametrize(
    ("shapes", "field", "text"),
    [
        (((HUGE, 14), (3, 7, 11), (3, 7, 13)), "query", "it must have three axes (B, S, 14); write query[None]"),
        (((14,), (3, 7, 11), (3, 7, 13)), "query", "query has shape (14,); it must have three axes (B, S, 14)"),
        (((3, HUGE, 14), (7, 11), (3, 7, 13)), "key", "three axes (B, S, 11); write key[None] for a batch of one"),
        (((3, HUGE, 2, 14), (3, 7, 11), (3, 7, 13)), "query", "it must have three axes (B, S, 14)"),
        (((3, HUGE, 15), (3, 7, 11), (3, 7, 13)), "query", "is 15 wide, but the layer's query projection takes 14"),
        (((3, HUGE, 14), (3, 7, 14), (3, 7, 13)), "key", "is 14 wide, but the layer's key projection takes 11"),
        (((3, HUGE, 14), (3, 7, 11), (3, 7, 11)), "value", "is 11 wide, but the layer's value projection takes 13"),
        (((3, HUGE, 14), (2, 7, 11), (3, 7, 13)), "key", "key has batch 2, but query has batch 3"),
        (((3, HUGE, 14), (1, 7, 11), (3, 7, 13)), "key", "but query has batch 3; write key.expand(3, -1, -1)"),
        (((3, HUGE, 14), (3, 7, 11), (5, 7, 13)), "value", "value has batch 5, but query has batch 3"),
        (((3, HUGE, 14), (3, 7, 11), (3, 5, 13)), "value", "there are 7 keys but 5 values; every key needs its value"),
    ],
)
@pytest.mark.parametrize("kernel", ["explicit", "chunked", "sdpa"])
def test_inputs_that_do_not_fit(kernel: str, shapes: tuple[tuple[int, ...], ...], field: str, text: str) -> None:
    layer = MultiHeadAttention(14, 2, kdim=11, vdim=13, kernel=kernel)
    with pytest.raises(MhaError, match=re.escape(text)) as caught:
        layer(*(shaped(*shape) for shape in shapes))
    assert caught.value.field == field


def test_missing_key_of_another_width_is_told() -> None:
    with pytest.raises(MhaError, match="the layer's key projection takes 11"):
        MultiHeadAttention(14, 2, kdim=11)(shaped(3, HUGE, 14))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_dtypes_that_differ(dtype: torch.dtype) -> None:
    layer = MultiHeadAttention(14, 2)
    text = f"query is {dtype}, but the weights are torch.float32; write query.to(torch.float32)"
    with pytest.raises(MhaError, match=re.escape(text)):
        layer(shaped(3, HUGE, 14, dtype=dtype))
    with pytest.raises(MhaError, match=r"key is torch\.float64, but the weights"):
        layer(shaped(3, 5, 14), shaped(3, HUGE, 14, dtype=torch.float64))


def test_masks_are_checked_before_the_kernel() -> None:
    layer = MultiHeadAttention(14, 2, kernel="sdpa")
    with pytest.raises(MhaError, match=re.escape("(B, Sk) is a padding mask; write mask[:, None, None, :]")):
        layer(shaped(3, 5, 14), shaped(3, HUGE, 14), mask=shaped(3, HUGE, dtype=torch.bool))


@pytest.mark.parametrize(
    ("shapes", "field", "text"),
    [
        (((4,), (5, 4), (5, 4)), "query", "at least two axes: (..., S, D)"),
        (((3, 5, 4), (2, 5, 4), (2, 5, 4)), "key", "batch and heads of q, k and v must be equal"),
        (((3, 5, 4), (3, 5, 4), (1, 5, 4)), "key", "batch and heads of q, k and v must be equal"),
        (((3, 5, 4), (3, 7, 6), (3, 7, 6)), "key", "it must be as wide as the query: 4"),
        (((3, 5, 4), (3, 7, 4), (3, 6, 4)), "value", "there are 7 keys but 6 values; every key needs its value"),
    ],
)
def test_equation_refuses_what_does_not_fit(shapes: tuple[tuple[int, ...], ...], field: str, text: str) -> None:
    with pytest.raises(MhaError, match=re.escape(text)) as caught:
        scaled_dot_product_attention(*(shaped(*shape) for shape in shapes))
    assert caught.value.field == field
    layer = MultiHeadAttention(8, 2)
    if len(shapes[0]) == 3:  # split heads given to the module directly
        with pytest.raises(MhaError, match=re.escape(text)):
            layer.attend(*(shaped(shape[0], 2, *shape[1:]) for shape in shapes))
