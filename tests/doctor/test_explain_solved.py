"""Real errors, raised here with random sizes: the explanation names the leftover, the divisors and the axes by number.

Expected numbers are computed in the tests from the sizes that were drawn, never by the explainer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import einops
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mha_core.doctor.explain import Explanation, explain

WIDTHS = (64, 128, 192, 256, 384, 512, 768, 1024)


def raised(call: Callable[[], Any]) -> str:
    """Run what has to fail; the text as Python prints it."""
    with pytest.raises((RuntimeError, AssertionError, ValueError, einops.EinopsError)) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


def draw(seed: int) -> tuple[int, int, int, int]:
    """Draw batch, length, width and a head count that does not divide the width; the first three are no two alike."""
    chance = random.Random(seed)
    while True:
        batch, length, width = chance.randint(2, 9), chance.randint(11, 40), chance.choice(WIDTHS)
        heads = chance.randint(3, 24)
        if width % heads:
            return batch, length, width, heads


def sized(batch: int, length: int, width: int, heads: int) -> dict[str, int]:
    return {"batch": batch, "q_len": length, "embed_dim": width, "num_heads": heads}


def spoken(found: Explanation) -> str:
    return " ".join((found.explanation, *found.try_))


def assert_leftover(found: Explanation, width: int, heads: int) -> None:
    """The leftover, what is used of the width, and a head count on either side that fits."""
    used = heads * (width // heads)
    assert found.known
    assert found.kind == "divisibility"
    assert f"{used} of {width}" in found.explanation
    assert f"{width - used} channel" in found.explanation
    above = next(h for h in range(heads + 1, width + 1) if width % h == 0)
    below = next(h for h in range(heads - 1, 0, -1) if width % h == 0)
    assert f"num_heads={above}" in found.try_[0]
    assert f"num_heads={below}" in found.try_[0]


@pytest.mark.parametrize("seed", range(40))
def test_heads_that_do_not_divide_the_width(seed: int) -> None:
    batch, length, width, heads = draw(seed)
    x = torch.empty(batch, length, width)
    text = raised(lambda: x.view(batch, length, heads, width // heads))
    used = heads * (width // heads)
    assert f"{used} of {width}" in explain(text).explanation
    assert_leftover(explain(text, sized(batch, length, width, heads)), width, heads)
    other = raised(lambda: x.view(batch, heads, length, width // heads))
    assert_leftover(explain(other, sized(batch, length, width, heads)), width, heads)


@pytest.mark.parametrize("seed", range(20))
def test_heads_folded_into_the_batch(seed: int) -> None:
    batch, length, width, heads = draw(seed)
    x = torch.empty(batch, length, width)
    text = raised(lambda: x.reshape(batch * heads, length, width // heads))
    assert_leftover(explain(text, sized(batch, length, width, heads)), width, heads)


@pytest.mark.parametrize("seed", range(20))
def test_einops_and_unflatten(seed: int) -> None:
    batch, length, width, heads = draw(seed)
    x = torch.empty(batch, length, width)
    assert_leftover(explain(raised(lambda: einops.rearrange(x, "b s (h d) -> b h s d", h=heads))), width, heads)
    assert_leftover(explain(raised(lambda: x.unflatten(-1, (heads, width // heads)))), width, heads)


@pytest.mark.parametrize("seed", range(10))
def test_asserted_heads_are_solved_from_the_known_sizes(seed: int) -> None:
    batch, length, width, heads = draw(seed)
    text = raised(lambda: nn.MultiheadAttention(width, heads))
    assert_leftover(explain(text, sized(batch, length, width, heads)), width, heads)


@pytest.mark.parametrize(("heads", "few"), [(32, 8), (24, 8), (28, 4), (16, 2), (64, 8)])
def test_kv_heads(heads: int, few: int) -> None:
    q, k = torch.empty(1, heads, 3, 4), torch.empty(1, few, 3, 4)
    found = explain(raised(lambda: F.scaled_dot_product_attention(q, k, k)))
    assert found.kind == "gqa"
    assert f"{heads} query heads" in found.explanation
    assert f"repeat_interleave({heads // few}, dim=1)" in spoken(found)
    viewed = explain(raised(lambda: torch.empty(3, 11, few * 64).view(3, 11, heads, 64)))
    assert viewed.kind == "gqa"
    assert f"{few} KV heads" in viewed.explanation


@pytest.mark.parametrize(("batch", "other"), [(2, 5), (3, 4), (1, 7)])
def test_batches_of_query_and_key_differ(batch: int, other: int) -> None:
    layer = nn.MultiheadAttention(24, 4, batch_first=True)
    memory = torch.empty(other, 13, 24)
    text = raised(lambda: layer(torch.empty(batch, 11, 24), memory, memory))
    found = explain(text, {"batch": batch, "num_heads": 4, "head_dim": 6})
    assert found.kind == "cross_dims"
    assert f"{other} against {batch}" in found.explanation


@pytest.mark.parametrize(("past", "new"), [(7, 9), (3, 5), (11, 13)])
def test_mask_of_the_new_tokens_only(past: int, new: int) -> None:
    scores = torch.zeros(2, 3, new, past + new)
    text = raised(lambda: scores + torch.zeros(new, new))
    found = explain(text)
    assert found.kind == "mask_shape"
    assert f"{past} past + {new} new" in found.explanation
    assert f"[-{new}:]" in spoken(found)


def test_known_sizes_decide_between_readings() -> None:
    text = "RuntimeError: The size of tensor a (8) must match the size of tensor b (2) at non-singleton dimension 1"
    assert explain(text).kind == "gqa"
    assert explain(text, {"num_heads": 8, "num_kv_heads": 2}).kind == "gqa"
    assert explain(text, {"num_heads": 8, "batch": 2, "num_kv_heads": 8}).kind == "mask_shape"
    traceback = f"    scores = scores.masked_fill(mask, -1e9)\n{text}"
    assert explain(traceback).kind == "mask_shape"


def test_a_length_is_named_where_it_is_known() -> None:
    x = torch.empty(2, 8, 512)
    found = explain(raised(lambda: x.view(2, 10, 8, 64)), {"q_len": 10, "k_len": 8, "num_heads": 8, "head_dim": 64})
    assert found.kind == "cross_dims"
    assert "length 8 where the view takes 10" in found.explanation


def test_rotary_lines_of_the_traceback_decide() -> None:
    text = raised(lambda: torch.empty(1, 2, 5, 14) * torch.empty(5, 7))
    assert explain(text).kind == "mask_shape"
    line = "    q_rotated = q * cos + rotate_half(q) * sin\n"
    wide = raised(lambda: torch.empty(1, 2, 5, 128) * torch.empty(5, 64))
    assert explain(line + wide).kind == "position"


def test_bytes_are_solved_from_the_sizes() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.34 GiB."
    found = explain(text, {"batch": 2, "num_heads": 20, "q_len": 3000, "k_len": 3000})
    assert "2 x 20 x 3000 x 3000" in found.explanation  # 360,000,000 x 4 bytes = 1.34 GiB
    assert "4 bytes" in found.explanation
    assert "matrix of scores" in found.explanation
    other = explain(text, {"batch": 2, "num_heads": 20, "q_len": 500, "k_len": 500})
    assert "another tensor" in other.explanation


def test_transposed_fused_and_grouped_parameters() -> None:
    model, state = nn.Linear(4, 12), nn.Linear(12, 4).state_dict()
    assert "transposed" in explain(raised(lambda: model.load_state_dict(state))).explanation
    fused, apart = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2, kdim=6)
    found = explain(raised(lambda: apart.load_state_dict(fused.state_dict())))
    assert (found.kind, "chunk(3, dim=0)" in spoken(found)) == ("qkv_layout", True)
    prefixed = {f"encoder.{name}": tensor for name, tensor in fused.state_dict().items()}
    assert "'encoder.'" in spoken(explain(raised(lambda: fused.load_state_dict(prefixed))))
