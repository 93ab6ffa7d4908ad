"""Every finding of the registry is provoked by a real experiment, and an ordinary run has none. What a finding says is
checked by the names and numbers that must be in it, worked out from the weights.
"""

from __future__ import annotations

from typing import Any

import pytest

from mha_core.lenses.findings import LOOKS, Finding, find
from tests.lenses.reference import done

SMALL: dict[str, Any] = {"text": "red green blue white", "embed_dim": 24, "num_heads": 4}
BLIND = {"mask": ("custom",), "custom_mask": ("1111", "0000", "1111", "1010")}
PROVOKED: dict[str, dict[str, Any]] = {
    "empty_rows": BLIND,
    "not_finite": BLIND | {"fill": "-inf"},
    "fill_clamped": {"mask": ("causal",), "dtype": "float16", "fill": "-1e9"},
    "padding_seen": {"text": "red green blue white\nblack"},
    "one_key": {"text": "red"},
    "saturated": {"scale": 1000.0},
    "near_uniform": {"init": "zeros"},
    "identical_heads": {"init": "constant", "init_std": 0.05},
    "dropped": {"dropout": 0.3},
}
ORDINARY: tuple[dict[str, Any], ...] = (
    {},
    {"text": "red green blue white"},
    {"mask": ("causal",)},
    {"mask": ("causal", "local"), "window": 3},
    {"text": "red green blue white\nblack grey", "mask": ("padding",)},
    {"memory_text": "ein zwei drei vier fünf"},
    {"num_kv_heads": 2},
    {"positions": "rotary"},
    {"dtype": "float16", "fill": "-1e4", "mask": ("causal",)},
    {"source": "random", "batch": 2, "q_len": 7, "k_len": 11},
    {"fill": "-inf", "mask": ("causal",)},
    {"kernel": "sdpa", "projection": "fused"},
)


def kinds(found: tuple[Finding, ...]) -> set[str]:
    return {finding.kind for finding in found}


def one(kind: str, sample: int = 0, **fields: Any) -> Finding:
    (finding,) = [f for f in find(done(**SMALL | PROVOKED[kind] | fields), sample) if f.kind == kind]
    return finding


def test_every_kind_has_its_experiment() -> None:
    assert set(PROVOKED) == set(LOOKS)


@pytest.mark.parametrize("kind", LOOKS)
def test_each_kind_is_provoked(kind: str) -> None:
    result = done(**SMALL | PROVOKED[kind])
    assert kind in {f.kind for sample in range(result.sizes.batch) for f in find(result, sample)}


@pytest.mark.parametrize("fields", ORDINARY, ids=str)
def test_an_ordinary_run_has_none(fields: dict[str, Any]) -> None:
    result = done(**fields)
    assert [find(result, sample) for sample in range(result.sizes.batch)] == [()] * result.sizes.batch


def test_an_empty_row_is_named_and_its_effect_told() -> None:
    finding = one("empty_rows")
    assert finding.tokens == ("green",)
    assert "green (query 1)" in finding.sentence
    assert "zero" in finding.sentence
    assert "NaN" in one("empty_rows", fill="-inf").sentence
    assert "uniform" in one("empty_rows", fill="-1e9").sentence


def test_many_empty_rows_are_counted() -> None:
    words = [f"w{number}" for number in range(11)]
    mask = ("0" * 11,) * 9 + ("1" * 11,) * 2
    finding = one("empty_rows", text=" ".join(words), custom_mask=mask)
    assert finding.tokens == tuple(words[:9])
    named = sum(f"{word} (query" in finding.sentence for word in words)
    assert f"{9 - named} more" in finding.sentence


def test_not_finite_names_the_heads() -> None:
    finding = one("not_finite")
    assert finding.heads == (0, 1, 2, 3)
    assert "all heads" in finding.sentence


@pytest.mark.parametrize(("fill", "dtype", "clamped"), [("-1e9", "float32", False), ("-1e10", "float16", True)])
def test_a_fill_is_clamped_only_where_it_does_not_fit(fill: str, dtype: str, clamped: bool) -> None:
    found = kinds(find(done(**SMALL, mask=("causal",), fill=fill, dtype=dtype)))
    assert ("fill_clamped" in found) == clamped
    assert "fill_clamped" not in kinds(find(done(**SMALL, fill=fill, dtype=dtype)))  # nothing is hidden


def test_the_share_on_padding_is_the_share_of_the_weights() -> None:
    finding = one("padding_seen", sample=1)
    result = done(**SMALL | PROVOKED["padding_seen"])
    share = result.weights[1, :, 0, 1:].double().sum(-1).mean().item()  # the real query is row 0
    assert f"{share:.0%}" in finding.sentence
    assert "padding_seen" not in kinds(find(result, 0))
    assert "padding_seen" not in kinds(find(done(**SMALL | PROVOKED["padding_seen"] | {"mask": ("padding",)}), 1))


def test_saturated_and_uniform_name_what_they_mean() -> None:
    result = done(**SMALL | PROVOKED["saturated"])
    sharp = [head for head in range(4) if result.weights[0, head].amax(-1).double().mean() > 0.99]
    assert sharp, "the scale does not saturate any head"
    assert list(one("saturated").heads) == sharp
    assert one("near_uniform").heads == (0, 1, 2, 3)
    assert "all heads" in one("near_uniform").sentence


def test_a_causal_run_of_two_tokens_is_not_saturated() -> None:
    """Its first row has one key and so a weight of 1; that is no choice."""
    assert "saturated" not in kinds(find(done(text="red", embed_dim=24, num_heads=4)))


def test_identical_heads_are_those_that_repeat_an_earlier_one() -> None:
    finding = one("identical_heads")
    assert finding.heads == (1, 2, 3)
    assert "1 different pattern" in finding.sentence
    grouped = done(**SMALL, init="constant", init_std=0.05, init_targets=("q",), num_kv_heads=2)
    found = [f for f in find(grouped) if f.kind == "identical_heads"]
    assert [f.heads for f in found] == [(1, 3)]  # heads 0 and 1 share keys, 2 and 3 share others
    assert "2 different patterns" in found[0].sentence


def test_dropout_tells_the_rows_it_made() -> None:
    finding = one("dropped")
    sums = done(**SMALL | PROVOKED["dropped"]).weights[0].double().sum(-1)
    assert f"{sums.min():.2f} to {sums.max():.2f}" in finding.sentence
    assert "0.3" in finding.sentence
    assert "0.7" in finding.sentence


def test_findings_of_a_blind_sequence_do_not_fail() -> None:
    """Nothing to compute a number from: every look must still answer."""
    result = done(**SMALL | {"mask": ("custom",), "custom_mask": ("0000",) * 4, "dropout": 0.2})
    found = find(result)
    assert "empty_rows" in kinds(found)
    assert not [f.sentence for f in found if " nan" in f.sentence]
