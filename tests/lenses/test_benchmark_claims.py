"""The verdicts on the articles' claims, from measurements made by hand: each verdict, in both directions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mha_core.lenses.bench_claims import QUESTIONS, Claim, answer
from mha_core.lenses.bench_timing import Timing
from mha_core.lenses.bench_variants import Variant
from mha_core.lenses.benchmark import Measurement

PLAIN = Variant()
EINOPS = replace(PLAIN, head_split="einops")
CHUNKED = replace(PLAIN, kernel="chunked", need_weights=False)
SIDES = {
    "view on small matrices": (PLAIN, EINOPS),
    "einops on large matrices": (EINOPS, PLAIN),
    "fused projection": (replace(PLAIN, projection="fused"), PLAIN),
    "time of chunks": (CHUNKED, PLAIN),
    "autocast": (replace(PLAIN, dtype="autocast"), PLAIN),
    "bfloat16": (replace(PLAIN, dtype="bfloat16"), PLAIN),
    "one head": (replace(PLAIN, one_head=True), PLAIN),
}
FAST, SLOW, BETWEEN = Timing(2.0, 1.9, 2.1, 30), Timing(3.0, 2.7, 3.3, 30), Timing(2.4, 2.05, 2.8, 30)


def made(variant: Variant, timing: Timing | None, q_len: int = 53, **changes: object) -> Measurement:
    return replace(Measurement(variant, 1, q_len, q_len, "forward", timing, 1000), **changes)


def claim(name: str, *measurements: Measurement, q_len: int | None = None) -> Claim:
    """The one answer to a claim, or the one at a length."""
    (found,) = [c for c in answer(measurements) if c.name == name and (q_len is None or c.q_len in (None, q_len))]
    return found


def test_every_time_claim_is_tested_here() -> None:
    assert {question.name for question in QUESTIONS} == {*SIDES, "memory of chunks"}


@pytest.mark.parametrize("name", SIDES)
@pytest.mark.parametrize(
    ("winner", "loser", "verdict"),
    [
        (FAST, SLOW, "holds"),
        (SLOW, FAST, "does not hold"),
        (BETWEEN, SLOW, "no difference beyond the spread"),
        (SLOW, BETWEEN, "no difference beyond the spread"),
        (FAST, replace(SLOW, runs=4), "not measured"),
        (replace(FAST, runs=4), SLOW, "not measured"),
        (None, SLOW, "not measured"),
        (Timing(2.0, 1.9, 2.7, 30), SLOW, "no difference beyond the spread"),  # the intervals touch
    ],
)
def test_time_is_judged_by_the_quartiles(name: str, winner: Timing | None, loser: Timing, verdict: str) -> None:
    first, second = SIDES[name]
    small = (made(first, FAST, 11), made(second, SLOW, 11)) if name == "einops on large matrices" else ()
    found = claim(name, *small, made(first, winner), made(second, loser), q_len=53)
    assert found.verdict == verdict
    if winner is not None and verdict != "not measured":
        assert f"{winner.median_ms:.3g} ms" in found.sentence
        assert f"{winner.median_ms / loser.median_ms:.2f} times as long" in found.sentence
        assert "Sq 53" in found.sentence


def test_the_largest_length_is_one_where_both_sides_were_timed() -> None:
    refused = made(PLAIN, None, 997, reason="it would take too many bytes")
    rows = [made(v, t, q) for v, t in ((PLAIN, SLOW), (CHUNKED, FAST)) for q in (11, 53)]
    found = [c for c in answer([*rows, refused, made(CHUNKED, FAST, 997)]) if c.name == "time of chunks"]
    assert [(c.q_len, c.verdict) for c in found] == [(11, "holds"), (53, "holds")]
    (alone,) = [c for c in answer([refused, made(CHUNKED, FAST, 997)]) if c.name == "time of chunks"]
    assert "too many bytes" in alone.sentence


def test_small_and_large_are_the_ends_of_what_was_measured() -> None:
    rows = [made(PLAIN, timing, q) for q, timing in ((11, FAST), (53, BETWEEN), (211, SLOW))]
    rows += [made(EINOPS, timing, q) for q, timing in ((11, SLOW), (53, BETWEEN), (211, FAST))]
    small, large = claim("view on small matrices", *rows), claim("einops on large matrices", *rows)
    assert (small.verdict, small.q_len) == ("holds", 11)
    assert (large.verdict, large.q_len) == ("holds", 211)
    (refuted,) = [c for c in answer([replace(row, q_len=222 - row.q_len) for row in rows]) if c.name == small.name]
    assert (refuted.verdict, refuted.q_len) == ("does not hold", 11)


def test_one_length_is_not_a_large_one() -> None:
    found = claim("einops on large matrices", made(PLAIN, SLOW), made(EINOPS, FAST))
    assert found.verdict == "not measured"
    assert "second, larger length" in found.sentence


@pytest.mark.parametrize(
    ("chunks", "explicit", "verdict"),
    [
        (250, 1000, "holds"),
        (1000, 250, "does not hold"),
        (960, 1000, "no difference beyond the spread"),
        (1000, 960, "no difference beyond the spread"),
        (None, 1000, "not measured"),
    ],
)
def test_memory_is_judged_by_its_peak(chunks: int | None, explicit: int, verdict: str) -> None:
    rows = (made(CHUNKED, SLOW, peak_extra_bytes=chunks), made(PLAIN, FAST, peak_extra_bytes=explicit))
    assert claim("memory of chunks", *rows).verdict == verdict


def test_mixed_precision_is_judged_in_training_where_that_was_measured() -> None:
    autocast = replace(PLAIN, dtype="autocast")
    rows = [made(autocast, FAST), made(PLAIN, SLOW)]
    backward = [replace(row, pass_="forward+backward") for row in (made(autocast, SLOW), made(PLAIN, FAST))]
    assert claim("autocast", *rows).verdict == "holds"
    assert claim("autocast", *rows, *backward).verdict == "does not hold"


def test_what_was_left_out_or_impossible_is_said() -> None:
    assert "was not among" in claim("bfloat16", made(PLAIN, FAST)).sentence
    impossible = made(replace(PLAIN, one_head=True), None, reason="grouped heads have smaller k and v matrices")
    found = claim("one head", made(PLAIN, FAST), impossible)
    assert found.verdict == "not measured"
    assert "grouped heads" in found.sentence
    assert {c.verdict for c in answer([])} == {"not measured"}


def test_claims_carry_the_articles_words() -> None:
    for found in answer([]):
        assert found.quote.isascii()
        assert not found.wording.isascii()
