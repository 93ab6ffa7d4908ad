"""Each mask against matrices written by hand, what a fill does to a hidden row, and which masks are refused.

Small matrices are drawn as rows of 0 and 1, one row per query; 1 = may attend. Torch's own causal attention is the
reference for the top-left alignment.
"""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mha_core import MASKS, MaskSpec, MhaError, MultiHeadAttention
from mha_core.kernels import attention_weights, mask_scores
from mha_core.masks import MaskSizes, build_mask, check_mask, parse_custom, resolve_fill
from tests.core.strategies import mask_specs, rng


def rows_of(mask: Tensor) -> list[str]:
    """A (1, 1, Sq, Sk) mask as rows of 0 and 1."""
    assert mask.dtype == torch.bool
    assert mask.shape[:2] == (1, 1)
    return ["".join("01"[cell] for cell in row) for row in mask[0, 0].int()]


HAND_WRITTEN = [
    # kinds, other choices, rows for Sq = 3, Sk = 5
    ("causal", {}, ["11100", "11110", "11111"]),
    ("causal", {"alignment": "top_left"}, ["10000", "11000", "11100"]),
    ("local", {"window": 1}, ["01110", "00111", "00011"]),
    ("local", {"window": 1, "alignment": "top_left"}, ["11000", "11100", "01110"]),
    ("local", {"window": 1, "direction": "back"}, ["01100", "00110", "00011"]),
    ("local", {"window": 1, "direction": "ahead"}, ["00110", "00011", "00001"]),
    ("local", {"window": 0}, ["00100", "00010", "00001"]),
    ("local", {"window": 60_000}, ["11111", "11111", "11111"]),
    ("causal,local", {"window": 1}, ["01100", "00110", "00011"]),
    ("custom", {"custom": ("10010", "00000", "01101")}, ["10010", "00000", "01101"]),
    ("causal,custom", {"custom": ("10010", "00000", "01101")}, ["10000", "00000", "01101"]),
]


@pytest.mark.parametrize(("kinds", "choices", "rows"), HAND_WRITTEN)
def test_masks_equal_hand_written_matrices(kinds: str, choices: dict[str, object], rows: list[str]) -> None:
    spec = MaskSpec(tuple(kinds.split(",")), **choices)
    assert rows_of(build_mask(spec, MaskSizes(2, 3, 5))) == rows


def test_causal_with_more_queries_than_keys() -> None:
    rows = {
        "bottom_right": ["000", "000", "100", "110", "111"],  # the first two queries stand before every key
        "top_left": ["100", "110", "111", "111", "111"],
    }
    for alignment, expected in rows.items():
        assert rows_of(build_mask(MaskSpec(("causal",), alignment=alignment), MaskSizes(2, 5, 3))) == expected


def test_padding_hides_the_filler_of_each_sequence() -> None:
    mask = build_mask(MaskSpec(("padding",)), MaskSizes(4, 3, 5, torch.tensor([5, 2, 0, 1])))
    assert mask.shape == (4, 1, 1, 5)
    assert mask[:, 0, 0].int().tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    both = build_mask(MaskSpec(("causal", "padding")), MaskSizes(4, 3, 5, torch.tensor([5, 2, 0, 1])))
    assert both.shape == (4, 1, 3, 5)
    assert both[1, 0].int().tolist() == [[1, 1, 0, 0, 0]] * 3
    assert both[0, 0].int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def test_no_mask_is_none_and_no_lengths_hide_nothing() -> None:
    assert build_mask(MaskSpec(), MaskSizes(2, 3, 5)) is None
    assert build_mask(MaskSpec(("padding",)), MaskSizes(2, 3, 5)).all()


