"""Readings of a reshape that does not fit: a tensor of `size` elements viewed as (B, S, H, D), its folds and joins.

Every reading assumes one thing to be other than the code believes (channels per token, heads, length, batch, packed
q/k/v) and keeps it only where the numbers then come out whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mha_core.doctor.explainers.answer import Problem, Reading
from mha_core.doctor.explainers.solve import (
    USUAL_HEAD_DIMS,
    USUAL_HEADS,
    plural,
    power_of_two,
    roundness,
    split_advice,
    times,
    usual,
)

KEY_WORDS = r"k_proj|v_proj|num_key_value|num_kv|kv_heads|n_kv|n_rep|key_states|value_states|key_layer|value_layer"
FOLD_WORDS = r"bsz \* num_heads|multi_head_attention_forward|nn/functional\.py"
LENGTH_FIX = (
    "k.view(B, k.size(1), H, D): take the length from the tensor that is viewed, not from the query",
    "check that query, key and value have the same batch size",
)
MERGE_FIX = "x.transpose(1, 2).reshape(B, S, H * D), with the layer's own width instead of x.size(-1)"


def leftover(tokens: Sequence[int], width: int, heads: int, head_dim: int, score: float) -> Reading:
    """Say that the heads do not divide the width, with what is left over."""
    used = heads * head_dim
    sentence = (
        f"{heads} heads do not divide a width of {width}: the size is {times((*tokens, width))}, and {heads} x "
        f"{head_dim} = "
        f"{used} of {width} channels, so {plural(width - used, 'channel')} per token are left over"
    ).replace("1 channel per token are", "1 channel per token is")
    roles = {"embed_dim": width, "num_heads": heads, "head_dim": head_dim}
    return Reading("divisibility", score + roundness(width), sentence, split_advice(width, heads), roles)


def _other_heads(count: int, heads: int, head_dim: int, problem: Problem) -> Reading:
    """Read a width that holds `count` whole heads instead of `heads`."""
    have = f"every token has {count * head_dim} channels = {count} x {head_dim}"
    if count < heads and heads % count == 0:
        score = 6.0 + 3 * problem.hints(KEY_WORDS) + (usual(head_dim, USUAL_HEAD_DIMS) > 0)
        sentence = f"{have}, which is {plural(count, 'KV head')} and not {heads} query heads (grouped queries)"
        fix = f"view K and V with num_kv_heads={count}, then repeat_interleave({heads // count}, dim=1) on (B, H, S, D)"
        roles = {"num_heads": heads, "num_kv_heads": count, "head_dim": head_dim}
        return Reading("gqa", score, sentence, (fix, "F.scaled_dot_product_attention(q, k, v, enable_gqa=True)"), roles)
    packed = {3 * heads: "q, k and v", 2 * heads: "k and v"}.get(count)
    if packed and not (problem.hints(KEY_WORDS) and count == 2 * heads):
        parts = count // heads
        sentence = f"{have} = {parts} x {heads} heads: {packed} are still packed in one tensor"
        fix = f"split first: x.chunk({parts}, dim=-1), or view(B, S, {parts}, {heads}, {head_dim}) and unbind(2)"
        return Reading("qkv_layout", 7.0 if parts == 3 else 5.0, sentence, (fix,), {"num_heads": heads})
    groups = [m for m in range(1, heads) if heads % m == 0 and heads + 2 * m == count]
    if groups:
        m = groups[0]
        sentence = f"{have} = {heads} query heads and 2 x {m} heads of keys and values in one tensor"
        fix = f"q, k, v = x.split([{heads} * {head_dim}, {m} * {head_dim}, {m} * {head_dim}], dim=-1) before the views"
        return Reading("qkv_layout", 6.5, sentence, (fix,), {"num_heads": heads, "num_kv_heads": m})
    is_kv = problem.hints(KEY_WORDS) and count % heads == 0
    sentence = f"{have}, so it holds {count} heads of {head_dim}, not {heads}"
    fix = f"view with {count} heads, or make the projection nn.Linear(E, {heads} * {head_dim})"
    return Reading("gqa" if is_kv else "divisibility", 3.5 + 3 * is_kv, sentence, (fix,), {"head_dim": head_dim})


def width_readings(tokens: Sequence[int], width: int, heads: int, head_dim: int, problem: Problem) -> Iterator[Reading]:
    """Read a number of channels per token that is not heads x head_dim."""
    if width // heads == head_dim:
        yield leftover(tokens, width, heads, head_dim, 10.0)
        return
    if width % head_dim == 0:
        yield _other_heads(width // head_dim, heads, head_dim, problem)
    wanted = heads * head_dim
    roles = {"embed_dim": width, "num_heads": heads}
    if width % heads == 0:
        sentence = (
            f"every token has {width} channels, so {heads} heads have a head_dim of {width // heads}, not {head_dim}"
        )
        fix = f"head_dim = {width} // {heads} = {width // heads}; compute it from the width of the tensor that is split"
        yield Reading("divisibility", 3.5 + roundness(width) / 2, sentence, (fix,), roles)
    elif width % head_dim:
        sentence = f"every token has {width} channels, while {heads} x {head_dim} = {wanted} are asked for"
        yield Reading("divisibility", 4.0 + roundness(width) / 2, sentence, split_advice(width, heads), roles)


def length_readings(target: Sequence[int], size: int, where: int) -> Iterator[Reading]:
    """Read another length or batch than the target has; `where` is the axis of the length."""
    other_than_length = math.prod(target) // target[where]
    if size % other_than_length == 0 and where:
        have, wanted = size // other_than_length, target[where]
        sentence = (
            f"the tensor has length {have} where the view takes {wanted}: keys viewed with the length of the query"
        )
        yield Reading("cross_dims", 5.0, sentence, LENGTH_FIX, {"length": have, "batch": target[0]})
    other_than_batch = math.prod(target[1:])
    if size % other_than_batch == 0:
        have, wanted = size // other_than_batch, target[0]
        sentence = f"the tensor holds a batch of {have} where the view takes {wanted}"
        fix = "take the batch from the tensor itself (x.size(0)); the last batch of an epoch may be smaller"
        partial = have < wanted and not power_of_two(wanted // math.gcd(have, wanted))
        roles = {"batch": have, "length": target[where]}
        yield Reading("cross_dims", 3.5 + 2.5 * partial, sentence, (fix, LENGTH_FIX[1]), roles)


def four(target: Sequence[int], size: int, problem: Problem) -> Iterator[Reading]:
    """Read (B, S, H, D) or (B, H, S, D) (or (B, H, D, S), which gives the same products)."""
    head_dim = target[3]
    for where in (2, 1):
        heads, tokens = target[where], (target[0], target[3 - where])
        likely = 0.5 * (where == 2) + usual(heads, USUAL_HEADS) / 3
        if size % math.prod(tokens) == 0:
            for reading in width_readings(tokens, size // math.prod(tokens), heads, head_dim, problem):
                yield _more(reading, likely)
        for reading in length_readings(target, size, 3 - where):
            yield _more(reading, likely - 0.5 * (size > math.prod(target)))


def five(target: Sequence[int], size: int, problem: Problem) -> Iterator[Reading]:
    """Read a packed view such as (B, S, 3, H, D) or (B, S, H, 3, D)."""
    axis = next((i for i in (2, 0, 3, 1) if target[i] == 3), None)
    if axis is None:
        return
    rest = [n for i, n in enumerate(target) if i != axis]
    if size == math.prod(rest):
        sentence = "the tensor holds one projection only, not q, k and v packed together"
        fix = "view q, k and v apart as (B, S, H, D), or project with nn.Linear(E, 3 * E)"
        yield Reading("qkv_layout", 8.0, sentence, (fix,))
    elif size % 3 == 0:
        for reading in four(rest, size // 3, problem):
            said = f"of each of q, k and v: {reading.sentence}"
            yield Reading(reading.kind, reading.score, said, reading.try_, reading.roles)


def three(target: Sequence[int], size: int, problem: Problem) -> Iterator[Reading]:
    """Read (B, S, E), the fold (S, B * H, D) of nn.MultiheadAttention, and (B * H, S, D)."""
    yield from _joined(target, size, problem)
    yield from _folded(target, size, problem)
    yield from _cut(target, size)


def _joined(target: Sequence[int], size: int, problem: Problem) -> Iterator[Reading]:
    """Read the joining of heads, (B, S, E): another width, length or batch."""
    batch, length, width = target
    if size % (batch * length) == 0:
        have = size // (batch * length)
        cut = [h for h in range(2, 129) if have < width and h * (width // h) == have]
        if cut:
            tokens = (batch, length)
            sentence = (
                f"{cut[0]} x {have // cut[0]} = {have} channels per token come back from the heads, not "
                f"{width} (size {times((*tokens, have))}): {cut[0]} does not divide {width}, {width - have} were "
                "lost"
            )
            yield Reading(
                "divisibility", 9.0 if width >= 64 else 5.5, sentence, split_advice(width, cut[0]), {"embed_dim": width}
            )
        ratio = max(have, width) / min(have, width)
        even = ratio.is_integer() and power_of_two(int(ratio))
        sentence = (
            f"the size is {times((batch, length, have))}: every token has {have} channels, not {width}; the "
            "width of the input was taken for the layer's own (heads x head_dim)"
        )
        score = 5.0 + even + (length % 2) + 0.3 * roundness(width) - 3 * problem.hints(FOLD_WORDS)
        yield Reading(
            "divisibility", score, sentence, (MERGE_FIX,), {"batch": batch, "length": length, "embed_dim": have}
        )
    yield from (_more(reading, -2.5) for reading in length_readings(target, size, 1))


def _folded(target: Sequence[int], size: int, problem: Problem) -> Iterator[Reading]:
    """Read the fold of nn.MultiheadAttention, (S, B * H, D): the keys bring another batch than the query."""
    first, fold, head_dim = target
    if size % (first * head_dim):
        return
    have = size // (first * head_dim)
    common = math.gcd(have, fold)
    known = problem.sizes.get("num_heads")
    heads = known if known and common % known == 0 else common
    batch, wanted = have // heads, fold // heads
    ratio = max(have, fold) / min(have, fold)
    odd = not (ratio.is_integer() and power_of_two(int(ratio)))
    score = 5.0 + (fold % 2 == 0) + odd + 0.5 * (fold in (2, 4, 8, 12, 16, 32, 64)) + 3 * problem.hints(FOLD_WORDS)
    score -= 4 * (heads == 1)
    swapped = f"batch_first=False reads axis 0 as the length, so a key length of {batch} is taken for the batch"
    sentence = (
        f"{size} = {first} x {have} x {head_dim}: the factor {have}, where {fold} = batch x heads is wanted, is with "
        f"{heads} heads {batch} x {heads} against {wanted} x {heads}; key and query differ along the batch axis, "
        f"{batch} against {wanted}. Either {swapped}, or the batches really differ"
    )
    fixes = (
        "nn.MultiheadAttention(..., batch_first=True) for tensors (B, S, E), or pass (S, B, E)",
        f"q.expand({batch}, -1, -1) where one query serves {batch} sequences" if wanted == 1 else LENGTH_FIX[1],
    )
    roles = {"num_heads": heads, "head_dim": head_dim}
    yield Reading("cross_dims", score, sentence, fixes, roles)


def _cut(target: Sequence[int], size: int) -> Iterator[Reading]:
    """Read (B * H, S, D) where H does not divide E: channels per head are size / (B * H * S), cut down to D."""
    rows, head_dim = target[0] * target[1], target[2]
    if size // rows != head_dim or size % rows == 0:
        return
    step = rows // math.gcd(rows, size)
    for heads in range(step, 129, step):
        if rows % heads == 0 and (target[0] % heads == 0 or target[1] % heads == 0):
            tokens = (target[0], target[1] // heads) if target[1] % heads == 0 else (target[0] // heads, target[1])
            reading = leftover(tokens, size // (rows // heads), heads, head_dim, 8.0)
            yield _more(reading, usual(heads, USUAL_HEADS) / 3)


def two(target: Sequence[int], size: int, problem: Problem) -> Iterator[Reading]:
    """Read (tokens, E)."""
    tokens, width = target
    if size % (tokens * width) == 0 and width in USUAL_HEAD_DIMS and tokens in USUAL_HEADS:
        sentence = (
            f"{tokens} x {width} are the heads and channels of one token, and the tensor holds "
            f"{size // (tokens * width)}"
        )
        fix = f"x.view(B, S, {tokens}, {width}).transpose(1, 2): keep the axes of batch and length"
        yield Reading("head_split", 6.0, f"{sentence} tokens", (fix,), {"num_heads": tokens, "head_dim": width})
    if size % tokens == 0:
        have = size // tokens
        sentence = f"the size is {tokens} x {have}, so every row has {have} channels, not {width}"
        yield Reading("divisibility", 5.0, sentence, (MERGE_FIX,), {"embed_dim": have})
    if size % width == 0:
        have = size // width
        sentence = f"the size is {have} x {width}, so there are {have} rows and not {tokens}"
        yield Reading("cross_dims", 5.0, sentence, ("x.reshape(-1, x.size(-1)): let the number of rows follow",))


def _more(reading: Reading, score: float) -> Reading:
    return Reading(reading.kind, reading.score + score, reading.sentence, reading.try_, reading.roles)
