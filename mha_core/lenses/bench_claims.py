"""What the two articles say about speed and memory, answered with measurements of this machine.

One article builds the four linear layers and compares view with einops (从零实现Transformer多头注意力); the
other has the fused projection, chunks, mixed precision, one head against many (Transformer QKV 矩阵与多头注意力).
A verdict is given only where the interquartile intervals of the two sides do not touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mha_core.budget import spell_bytes
from mha_core.lenses.bench_plan import Measurement
from mha_core.lenses.bench_timing import MIN_RUNS
from mha_core.lenses.bench_variants import Variant

Verdict = Literal["holds", "does not hold", "no difference beyond the spread", "not measured"]
Spot = Literal["smallest", "largest"]
SAME_MEMORY = 0.05  # peaks that differ by less count as equal: they have no spread to compare with


@dataclass(frozen=True)
class Claim:
    """One claim and what was measured about it.

    Attributes:
        name: short name. claim: what is to be shown, in one sentence.
        quote: the article's words in English. wording: in the original.
        verdict: by the measurements. sentence: the numbers behind it.
        q_len: Sq it was looked at, or None.
    """

    name: str
    claim: str
    quote: str
    wording: str
    verdict: Verdict
    sentence: str
    q_len: int | None = None


@dataclass(frozen=True)
class _Question:
    """Who should win by the claim, against whom, at which of the lengths, in what."""

    name: str
    claim: str
    quote: str
    wording: str
    winner: Variant
    loser: Variant
    spots: tuple[Spot, ...] = ("smallest", "largest")
    is_memory: bool = False
    is_training: bool = False

    @property
    def sides(self) -> tuple[Variant, Variant]:
        """Who is compared."""
        return self.winner, self.loser


_PLAIN = Variant()
_MIXED = (
    "Mixed precision training: with torch.cuda.amp.autocast(): ...",
    "混合精度训练：with torch.cuda.amp.autocast()",
)
_CHUNKS = ("Compute attention in chunks to use less memory.", "分块计算注意力，减少内存占用")
QUESTIONS = (
    _Question(
        "view on small matrices",
        "On small matrices view + permute is faster than einops.",
        "Small matrices: view + permute is faster (saves the time in which einops parses its pattern).",
        "小矩阵：view+permute 更快（节省 einops 解析时间）",
        _PLAIN,
        replace(_PLAIN, head_split="einops"),
        ("smallest",),
    ),
    _Question(
        "einops on large matrices",
        "On large matrices einops is faster than view + permute.",
        "Large matrices: einops is better (it has optimised the memory layout).",
        "大矩阵：einops 更优（优化了内存布局）",
        replace(_PLAIN, head_split="einops"),
        _PLAIN,
        ("largest",),
    ),
    _Question(
        "fused projection",
        "One fused q, k, v projection is faster than three.",
        "The merged QKV projection computes more efficiently.",
        "合并的QKV投影，提高计算效率",
        replace(_PLAIN, projection="fused"),
        _PLAIN,
    ),
    _Question(
        "memory of chunks",
        "Computing in chunks of queries takes less memory.",
        *_CHUNKS,
        replace(_PLAIN, kernel="chunked", need_weights=False),
        _PLAIN,
        is_memory=True,
    ),
    _Question(
        "time of chunks",
        "Computing in chunks of queries is faster as well.",
        "Several optimisations of the basic multi-head attention: ... chunks (of time the article says nothing).",
        "我们可以对基础的多头注意力进行多种优化",
        replace(_PLAIN, kernel="chunked", need_weights=False),
        _PLAIN,
    ),
    _Question(
        "autocast",
        "Mixed precision (bfloat16 autocast) is faster than float32.",
        *_MIXED,
        replace(_PLAIN, dtype="autocast"),
        _PLAIN,
        is_training=True,
    ),
    _Question(
        "bfloat16",
        "bfloat16 throughout is faster than float32.",
        *_MIXED,
        replace(_PLAIN, dtype="bfloat16"),
        _PLAIN,
        is_training=True,
    ),
    _Question(
        "one head",
        "A single head computes more efficiently than many heads of the same total width.",
        "Single-head attention: computes efficiently; multi-head attention: more expressive.",
        "单头注意力：计算效率高；多头注意力：表达能力更强",
        replace(_PLAIN, one_head=True),
        _PLAIN,
    ),
)


def answer(measurements: Sequence[Measurement]) -> tuple[Claim, ...]:
    """Answer every claim from measurements, at the smallest and at the largest length where both sides were timed."""
    return tuple(claim for question in QUESTIONS for claim in _answers(question, measurements))


def _answers(question: _Question, measurements: Sequence[Measurement]) -> list[Claim]:
    timed = {(m.variant, m.q_len, m.pass_) for m in measurements if m.timing is not None}
    both = {q_len for variant, q_len, pass_ in timed if {(side, q_len, pass_) for side in question.sides} <= timed}
    lengths = sorted(both or {m.q_len for m in measurements})
    if not lengths:
        return [_claim(question, "not measured", "Nothing was measured.")]
    if question.spots == ("largest",) and len(lengths) == 1:
        return [_claim(question, "not measured", "It needs a second, larger length to compare with.")]
    wanted = [lengths[0 if spot == "smallest" else -1] for spot in question.spots]
    return [_at(question, measurements, q_len) for q_len in dict.fromkeys(wanted)]


def _at(question: _Question, measurements: Sequence[Measurement], q_len: int) -> Claim:
    passes = ("forward+backward", "forward") if question.is_training else ("forward", "forward+backward")
    here = [m for m in measurements if m.q_len == q_len]
    pass_ = next(word for word in passes if any(m.pass_ == word for m in here))
    by_variant = {m.variant: m for m in here if m.pass_ == pass_}
    winner, loser = (by_variant.get(side) for side in question.sides)
    if winner is None or loser is None:
        missing = question.winner if winner is None else question.loser
        return _claim(question, "not measured", f"{_name(missing)} was not among what was measured.", q_len)
    for side in (winner, loser):
        if side.reason:
            return _claim(question, "not measured", f"{_name(side.variant)}: {side.reason}.", q_len)
    verdict, numbers = (_memory if question.is_memory else _time)(winner, loser)
    sizes = f"B {winner.batch}, Sq {q_len:,}, Sk {winner.k_len:,}, {pass_}"
    return _claim(question, verdict, f"{sizes}: {numbers}", q_len)


def _time(winner: Measurement, loser: Measurement) -> tuple[Verdict, str]:
    one, other = winner.timing, loser.timing
    if one is None or other is None or min(one.runs, other.runs) < MIN_RUNS:
        return "not measured", f"fewer than {MIN_RUNS} runs, too few to tell; give it more time."
    spelled = ", ".join(
        f"{_name(m.variant)} {t.median_ms:.3g} ms ({t.low_ms:.3g} to {t.high_ms:.3g})"
        for m, t in ((winner, one), (loser, other))
    )
    verdict: Verdict = "no difference beyond the spread"
    if one.high_ms < other.low_ms:
        verdict = "holds"
    elif other.high_ms < one.low_ms:
        verdict = "does not hold"
    return verdict, f"{spelled}; {one.median_ms / other.median_ms:.2f} times as long."


def _memory(winner: Measurement, loser: Measurement) -> tuple[Verdict, str]:
    one, other = winner.peak_extra_bytes, loser.peak_extra_bytes
    if one is None or other is None:
        return "not measured", "memory was not measured."
    spelled = f"{_name(winner.variant)} {spell_bytes(one)}, {_name(loser.variant)} {spell_bytes(other)}"
    verdict: Verdict = "no difference beyond the spread"
    if abs(one - other) > SAME_MEMORY * max(one, other):
        verdict = "holds" if one < other else "does not hold"
    return verdict, f"{spelled}; {one / max(other, 1):.2f} times as much."


def _name(variant: Variant) -> str:
    return f"{variant.name}, {variant.dtype}"


def _claim(question: _Question, verdict: Verdict, sentence: str, q_len: int | None = None) -> Claim:
    return Claim(question.name, question.claim, question.quote, question.wording, verdict, sentence, q_len)