@pytest.mark.parametrize(("q_len", "k_len"), [(5, 5), (3, 7), (7, 3)])
def test_top_left_is_what_torch_calls_causal(q_len: int, k_len: int) -> None:
    q, k = torch.randn(2, 3, q_len, 5, generator=rng(1)), torch.randn(2, 3, k_len, 5, generator=rng(2))
    mask = build_mask(MaskSpec(("causal",), alignment="top_left"), MaskSizes(2, q_len, k_len))
    ours = F.scaled_dot_product_attention(q, k, k, attn_mask=mask)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, k, is_causal=True))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_masks_equal_the_rule_of_each_cell(data: st.DataObject) -> None:
    q_len, k_len = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))
    spec = data.draw(mask_specs(q_len, k_len))
    lengths = data.draw(st.lists(st.integers(0, k_len), min_size=2, max_size=2))
    mask = build_mask(spec, MaskSizes(2, q_len, k_len, torch.tensor(lengths)))

    def may_attend(b: int, i: int, j: int) -> bool:
        ahead = j - i - (k_len - q_len if spec.alignment == "bottom_right" else 0)
        reach = {"both": abs(ahead), "back": -ahead, "ahead": ahead}[spec.direction]
        rules = {
            "padding": j < lengths[b],
            "causal": ahead <= 0,
            "local": 0 <= reach <= spec.window,
            "custom": spec.custom is not None and spec.custom[i][j] == "1",
        }
        return all(rules[kind] for kind in spec.kinds)

    expected = [[[may_attend(b, i, j) for j in range(k_len)] for i in range(q_len)] for b in range(2)]
    full = torch.ones(2, 1, q_len, k_len).bool() if mask is None else mask.expand(2, 1, q_len, k_len)
    assert full[:, 0].tolist() == expected


# --- fills ----------------------------------------------------------------------------------------------------------

FILLS = ("zero", "-inf", "-1e4", "-1e9", "-1e10", "min")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", FILLS)
def test_every_fill_hides_a_key_beside_a_visible_one(fill: str, dtype: torch.dtype) -> None:
    scores = torch.tensor([[0.0, 5.0, 0.0]], dtype=dtype)
    weights = attention_weights(scores, torch.tensor([[True, False, True]]), fill)
    assert weights.tolist() == [[0.5, 0.0, 0.5]]  # exp of -1e4 and below is 0 in every format


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", FILLS)
def test_what_each_fill_does_to_a_row_without_any_key(fill: str, dtype: torch.dtype) -> None:
    weights = attention_weights(torch.tensor([[3.0, 5.0, -2.0, 0.0]], dtype=dtype), torch.zeros(1, 4).bool(), fill)
    if fill == "zero":
        assert weights.tolist() == [[0.0] * 4]
    elif fill == "-inf":
        assert weights.isnan().all()
    else:
        assert weights.tolist() == [[0.25] * 4]


@pytest.mark.parametrize(
    ("fill", "dtype", "value"),
    [
        ("-1e9", torch.float16, -65504.0),
        ("-1e10", torch.float16, -65504.0),
        ("-1e4", torch.float16, -1e4),
        ("min", torch.float16, -65504.0),
        ("zero", torch.float16, -65504.0),
        ("-1e9", torch.float32, -1e9),
        ("min", torch.bfloat16, -3.3895313892515355e38),
        ("-inf", torch.float16, -torch.inf),
    ],
)
def test_fill_values_fit_the_dtype(fill: str, dtype: torch.dtype, value: float) -> None:
    assert resolve_fill(fill, dtype) == (value, fill == "zero")
    filled = mask_scores(torch.zeros(1, 2, dtype=dtype), torch.tensor([[True, False]]), fill)
    assert filled.tolist() == [[0.0, torch.tensor(value, dtype=dtype).item()]]


@pytest.mark.parametrize("kernel", ["explicit", "chunked"])
def test_the_fill_of_the_module_reaches_the_kernel(kernel: str) -> None:
    layer = MultiHeadAttention(6, 2, kernel=kernel)
    layer.fill = "-inf"
    output, _ = layer(torch.ones(1, 3, 6), mask=torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 0]]).bool())
    assert output.isnan().all(-1).tolist() == [[False, True, False]]


def test_the_fused_kernel_refuses_a_fill() -> None:
    layer = MultiHeadAttention(6, 2, kernel="sdpa")
    layer.fill = "-inf"
    with pytest.raises(MhaError, match=r"fused kernel fills hidden scores by itself and cannot use -inf.*Try kernel"):
        layer(torch.ones(1, 3, 6))


