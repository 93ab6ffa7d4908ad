"""Texts that tell both shapes: expand, in-place adds, NumPy, JAX and TensorFlow broadcasting, cat, axes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, zip_longest

from mha_core.doctor.explainers.answer import Explanation, Problem, Reading, Rule, answer, numbers, rule, says
from mha_core.doctor.explainers.broadcast import MASK_AXES, REPEAT_FIX, TABLE_FIX

SUBJECT = r"attn|attention|softmax|scores|mask|num_heads|head_dim|pos_?emb|position|token|transformer|query|rotary"
LIST = r"[\[(][-\d, x]*[\])]"
SHAPE = r"[\[(](?P<{}>[-\d, x?None]*)[\])]"


def two_shapes(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain two shapes that do not broadcast, where something speaks of attention: a word, four axes, a size."""
    axes = max(len(numbers(match["a"])), len(numbers(match["b"])))
    if axes < 4 and not problem.sizes and not problem.hints(SUBJECT):
        return None
    return fit(numbers(match["a"]), numbers(match["b"]), problem)


def expanded(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain expand: a tensor that does not fit the target, with or without the shapes told."""
    if match["target"]:
        return fit(numbers(match["target"]), numbers(match["have"]), problem)
    a, b, axis = int(match["a"]), int(match["b"]), int(match["axis"])
    target, have = [1] * (axis + 1), [1] * (axis + 1)
    target[axis], have[axis] = a, b
    return fit(target, have, problem)


def fit(target: Sequence[int], have: Sequence[int], problem: Problem) -> Explanation | None:
    """Find the axes where two shapes differ, and where a size-1 axis would mend it."""
    pairs = list(zip_longest(reversed(target), reversed(have), fillvalue=1))
    apart = [(i, a, b) for i, (a, b) in enumerate(pairs) if a != b and 1 not in (a, b) and -1 not in (a, b)]
    if not apart:
        return None
    spoken = ", ".join(f"axis {-1 - i}: {problem.named(a)} against {problem.named(b)}" for i, a, b in apart)
    facts = f"Shapes {list(target)} and {list(have)} are aligned from the right and differ on {spoken}."
    return answer(facts, list(_fits(target, have, apart)), problem)


def _fits(target: Sequence[int], have: Sequence[int], apart: Sequence[tuple[int, int, int]]) -> Iterator[Reading]:
    for axes in _inserted(target, have):
        shape = list(have)
        for axis in axes:
            shape.insert(axis, 1)
        index = ", ".join("None" if i in axes else ":" for i in range(len(shape)))
        sentence = f"axes of size 1 are missing at {', '.join(map(str, axes))}: as {shape} it broadcasts"
        score = 8.0 - 0.1 * sum(axes) + 0.5 * (axes[0] == 1)
        yield Reading("mask_shape", score, sentence, (f"mask[{index}]", MASK_AXES))
    axis, a, b = apart[0]
    if len(apart) == 1 and len(target) == 4 and axis == 2:
        if max(a, b) % min(a, b) == 0:
            n = max(a, b) // min(a, b)
            sentence = f"{max(a, b)} query heads meet {min(a, b)} KV heads, which are not repeated by {n}"
            yield Reading("gqa", 6.0, sentence, (REPEAT_FIX.format(n=n),))
        yield Reading("mask_shape", 4.0, f"{a} heads meet an axis of {b}", (MASK_AXES,), {"num_heads": a})
    elif len(target) <= 3 and axis <= 1 and max(a, b) > 128:
        yield Reading(
            "position", 6.0, f"{a} tokens meet a table or buffer of {b} positions", (TABLE_FIX,), {"length": a}
        )
    elif len(target) <= 2:
        sentence = f"{a} tokens meet a table or buffer of {b} positions"
        yield Reading("position", 5.0, sentence, (TABLE_FIX, f"truncate to {b} tokens"), {"length": a})
    elif (
        len(apart) == 1 and axis == 0 and max(a, b) == 2 * min(a, b) and max(a, b) in (32, 64, 128) and len(target) == 4
    ):
        sentence = f"{max(a, b)} channels of a head meet rotary tables of {min(a, b)}"
        yield Reading("position", 5.0, sentence, ("torch.cat((freqs, freqs), dim=-1) before cos() and sin()",))
    if len(target) >= 3 and axis <= 1:
        what = "keys" if axis == 0 else "queries"
        sentence = f"the mask was built for {b} {what} while the scores have {a}"
        fix = f"build the mask from the scores: (Sq, Sk) = ({target[-2]}, {target[-1]})"
        yield Reading("mask_shape", 5.2, sentence, (fix,), {"length": a})
    yield Reading("cross_dims", 3.0, f"{a} and {b} are the same size by intent, taken from different tensors", ())


def _inserted(target: Sequence[int], have: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Give the places of new axes with which the smaller shape broadcasts to the target."""
    missing = len(target) - len(have)
    if missing <= 0:
        return
    for axes in combinations(range(len(target)), missing):
        shape = list(have)
        for axis in axes:
            shape.insert(axis, 1)
        if all(b in (1, a) for a, b in zip(target, shape, strict=True)):
            yield axes


def in_place(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain an in-place operation whose result would be larger than the tensor."""
    have, wide = numbers(match["a"]), numbers(match["b"])
    said = f"An in-place operation cannot grow a tensor of shape {list(have)} to {list(wide)}"
    extra = list(wide[: len(wide) - len(have)])
    if extra:
        said += (
            f": the other operand brings {len(extra)} more axes in front ({extra}), as scores folded to (B * H, "
            "Sq, Sk) meet a mask with an axis of its own for the batch or the heads"
        )
    fixes = ("scores = scores + mask, not scores += mask", "give mask and scores the same axes, (B, H, Sq, Sk)")
    return Explanation(True, "mask_shape", said + ".", fixes)


def concatenated(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain cat, most often of past and new keys."""
    a, b = int(match["a"]), int(match["b"])
    along = match["along"]
    facts = (
        f"cat along axis {along} needs all other axes equal, and one is {problem.named(a)} against {problem.named(b)}."
    )
    readings = [
        Reading("cross_dims", 4.0, "cached and new keys come from different batches, or the cache was not cleared", ()),
    ]
    if max(a, b) % min(a, b) == 0 and min(a, b) > 1:
        n = max(a, b) // min(a, b)
        sentence = (
            f"{max(a, b)} = {n} x {min(a, b)} heads: one side of the cache holds KV heads, the other repeated heads"
        )
        fix = "cache K and V before repeat_kv, repeat after the cat"
        roles = {"num_heads": max(a, b), "num_kv_heads": min(a, b)}
        yield_score = 5.0 + (along == "2" or along == "-2")
        readings.append(Reading("gqa", yield_score, sentence, (fix,), roles))
    fix = "the cache is (B, Hkv, S, D): cat along dim=-2, after the heads are split and transposed"
    sentence = (
        f"the cache and the new keys have their axes in another order, so cat along {along} is not along the length"
    )
    readings.append(Reading("cross_dims", 3.5, sentence, (fix, "reset the cache when the batch changes")))
    return answer(facts, readings, problem)


def missing_axis(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain an axis that a tensor does not have."""
    top, got = int(match["top"]), int(match["got"])
    axes = top + 1
    kind = "softmax_dim" if problem.hints(r"softmax") else "head_split"
    said = f"The tensor has {axes} axes (0 to {top}), and axis {got} is asked for."
    if axes == 3:
        said += (
            " Three axes are (B, S, E) or (B * H, Sq, Sk): the heads were not split, or already folded into the batch."
        )
    if kind == "softmax_dim":
        return Explanation(
            True, kind, f"{said} Softmax belongs on the last axis, the keys.", ("scores.softmax(dim=-1)",)
        )
    fixes = ("x.view(B, S, H, D).transpose(1, 2) first; name axes from the end: dim=-1 is keys or channels, -2 tokens",)
    return Explanation(True, kind, said, fixes)


def too_many_indices(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain an index with more axes than the tensor has, where the text speaks of attention."""
    if not problem.hints(r"attn|attention|weights|mask|scores|heads?\b"):
        return None
    axes = int(match["axes"])
    kind = (
        "weights_reading"
        if axes == 3 and problem.hints(r"attn|weights") and not problem.hints("mask")
        else "mask_shape"
    )
    said = f"The tensor has {axes} axes and the index names more."
    if kind == "weights_reading":
        said += " nn.MultiheadAttention averages its heads by default: (B, Sq, Sk), no axis for the heads."
        return Explanation(True, kind, said, ("mha(q, k, v, average_attn_weights=False) gives (B, H, Sq, Sk)",))
    return Explanation(True, kind, said, (MASK_AXES,))


def axis_count(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain an order of axes for another number of axes."""
    have, named = int(match["have"]), int(match["named"])
    said = f"The tensor has {have} axes while {named} are named."
    if (have, named) == (3, 4):
        said += (
            " (B, S, E) has to become (B, S, H, D) before its axes can be put in order: the split into heads is "
            "missing."
        )
        fixes = ("x.view(B, S, H, D).permute(0, 2, 1, 3)",)
    elif (have, named) == (4, 3):
        said += " The heads are still an axis of their own: (B, H, S, D) has to be joined to (B, S, H * D)."
        fixes = ("x.transpose(1, 2).reshape(B, S, H * D)",)
    else:
        fixes = ("print(x.shape) before this line and name as many axes as it has",)
    return Explanation(True, "head_split", said, fixes)


RULES: tuple[Rule, ...] = (
    rule(
        r"expanded size of the tensor \((?P<a>\d+)\) must match the existing size \((?P<b>\d+)\) at non-singleton "
        r"dimension "
        r"(?P<axis>\d+)\.?(?:\s*Target sizes: \[(?P<target>[\d, ]*)\]\.?\s*Tensor sizes: \[(?P<have>[\d, ]*)\])?",
        expanded,
    ),
    rule(r"output with shape \[(?P<a>[\d, ]*)\] doesn't match the broadcast shape \[(?P<b>[\d, ]*)\]", in_place),
    rule(rf"could not be broadcast together with shapes {SHAPE.format('a')},? ?{SHAPE.format('b')}", two_shapes),
    rule(
        (
            rf"incompatible shapes (?:for broadcasting)?:? ?(?:shapes=)?\[?{SHAPE.format('a')},? (?:and |vs\.? "
            rf")?{SHAPE.format('b')}"
        ),
        two_shapes,
    ),
    rule(rf"incompatible shapes: {SHAPE.format('a')} vs\.? {SHAPE.format('b')}", two_shapes),
    rule(rf"required broadcastable shapes.*?{SHAPE.format('a')},? (?:and |vs\.? )?{SHAPE.format('b')}", two_shapes),
    rule(
        rf"Dimensions must be equal, but are \d+ and \d+ .*?input shapes: {SHAPE.format('a')}, {SHAPE.format('b')}",
        two_shapes,
    ),
    rule(
        (
            rf"shape mismatch: objects cannot be broadcast to a single shape.*?shape {SHAPE.format('a')}.*?shape "
            rf"{SHAPE.format('b')}"
        ),
        two_shapes,
    ),
    rule(
        r"Sizes of tensors must match except in dimension (?P<along>-?\d+)\. (?:Expected size|Got) (?P<a>\d+) "
        r"(?:but got size|and) (?P<b>\d+)",
        concatenated,
    ),
    rule(
        r"Dimension out of range \(expected to be in range of \[-\d+, (?P<top>\d+)\], but got (?P<got>-?\d+)",
        missing_axis,
    ),
    rule(r"input\.dim\(\) = (?P<have>\d+) is not equal to len\(dims\) = (?P<named>\d+)", axis_count),
    says(
        r"number of dims don't match in permute",
        "head_split",
        "permute names another number of axes than the tensor has. With (0, 2, 1, 3) it wants (B, S, H, D), and "
        "(B, S, E) has not been split; with three axes named, the heads are still an axis of their own.",
        "x.view(B, S, H, D).permute(0, 2, 1, 3)",
        "print(x.shape) before this line and name as many axes as it has",
    ),
    says(
        r"(?:permute\(\w*\)\W+duplicate dims are not allowed|repeated dim in permute)",
        "head_split",
        "An axis stands twice in the order given to permute; each must stand once.",
        "x.permute(0, 2, 1, 3) from (B, S, H, D) to (B, H, S, D)",
    ),
    rule(r"too many indices for tensor of dimension (?P<axes>\d+)", too_many_indices),
    says(
        r"axes don't match array",
        "head_split",
        (
            "The order of axes names another number of axes than the array has: (B, S, E) has to become (B, S, H, D) "
            "first."
        ),
        "x.reshape(B, S, H, D).transpose(0, 2, 1, 3)",
    ),
    says(
        r"Tensors must have same number of dimensions: got (?P<a>\d+) and (?P<b>\d+)",
        "head_split",
        "One tensor has <a> axes, the other <b>: with four and three, one is split into heads (B, H, S, D) and the "
        "other "
        "is not (B, S, E), as when new keys meet a cache.",
        "split and transpose first, x.view(B, S, H, D).transpose(1, 2), then torch.cat((past, x), dim=-2)",
    ),
    says(
        r"expand\(.*\[(?P<have>[\d, ]+)\]\}?, size=\[(?P<size>[\d, ]+)\]\): the number of sizes provided",
        "mask_shape",
        "A tensor with the axes [<have>] cannot expand to fewer axes, [<size>]: as when a mask (B, 1, Sq, Sk) meets "
        "scores "
        "without an axis for batch or heads.",
        "mask.squeeze(1), or give the scores the axes (B, H, Sq, Sk)",
    ),
)
