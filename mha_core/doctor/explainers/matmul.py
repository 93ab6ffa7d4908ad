"""Products whose inner sizes differ: mat1 and mat2, bmm, baddbmm, einsum, older texts, NumPy, JAX, TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mha_core.doctor.explainers.answer import Explanation, Problem, Reading, Rule, answer, numbers, rule, says
from mha_core.doctor.explainers.broadcast import LENGTH_OF_K, REPEAT_FIX
from mha_core.doctor.explainers.solve import USUAL_HEAD_DIMS, USUAL_HEADS, plural, split_advice, usual

TRANSPOSE = "scores = q @ k.transpose(-2, -1)"
KEY_FIX = "nn.MultiheadAttention(embed_dim, num_heads, kdim={k}, vdim={k}), or nn.Linear({k}, E) for K and V"


def product(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain (rows x inner) times (inner x columns) with two different inner sizes."""
    (rows, width), (inner, columns) = numbers(match["a"])[-2:], numbers(match["b"])[-2:]
    if width == inner:
        return None
    facts = (
        f"The left matrix has {problem.named(width)} columns, the right one {problem.named(inner)} rows; they "
        "must be equal."
    )
    return answer(facts, list(_products(rows, width, inner, columns, problem)), problem)


def _products(rows: int, width: int, inner: int, columns: int, problem: Problem) -> Iterator[Reading]:
    layer = f"nn.Linear({inner}, {columns})"
    cut = [h for h in range(2, 129) if h * (inner // h) == width < inner]
    if cut:
        heads = cut[0]
        sentence = (
            f"{heads} heads x {width // heads} = {width} channels were joined where {layer} expects {inner}: "
            f"{heads} does not divide {inner}, {plural(inner - width, 'channel')} got lost in the split"
        )
        yield Reading(
            "divisibility",
            9.0 if inner >= 64 else 5.0,
            sentence,
            split_advice(inner, heads),
            {"embed_dim": inner, "num_heads": heads},
        )
    if inner % width == 0 and 4 <= width < inner and inner // width in USUAL_HEADS:
        heads = inner // width
        sentence = (
            f"{layer} expects {inner} = {heads} x {width} channels and gets the {width} of one head: heads "
            "not joined, or the input was split before it was projected"
        )
        fixes = (
            "x.transpose(1, 2).reshape(B, S, H * D) before the output projection",
            "project first, then split into heads",
        )
        score = (6.5 if width in USUAL_HEAD_DIMS else 5.0) + 0.5 * (columns != width) - 2 * (rows * heads < 32)
        yield Reading("head_split", score, sentence, fixes, {"num_heads": heads, "head_dim": width, "embed_dim": inner})
    if width == columns:
        sentence = (
            f"both are (n, {width}), as queries ({rows}, {width}) and keys ({inner}, {width}): the transpose is missing"
        )
        yield Reading(
            "head_split", 5.0, sentence, (TRANSPOSE, "x @ weight.t(), or F.linear(x, weight)"), {"head_dim": width}
        )
    if rows == inner:
        sentence = f"the factor that should be transposed is the left one: {rows} = {inner} rows on both sides"
        yield Reading("head_split", 4.0, sentence, (TRANSPOSE,))
    if width == 3 * inner:
        sentence = f"{width} = 3 x {inner}: q, k and v are still packed when they reach {layer}"
        yield Reading("qkv_layout", 7.5, sentence, (f"q, k, v = x.split({inner}, dim=-1) before it",))
    sentence = (
        f"{layer} gets tensors of width {width}, not {inner}: keys and values of another width than embed_dim "
        "(kdim, vdim), or axes in another order, so that a length or a batch stands where the channels should"
    )
    fix = KEY_FIX.format(k=width)
    yield Reading(
        "cross_dims", 6.2, sentence, (fix, "print(x.shape): the last axis must be the channels"), {"embed_dim": inner}
    )


def batched(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain batch2, which should be (batch, inner, ...) and is another."""
    want, have = numbers(match["want"]), numbers(match["have"])
    (batch, inner), (got_batch, got_inner) = want, have
    readings: list[Reading] = []
    facts = f"The second factor should begin with [{batch}, {inner}] and begins with [{got_batch}, {got_inner}]."
    if batch != got_batch:
        readings.append(_other_batch(batch, got_batch))
    if inner != got_inner:
        is_width = usual(inner, USUAL_HEAD_DIMS) > 0 or inner == problem.sizes.get("head_dim")
        sentence = f"{inner} are the channels of q, {got_inner} the tokens of k: k is not transposed"
        readings.append(
            Reading("head_split", 5.0 + 2 * is_width, sentence, (TRANSPOSE,), {"length": got_inner, "head_dim": inner})
        )
        sentence = f"the weights have {inner} keys and V has {got_inner}: K and V come with different lengths"
        fix = "take K and V from the same memory, with the same padding and cache: k.shape[-2] == v.shape[-2]"
        readings.append(Reading("cross_dims", 6.0, sentence, (fix,), {"k_len": inner}))
        sentence = f"q has {inner} channels per head and k {got_inner}, from projections of different widths"
        roles = {"head_dim": inner}
        readings.append(Reading("cross_dims", 3.5, sentence, ("give q and k the same head_dim",), roles))
    return answer(facts, readings, problem)


def _other_batch(batch: int, got: int) -> Reading:
    large, small = max(batch, got), min(batch, got)
    sentence = f"the first axes, batch or batch x heads, are {batch} and {got}"
    if large % small == 0:
        n = large // small
        sentence += f", a factor of {n}: heads folded on one side only, KV heads not repeated, or another batch"
        fix = f"repeat K and V {n} times along their heads before folding them into the batch"
        return Reading("cross_dims", 5.0, sentence, (fix, "fold q, k and v alike: x.reshape(B * H, S, D)"))
    return Reading("cross_dims", 5.0, sentence, ("give query, key and value one batch size",))


def batches(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain a bmm of different batch counts."""
    a, b = int(match["a"]), int(match["b"])
    return answer("", [_other_batch(a, b)], problem)


LETTERS = {
    "b": ("cross_dims", "the batch", "give query, key and value one batch size"),
    "h": ("gqa", "the heads", ""),
    "n": ("cross_dims", "the heads or the length", "name the axes of both operands alike"),
    "d": ("cross_dims", "the channels of a head", "give q and k the same head_dim"),
    "e": ("cross_dims", "the channels", "give both the same width"),
    "c": ("cross_dims", "the channels", "give both the same width"),
}


def subscript(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain an einsum letter that stands for two sizes."""
    letter, got, seen = match["letter"], int(match["got"]), int(match["seen"])
    kind, what, fix = LETTERS.get(
        letter.lower(), ("cross_dims", "a length", "use one letter per length: bhqd,bhkd->bhqk")
    )
    facts = (
        f"The letter {letter} stands for {problem.named(seen)} in one operand and {problem.named(got)} in the other."
    )
    readings = [Reading(kind, 4.0, f"the letter is {what}, which must be equal", (fix,) if fix else (LENGTH_OF_K,))]
    if letter.lower() in ("h", "n", "a") and max(seen, got) % min(seen, got) == 0 and max(seen, got) <= 128:
        n = max(seen, got) // min(seen, got)
        sentence = (
            f"{max(seen, got)} query heads meet {min(seen, got)} KV heads, each for {n} of them: they are not repeated"
        )
        fix = "torch.einsum('bgrqd,bgkd->bgrqk', q.unflatten(1, (Hkv, H // Hkv)), k), without copies"
        roles = {"num_heads": max(seen, got), "num_kv_heads": min(seen, got)}
        readings.append(Reading("gqa", 6.0, sentence, (REPEAT_FIX.format(n=n), fix), roles))
    elif kind == "gqa":
        readings = [
            Reading(
                "head_split", 6.0, f"the letter is the heads: K was split into {got} and not {seen}", (LENGTH_OF_K,)
            )
        ]
    return answer(facts, readings, problem)


def subscript_count(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain an equation that names more or fewer axes than the operand has."""
    named, have = int(match["named"]), int(match["have"])
    said = f"The equation names {named} axes of an operand that has {have}."
    if (named, have) == (4, 3):
        said += " (B, S, E) has not been split into heads, (B, H, S, D)."
    return Explanation(True, "head_split", said, ("x.view(B, S, H, D).transpose(1, 2) before the einsum",))


PAIR = r"[\[(]?(?P<{}>\d+(?: ?x ?|, ?)\d+)[\])]?"
SHAPE = r"[\[(](?P<{}>[\d, ]+)[\])]"
RULES: tuple[Rule, ...] = (
    says(
        r"size mismatch, got (?:input|vec|mat)",
        "cross_dims",
        (
            "A matrix and a vector of another size meet: a linear layer whose input has another width than it was "
            "built "
            "for."
        ),
        "print(x.shape): the last axis must be the layer's in_features",
    ),
    rule(rf"mat1 and mat2 shapes cannot be multiplied \({PAIR.format('a')} and {PAIR.format('b')}\)", product),
    rule(rf"size mismatch,? m1: {PAIR.format('a')},? m2: {PAIR.format('b')}", product),
    rule(rf"mat1 dim 1 must match mat2 dim 0(?:.*?{PAIR.format('a')}.*?{PAIR.format('b')})", product),
    says(
        r"mat1 dim 1 must match mat2 dim 0",
        "cross_dims",
        "The input's last axis is not the in_features of a linear layer (this version tells no sizes): keys and values "
        "of another width than embed_dim, heads that were not joined, or axes in another order.",
        "print(x.shape, layer.in_features) before the call: the last axis must be the channels",
        "kdim=, vdim= in nn.MultiheadAttention; x.transpose(1, 2).reshape(B, S, H * D) before the output projection",
    ),
    says(
        r"(?:output subscript|Unknown axis) (?P<letter>\w+) (?:on right side|does not appear in the equation)",
        "head_split",
        "The letter <letter> stands in the result and in no operand; a product cannot make an axis. Where it is "
        "the heads, the operands were not split: they are (B, S, E), not (B, H, S, D).",
        "x.view(B, S, H, D).transpose(1, 2) for q and k, then einsum('bhqd,bhkd->bhqk', q, k)",
    ),
    says(
        r"output subscript (?P<letter>\w) appears more than once",
        "head_split",
        "The letter <letter> stands twice in the result: queries and keys need two letters, even where both have one "
        "length.",
        "einsum('bhqd,bhkd->bhqk', q, k)",
    ),
    says(
        r"einsum\(\)\W+(?P<more>more|fewer) operands were provided than specified",
        "head_split",
        "The equation has an operand for each part between its commas, and <more> tensors were given.",
        "einsum('bhqd,bhkd->bhqk', q, k): two parts, two operands",
    ),
    rule(rf"shapes \(?{SHAPE.format('a')} and {SHAPE.format('b')} not aligned", product),
    rule(rf"Matrix size-incompatible: In\[0\]: {SHAPE.format('a')}, In\[1\]: {SHAPE.format('b')}", product),
    rule(
        r"size for first two dimensions of batch2 tensor to be: \[(?P<want>\d+, \d+)\] but got: \[(?P<have>\d+, \d+)\]",
        batched,
    ),
    rule(r"batch1 and batch2 must have same number of batches,? got (?P<a>\d+) and (?P<b>\d+)", batches),
    rule(
        (
            r"subscript (?P<letter>\w) has size (?P<got>\d+) for operand \d+ which does not broadcast with previously "
            r"seen size (?P<seen>\d+)"
        ),
        subscript,
    ),
    rule(
        (
            r"Size of label '(?P<letter>\w)' for operand \d+ \((?P<got>\d+)\) does not match previous terms "
            r"\((?P<seen>\d+)\)"
        ),
        subscript,
    ),
    rule(
        r"number of subscripts in the equation \((?P<named>\d+)\) (?:does not match|is more than) the number of "
        r"dimensions "
        r"\((?P<have>\d+)\)",
        subscript_count,
    ),
    says(
        r"size (?P<b>\d+) is different from (?P<a>\d+)\)",
        "cross_dims",
        "The left factor has <a> columns, the right one <b> rows, and they must be equal: a width of channels other "
        "than the "
        "projection's, or keys that are not transposed.",
        "scores = q @ k.swapaxes(-2, -1); print both shapes before it",
    ),
    says(
        r"contracting dimensions to have the same shape, got \(?\[?(?P<a>\d+),?[\])]? and [\[(]?(?P<b>\d+)",
        "cross_dims",
        "The product runs over an axis of <a> on one side and <b> on the other: a width of channels other than the "
        "projection's, or keys that are not transposed.",
        "jnp.einsum('bhqd,bhkd->bhqk', q, k) names every axis",
    ),
    says(
        (
            r"Expected tensor to have size (?P<a>\d+) at dimension (?P<axis>\d+), but got size (?P<b>\d+) for argument "
            r"#2 '?batch2"
        ),
        "cross_dims",
        "In the batched product the second factor has <b> on axis <axis> where <a> is needed: V with another length "
        "than K "
        "has, keys that are not transposed, or another batch.",
        TRANSPOSE,
        "k.shape[-2] == v.shape[-2] and equal batches",
    ),
    says(
        r"Expected batch2_sizes\[0\] == bs|Incompatible matrix sizes for (?:bmm|baddbmm)|wrong matrix size at .*TH",
        "cross_dims",
        "In the batched product (B * H, Sq, inner) @ (B * H, inner, n) the batches or the inner sizes differ: keys "
        "that are "
        "not transposed, V with another length than K, or heads folded on one side only.",
        TRANSPOSE,
        "print q.shape, k.shape, v.shape before the product",
    ),
    says(
        (
            r"batch[12] must be a 3D tensor|Expected 3-dimensional tensor, but got (?P<n>\d+)-dimensional tensor for "
            r"argument #\d '?batch"
        ),
        "head_split",
        "bmm and baddbmm take (B * H, S, D) with exactly three axes; the tensor has the heads still as an axis of "
        "its own, or "
        "no batch.",
        "q @ k.transpose(-2, -1), which takes (B, H, S, D), or x.reshape(B * H, S, D) first",
    ),
    says(
        r"operands do not broadcast with remapped shapes|broadcast together with remapped shapes(?P<rest>.*)",
        "cross_dims",
        "A letter of the einsum stands for different sizes in its operands: an h with query heads and KV heads, one "
        "letter for "
        "the lengths of query and key, or different batches.",
        "one letter per size: einsum('bhqd,bhkd->bhqk', q, k)",
        "repeat KV heads before: k.repeat_interleave(H // Hkv, dim=1)",
    ),
)