# --- refusals: B = 2, H = 3, Sq = 5, Sk = 7 -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2, 1, 7), "its first axis is the batch, but would land on the heads; write mask[:, None]"),
        ((2, 5, 7), "its first axis is the batch, but would land on the heads; write mask[:, None]"),
        ((3, 5, 7), "with three axes the first would be the heads; write mask[None] to say so"),
        ((2, 7), "(B, Sk) is a padding mask; write mask[:, None, None, :]"),
        ((7, 5), "queries and keys are swapped; write mask.transpose(-2, -1)"),
        ((2, 1, 7, 5), "queries and keys are swapped; write mask.transpose(-2, -1)"),
        ((5, 11), "the last axis counts keys (7), the one before it queries (5)"),
        ((11, 1, 5, 7), "the last axis counts keys (7), the one before it queries (5)"),
        ((1, 2, 3, 5, 7), "does not fit the scores (B, H, Sq, Sk) = (2, 3, 5, 7)"),
    ],
)
def test_masks_that_do_not_fit_are_refused_with_the_cure(shape: tuple[int, ...], text: str) -> None:
    with pytest.raises(MhaError, match=re.escape(text)) as caught:
        check_mask(torch.ones(shape).bool(), 2, 3, 5, 7)
    assert str(shape) in str(caught.value)
    assert (caught.value.field, caught.value.got) == ("mask", shape)


@pytest.mark.parametrize(
    ("dtype", "hint"), [(torch.float32, "mask == 0"), (torch.int64, "mask.bool()"), (torch.uint8, "mask.bool()")]
)
def test_masks_that_are_not_boolean_are_refused(dtype: torch.dtype, hint: str) -> None:
    text = rf"the mask is {dtype}; it must be boolean with True = may attend.*most likely `{re.escape(hint)}`"
    with pytest.raises(MhaError, match=text):
        check_mask(torch.ones(5, 7, dtype=dtype), 2, 3, 5, 7)


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (1, 5, 7), (2, 1, 1, 7), (1, 3, 5, 7), (2, 3, 5, 7), (7,), ()])
def test_masks_that_fit_pass(shape: tuple[int, ...]) -> None:
    check_mask(torch.ones(shape).bool(), 2, 3, 5, 7)


# --- custom matrices and specifications -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    ["101/010", "1 0 1\n0 1 0", "1,0,1\r\n0,1,0\r\n", "[[1, 0, 1],\n [0, 1, 0]]", "\n101\n\n010\n", "1;0;1/0;1;0"],
)
def test_custom_masks_are_read_from_every_usual_spelling(given: str) -> None:
    assert parse_custom(given) == ("101", "010")


def test_custom_masks_are_read_from_nested_values() -> None:
    assert parse_custom([[True, False, 1], [0, 1.0, None]]) == ("101", "010")
    assert parse_custom([["1", "0"]]) == ("10",)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("10/1", "must be equally long; they have 1, 2 cells"),
        ("", "must be equally long; they have 0 cells"),
        ("102", "contains '2'; write 0 (hidden) and 1 (may attend)"),
        ("1x", "contains 'x'"),
        ("1" * 513, "1 x 513"),
        ("/".join("1" * 513), "513 x 1"),
    ],
)
def test_custom_masks_that_are_no_matrix_are_refused(given: str, text: str) -> None:
    with pytest.raises(MhaError, match=re.escape(text)) as caught:
        parse_custom(given)
    assert caught.value.field == "custom_mask"


def test_custom_mask_of_another_size_names_both_and_suggests_one_that_fits() -> None:
    with pytest.raises(
        MhaError, match=r"the custom mask is 1 x 2, but the scores are 3 x 5 \(queries x keys\)"
    ) as caught:
        build_mask(MaskSpec(("causal", "custom"), custom=("10",)), MaskSizes(2, 3, 5))
    changes = [dict(suggestion.changes) for suggestion in caught.value.try_]
    assert changes == [{"mask": ("causal",)}, {"custom_mask": ("11111",) * 3}]


@pytest.mark.parametrize(
    ("choices", "field"),
    [
        ({"kinds": ("diagonal",)}, "mask"),
        ({"window": -1}, "window"),
        ({"window": 1.5}, "window"),
        ({"window": True}, "window"),
        ({"direction": "up"}, "direction"),
        ({"alignment": "centre"}, "alignment"),
        ({"fill": "0"}, "fill"),
        ({"custom": ("10", "1")}, "custom_mask"),
        ({"kinds": ("custom",)}, "custom_mask"),
        ({"kinds": 5}, "mask"),
        ({"custom": 5}, "custom_mask"),
    ],
)
def test_specifications_are_checked(choices: dict[str, object], field: str) -> None:
    with pytest.raises(MhaError) as caught:
        MaskSpec(**choices)
    assert caught.value.field == field


def test_kinds_are_kept_in_registry_order_once_each() -> None:
    assert MaskSpec(("local", "causal", "local")).kinds == ("causal", "local")
    assert MaskSpec("local,padding") == MaskSpec(("padding", "local"))
    assert tuple(MASKS) == ("padding", "causal", "local", "custom")
