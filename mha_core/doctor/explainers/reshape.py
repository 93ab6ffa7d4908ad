"""Views and reshapes that do not fit: "shape '[2, 10, 7, 73]' is invalid for input of size 10240" and its relatives."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from mha_core.doctor.explainers import split
from mha_core.doctor.explainers.answer import Explanation, Problem, Reading, Rule, answer, numbers, rule, says
from mha_core.doctor.explainers.solve import USUAL_HEAD_DIMS, head_counts, roundness, split_advice, times, usual

MASK_VIEW = "the size is {n} x {n} but the view wants {rows} x {columns}: an attn_mask for length {n}"


def invalid_view(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain a target shape against the number of elements there are."""
    return solve_view(numbers(match["shape"]), int(match["size"]), problem)


def known_shape(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain a text that tells the shape of the tensor too: (B, S, E) becomes a known batch, length and width."""
    have, shape = numbers(match["have"]), numbers(match["shape"])
    told = dict(zip(("batch", "q_len", "embed_dim"), have, strict=True)) if len(have) == 3 else {}
    return solve_view(shape, math.prod(have), Problem(problem.message, problem.whole, told | dict(problem.sizes)))


def solve_view(target: Sequence[int], size: int, problem: Problem) -> Explanation | None:
    """Solve for the factor that does not fit; None where the shape is no attention shape at all."""
    if size == 0 or 0 in target:
        return _nothing(target, size)
    holes = [i for i, n in enumerate(target) if n < 0]
    wanted = math.prod(n for n in target if n > 0)
    if not holes and wanted == size:
        return None  # they agree: whatever was wrong, it is not this
    if holes:
        facts = f"{wanted} elements per step of the axis that -1 leaves open do not divide {size}."
        readings = list(_with_hole(target, size, holes[0], problem))
    else:
        facts = f"The wanted shape has {times(target)} = {wanted} elements, the tensor has {size}."
        readings = [*_mask(target, size), *_by_axes(target, size, problem)]
    return answer(facts, readings, problem) or _no_factor(facts, wanted, size)


def _nothing(target: Sequence[int], size: int) -> Explanation:
    """Explain a size of 0 on either side."""
    if size == 0:
        said = (
            "The tensor is empty: one of its axes (batch, length) is 0, as after a mask or a slice that leaves nothing."
        )
        return Explanation(True, "cross_dims", said, ("print(x.shape) before the view, and skip empty input",))
    said = (
        f"The wanted shape {list(target)} has an axis of 0: head_dim = embed_dim // num_heads is 0 with more "
        "heads than channels."
    )
    return Explanation(True, "divisibility", said, ("num_heads <= embed_dim, and a divisor of it",))


def _by_axes(target: Sequence[int], size: int, problem: Problem) -> Iterator[Reading]:
    readers = {2: split.two, 3: split.three, 4: split.four, 5: split.five}
    if len(target) in readers:
        yield from readers[len(target)](target, size, problem)


def _no_factor(facts: str, wanted: int, size: int) -> Explanation:
    common = math.gcd(wanted, size)
    said = (
        f"{facts} They share the factor {common}: {wanted // common} against {size // common} are left, and no "
        "change of one size alone (heads, width, length, batch) makes them equal, so two sizes differ or axes "
        "are mixed up."
    )
    return Explanation(
        True, "head_split", said, ("print(x.shape) before the view; then x.view(B, S, H, D).transpose(1, 2)",)
    )


def _mask(target: Sequence[int], size: int) -> Iterator[Reading]:
    """Read (1, 1, S, S) of n * n elements: the mask of another length, as the fast path of the encoder views it."""
    n = math.isqrt(size)
    if len(target) == 4 and target[:2] == (1, 1) and target[2] == target[3] and n * n == size:
        said = MASK_VIEW.format(n=n, rows=target[2], columns=target[3])
        yield Reading("mask_shape", 12.0, said, (f"make the mask ({target[2]}, {target[3]}), or slice it to that",))


def _with_hole(target: Sequence[int], size: int, hole: int, problem: Problem) -> Iterator[Reading]:
    """Read a shape in which one axis is -1."""
    last = len(target) - 1
    if len(target) == 4 and hole in (2, 3) and target[0] * target[1] > 0:
        yield from _open_split(target, size, hole)
    if len(target) == 4 and hole in (0, 1):
        for heads in {target[2], target[3 - 2]} - {-1}:
            yield from _open_length((target[0] if target[0] > 0 else 1,), heads, target[3], size)
    if len(target) == 3 and hole != last:
        fold = target[0] if hole == 1 else target[1]
        for heads in (h for h in range(1, 129) if fold % h == 0):
            yield from _open_length((fold // heads,), heads, target[2], size)
    if hole != last:
        sentence = f"the last axis is not {target[last]} channels wide: {size} is no multiple of it"
        if size % target[last]:
            yield Reading("divisibility", 3.0, sentence, (split.MERGE_FIX,))
    yield from _odd_batch(target, size, hole)


def _open_split(target: Sequence[int], size: int, hole: int) -> Iterator[Reading]:
    """Read (B, S, H, -1) and (B, S, -1, D): the other factor does not divide the channels per token."""
    tokens, factor = target[:2], target[5 - hole]
    if size % math.prod(tokens) == 0:
        width = size // math.prod(tokens)
        if hole == 3:
            yield split.leftover(tokens, width, factor, width // factor, 10.0)
        else:
            sentence = f"every token has {width} channels, which is no multiple of head_dim {factor}"
            fix = split_advice(width, max(1, width // factor))
            yield Reading(
                "divisibility", 8.0 + roundness(width), sentence, fix, {"embed_dim": width, "head_dim": factor}
            )
    elif size % target[0] == 0:
        sentence = (
            f"{size} / batch {target[0]} = {size // target[0]} is no multiple of the length {target[1]}: the "
            "tensor has another"
        )
        yield Reading(
            "cross_dims", 8.0, f"{sentence} length, as keys viewed with the length of the query", split.LENGTH_FIX
        )


def _open_length(known: Sequence[int], heads: int, head_dim: int, size: int) -> Iterator[Reading]:
    """Read a shape whose length is left open: a width between H * D and H * (D + 1), or other KV heads."""
    rest = math.prod(known)
    for width in range(heads * head_dim + 1, heads * (head_dim + 1)):
        if size % (rest * width) == 0:
            tokens = (*known, size // (rest * width))
            yield split.leftover(tokens, width, heads, head_dim, 6.0 + (roundness(width) > 0.5))
    for count in (h for h in range(1, heads) if heads % h == 0):
        if size % (rest * count * head_dim) == 0 and usual(head_dim, USUAL_HEAD_DIMS):
            sentence = f"the tensor holds {count} KV heads x {head_dim}, not {heads} heads"
            yield Reading("gqa", 4.0, sentence, (f"view K and V with {count} heads",), {"num_kv_heads": count})


def _odd_batch(target: Sequence[int], size: int, hole: int) -> Iterator[Reading]:
    if hole != 0 and target[0] > 1 and size % target[0]:
        sentence = f"the tensor's batch is not {target[0]}, which does not divide {size}"
        yield Reading("cross_dims", 5.0, sentence, ("take the batch from the tensor itself: x.size(0)",))


def unflatten(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain `unflatten`, which tells the width and the sizes asked for."""
    sizes, width = numbers(match["sizes"]), int(match["width"])
    if len(sizes) == 2 and min(sizes) > 0:
        readings = split.width_readings((), width, sizes[0], sizes[1], problem)
        return answer(f"{times(sizes)} = {math.prod(sizes)}, but the axis has {width}.", list(readings), problem)
    said = f"The axis has {width} channels, the sizes {list(sizes)} multiply to {math.prod(sizes)}."
    return Explanation(True, "divisibility", said, (f"head counts that divide {width}: {head_counts(width)}",))


def wanted_total(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain the text of TensorFlow, which tells two totals only."""
    have, wanted = int(match["have"]), int(match["wanted"])
    found = [
        split.leftover((wanted // (h * d),), have // (wanted // (h * d)), h, d, 5.0)
        for h in range(2, 65)
        for d in range(2, 257)
        if wanted % (h * d) == 0 and have % (wanted // (h * d)) == 0 and have // (wanted // (h * d)) // h == d
    ]
    facts = f"The tensor has {have} elements, the wanted shape {wanted}."
    return answer(facts, found, problem) or _no_factor(facts, wanted, have)


FLOAT = "<op> got a float where a whole number is needed: / always gives a float, also where it divides evenly"
RULES: tuple[Rule, ...] = (
    rule(r"size '?\[(?P<shape>[-\d, x]+)\]'? is invalid for input (?:of|with) (?P<size>\d+) elements", invalid_view),
    rule(r"Input shape: ?\{(?P<have>[\d, ]+)\}, requested shape: ?\{(?P<shape>[-\d, ]+)\}", known_shape),
    rule(r"array of shape [\[(](?P<have>[\d, ]+)[\])] \(size \d+\) into shape [\[(](?P<shape>[-\d, ]+)", known_shape),
    rule(
        r"(?:array|tensor) of size (?P<size>\d+) cannot be reshaped into shape [\[(](?P<shape>[-\d, ]+)", invalid_view
    ),
    rule(r"shape '?[\[(](?P<shape>[-\d, ]+)[\])]'? is invalid for input of size (?P<size>\d+)", invalid_view),
    rule(
        r"array of (?:shape [\[(][\d, ]+[\])] \()?size (?P<size>\d+)\)? into shape [\[(]?(?P<shape>[-\d, ]+)",
        invalid_view,
    ),
    rule(r"tensor with (?P<have>\d+) values, but the requested shape has (?P<wanted>\d+)", wanted_total),
    rule(
        r"Cannot reshape a tensor with (?P<size>\d+) elements to shape \[(?P<shape>[-\d,? ]+)\]",
        invalid_view,
    ),
    rule(
        r"Provided sizes \[(?P<sizes>[-\d, ]+)\] don't multiply up to the size of dim -?\d+ \((?P<width>\d+)", unflatten
    ),
    says(
        r"view size is not compatible",
        "head_split",
        "view was called on a tensor whose memory is not in the order of its axes, as after transpose or permute "
        "(non-contiguous), so it cannot join them without copying. A view that passes only because the transpose is "
        "missing would be worse: it joins channels of other tokens, with no error.",
        "x.transpose(1, 2).reshape(B, S, H * D), or .contiguous().view(...)",
        "keep the transpose(1, 2) from (B, H, S, D) to (B, S, H, D) before joining: reshape silences its absence too",
    ),
    says(
        r"(?P<op>view|reshape|empty|expand|unflatten|repeat)\(\):? argument '\w+'.{0,120}?\bfloat\b",
        "divisibility",
        f"{FLOAT}. The usual source is head_dim = embed_dim / num_heads.",
        "head_dim = embed_dim // num_heads, after assert embed_dim % num_heads == 0",
    ),
    says(
        r"cannot reshape tensor of 0 elements into shape",
        "cross_dims",
        "The tensor is empty (one of its axes has length 0), so -1 cannot be worked out: often a sequence that lost "
        "all "
        "its tokens, or an empty last batch.",
        "check x.shape before the view and skip empty sequences",
    ),
)
