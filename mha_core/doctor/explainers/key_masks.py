"""A key_padding_mask of another batch or length, as torch refuses it."""

from __future__ import annotations

import re

from mha_core.doctor.explainers.answer import Explanation, Problem, Reading, Rule, answer, numbers, rule

BATCH_FIRST = "nn.MultiheadAttention(..., batch_first=True), or permute the input, not the mask"
LIST = r"(?:torch\.Size\()?[\[(](?P<{}>[\d, ]+)[\])]\)?"


def keys_mask(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain a key_padding_mask whose length or batch is another."""
    return keys_mask_of(int(match["axis"]), int(match["want"]), int(match["have"]), problem)


def keys_mask_of(axis: int, want: int, have: int, problem: Problem) -> Explanation | None:
    """Explain a key_padding_mask with another size on one axis."""
    if axis == 0:
        facts = (
            f"A key padding mask is (B, Sk); the layer sees a batch of {problem.named(want)}, the mask has "
            f"{problem.named(have)} rows."
        )
        if have % want == 0:
            sentence = f"{have} = {want} x {have // want}: the mask was repeated, as for every head"
            once = "one row per sequence, without repeating it for the heads"
            return answer(facts, [Reading("mask_shape", 5.0, sentence, (once,), {"batch": want})], problem)
        sentence = f"the layer reads (S, B, E), so {want} is really the length (batch_first=False is the default)"
        transposed = "the mask is transposed, (Sk, B): it is (B, Sk) whatever batch_first says"
        readings = [
            Reading("batch_first", 5.0, sentence, (BATCH_FIRST,), {"batch": have, "length": want}),
            Reading("mask_shape", 4.5, transposed, ("mask.t()",), {"batch": want}),
        ]
        return answer(facts, readings, problem)
    sentence = (
        f"a key padding mask is (B, Sk): the keys are {want} and the mask speaks of {have}; a mask of the "
        "target length serves self-attention only"
    )
    fixes = ("in decoder cross-attention pass the source's padding mask (memory_key_padding_mask)", BATCH_FIRST)
    return answer("", [Reading("cross_dims", 5.0, sentence, fixes, {"k_len": want})], problem)


def old_keys_mask(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain a key_padding_mask refused by a torch that tells both shapes: the axis that differs is looked for."""
    want, have = numbers(match["want"]), numbers(match["have"])
    if len(want) != 2 or len(have) != 2 or want == have:
        return None
    if want == tuple(reversed(have)):
        return exchanged(*have, problem)
    axis = 0 if want[0] != have[0] else 1
    return keys_mask_of(axis, want[axis], have[axis], problem)


def exchanged(rows: int, columns: int, problem: Problem) -> Explanation | None:
    """Explain a mask whose batch and length are those of the input exchanged: one of the two is transposed."""
    facts = f"The layer sees a batch of {columns} and {rows} keys, the mask is ({rows}, {columns})."
    sentence = f"the layer reads (S, B, E), so {columns} is really the length (batch_first=False is the default)"
    transposed = "the mask is transposed, (Sk, B): it is (B, Sk) whatever batch_first says"
    readings = [
        Reading("batch_first", 5.0, sentence, (BATCH_FIRST,), {"batch": rows, "length": columns}),
        Reading("mask_shape", 4.5, transposed, ("mask.t()",), {"batch": columns, "length": rows}),
    ]
    return answer(facts, readings, problem)


RULES: tuple[Rule, ...] = (
    rule(
        r"Expected key_padd(?:ed|ing)_mask\.shape\[(?P<axis>\d)\] to be (?P<want>\d+),? but got (?P<have>\d+)",
        keys_mask,
    ),
    rule(rf"expecting key_padding_mask shape of {LIST.format('want')},? but got {LIST.format('have')}", old_keys_mask),
)
