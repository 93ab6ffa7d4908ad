"""Two sizes that should be equal on an axis: "The size of tensor a (8) must match the size of tensor b (2) ..."."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mha_core.doctor.explainers.answer import Explanation, Problem, Reading, Rule, answer, rule
from mha_core.doctor.explainers.solve import USUAL_HEADS, divisors, power_of_two

MASK_WORDS = r"mask|scores? ?\+|energy|attn_bias|tril|triu"
ROTARY_WORDS = r"\bcos\b|\bsin\b|rotary|rotate_half|rope|freqs"
POSITION_WORDS = r"pos_emb|position_embed|positional|pos_encod|pos_embed|self\.pe\b|\.pe\[|token_type|wpe"
KV_WORDS = r"repeat_kv|n_rep\b|key_value_heads|kv_heads|enable_gqa"
HEAD_DIMS = (32, 64, 80, 96, 128, 160, 256)
CACHE_WORDS = r"past_key|kv_cache|cache"
MOST_HEADS = 128
REPEAT_FIX = (
    "F.scaled_dot_product_attention(q, k, v, enable_gqa=True), or k.repeat_interleave({n}, dim=1) and the same for v"
)
MASK_AXES = (
    "mask[:, None, None, :] for keys (B, Sk), mask[:, None] for pairs (B, Sq, Sk): both then broadcast to "
    "(B, H, Sq, Sk)"
)
LENGTH_OF_K = "k.view(B, k.size(1), H, D): never the query's length, never -1 for the heads"
TABLE_FIX = "slice or lengthen the table of positions to the length: pos[:, :x.size(1)], or interpolate it"


def two_sizes(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain sizes a and b on an axis."""
    a, b, axis = int(match["a"]), int(match["b"]), int(match["axis"])
    readers = {0: _batch, 1: _heads, 2: _rows, 3: _keys}
    facts = f"On axis {axis} one tensor has {problem.named(a)}, the other {problem.named(b)} and they must be equal."
    readings = [*readers.get(axis, _keys)(a, b, problem), *_anywhere(a, b, axis, problem)]
    return answer(facts, readings, problem)


def _batch(a: int, b: int, problem: Problem) -> Iterator[Reading]:
    """Read axis 0: batches, batch x heads against batch, or lengths where the batch comes second."""
    large, small = max(a, b), min(a, b)
    times = large // small
    if large % small == 0:
        mask = 2 * problem.hints(MASK_WORDS) + (times in USUAL_HEADS[:6])
        sentence = f"{large} = {small} x {times}: batch x heads meets a tensor of batch {small} without its heads"
        fix = f"mask.repeat_interleave({times}, dim=0), in this order; repeat({times}, 1, 1) would mix samples"
        yield Reading("mask_shape", 3.0 + mask, sentence, (fix,), {"batch": small, "num_heads": times})
        sentence = (
            f"the batches differ by the factor {times}, as with {times} beams or views per sequence on one side only"
        )
        fix = f"k = k.repeat_interleave({times}, dim=0) and v alike, so that query, key and value have one batch"
        yield Reading("cross_dims", 4.5, sentence, (fix,), {"batch": small})
    sentence = f"query and key come with different batches, {a} and {b}, or axis 0 is the length (batch_first)"
    yield Reading("cross_dims", 4.0, sentence, ("print q.shape, k.shape: (B, S, E) with one B, batch_first=True",))
    if max(a, b) > 32:
        yield Reading("position", 2.0, f"a table of {min(a, b)} positions meets {max(a, b)} tokens", (TABLE_FIX,))


def _heads(a: int, b: int, problem: Problem) -> Iterator[Reading]:
    """Read axis 1: heads in (B, H, S, D), or the length in (B, S, E)."""
    large, small = max(a, b), min(a, b)
    if large > MOST_HEADS:
        sentence = f"axis 1 is the length here: {large} tokens (or patches) meet a table of {small} positions"
        if a < b:
            sentence = f"axis 1 is the length here: {a} tokens meet a table of {b} positions"
        yield Reading("position", 6.0, sentence, (TABLE_FIX, f"truncate to {small} tokens"), {"length": large})
        sentence = f"two sequences of {a} and {b} tokens are added or multiplied token by token"
        yield Reading(
            "cross_dims", 3.0, sentence, ("only attention may mix lengths; residuals need the query's length",)
        )
        return
    is_mask = 4 * problem.hints(MASK_WORDS)
    if a % b == 0:
        roles = {"num_heads": a, "num_kv_heads": b}
        sentence = (
            f"{a} query heads meet {b} KV heads (grouped queries), each for {a // b} of them; they are not repeated"
        )
        yield Reading("gqa", 6.0, sentence, (REPEAT_FIX.format(n=a // b),), roles)
    else:
        inferred = 6.0 if b > a and not (power_of_two(b) and not power_of_two(a)) else 4.5
        sentence = (
            f"{a} heads meet {b}: K was viewed with the length of the query and -1 for the heads, so that {b} "
            f"= Sk * {a} / Sq came out as its head count"
        )
        yield Reading("head_split", inferred, sentence, (LENGTH_OF_K,), {"num_heads": a})
        if a > b > 1:
            grouped = problem.sizes.get("num_kv_heads") == b or problem.hints(KV_WORDS)
            sentence = f"{b} KV heads do not divide {a} heads, so they cannot be repeated to match"
            fix = f"num_kv_heads among {', '.join(str(d) for d in divisors(a))}"
            score = 6.0 if grouped else 4.6
            yield Reading("gqa", score, sentence, (fix,), {"num_heads": a, "num_kv_heads": b})
    if b % a == 0:
        roles = {"num_heads": b, "num_kv_heads": a}
        sentence = f"{b} heads meet {a} KV heads; {a} divides {b}, so one side lacks its repetition by {b // a}"
        yield Reading("gqa", 4.5, sentence, (REPEAT_FIX.format(n=b // a),), roles)
    for heads, batch in ((a, b), (b, a)):
        if heads == b and a % b == 0 and not {"batch", "num_heads"} & set(problem.sizes):
            continue
        sentence = f"a mask (B, Sq, Sk) without an axis for the heads puts its batch of {batch} on the {heads} heads"
        score = 4.6 + is_mask - 0.5 * (heads == b) + 0.8 * power_of_two(heads)
        if heads == b and b % a == 0 and a < 4 and b in USUAL_HEADS:
            score += 2  # masked_fill names the mask first
        yield Reading("mask_shape", score, sentence, (MASK_AXES,), {"num_heads": heads, "batch": batch})


def _rows(a: int, b: int, problem: Problem) -> Iterator[Reading]:
    """Read axis 2: queries in (B, H, Sq, Sk), keys in (B * H, Sq, Sk), channels in (B, S, E)."""
    mask = 2 * problem.hints(MASK_WORDS)
    sentence = f"the scores have {a} on the axis of the queries, the mask {b}: it was built for another length"
    fix = "build the mask from the scores: torch.ones(Sq, Sk).tril(Sk - Sq).bool(), rows are queries, columns keys"
    yield Reading("mask_shape", 5.0 + mask, sentence, (fix,), {"length": a})
    batch, length = (a, b) if problem.sizes.get("batch") == a else (min(a, b), max(a, b))
    sentence = (
        f"a mask (B, Sk) without axes for the heads and the queries puts its batch of {batch} where the {length} "
        "queries stand"
    )
    score = (5.6 if batch <= 64 else 4.0) + mask
    yield Reading("mask_shape", score, sentence, (MASK_AXES,), {"batch": batch, "length": length})
    if a % b == 0 and problem.sizes.get("num_heads") == a:
        sentence = f"heads stand on axis 2, (B, S, H, D), and {a} query heads meet {b} KV heads that are not repeated"
        fix = f"k.repeat_interleave({a // b}, dim=2) in this layout, or transpose(1, 2) first"
        yield Reading("gqa", 5.0, sentence, (fix,), {"num_heads": a, "num_kv_heads": b})
    if max(a, b) == 3 * min(a, b) and min(a, b) >= 32:
        sentence = f"{max(a, b)} = 3 x {min(a, b)} channels: q, k and v are still packed in one tensor"
        fix = f"q, k, v = x.split({min(a, b)}, dim=-1)"
        yield Reading("qkv_layout", 7.0, sentence, (fix,), {"embed_dim": min(a, b)})
    wide = min(a, b) >= 64 and a % 32 == 0 and b % 32 == 0
    if wide:
        sentence = f"axis 2 holds channels: a width of {a} is added to one of {b}, as input plus attention output"
        fix = f"project back to the width of the input: out_proj = nn.Linear({b}, {a})"
        yield Reading("cross_dims", 6.0, sentence, (fix,), {"embed_dim": a})
    sentence = f"rotary or position tables for {b} positions meet {a} tokens"
    yield Reading(
        "position", 3.0, sentence, (f"slice cos and sin to the positions in use, {a} of them",), {"length": a}
    )


def _keys(a: int, b: int, problem: Problem) -> Iterator[Reading]:
    """Read the last axis of four: keys in (B, H, Sq, Sk), channels in (B, H, S, D)."""
    mask = 2 * problem.hints(MASK_WORDS) + problem.hints(CACHE_WORDS)
    if a > b:
        sentence = (
            f"the scores have {a} keys, the mask {b}: with a cache that is {a - b} past + {b} new keys, and "
            "the mask was built from the new ones alone"
        )
        fix = f"torch.ones({a}, {a}).tril().bool()[-{b}:]: the last {b} rows of the full causal mask, True = may attend"
        roles = {"k_len": a} | ({"q_len": b} if "q_len" in problem.sizes else {})
        yield Reading(
            "mask_shape", 5.0 + mask, sentence, (fix, "pad the padding mask by ones for the past keys"), roles
        )
    else:
        sentence = f"the scores have {a} keys, the mask {b}: it was built for {b - a} more, or for the other sequence"
        fixes = (f"mask[..., :{a}]", "in cross-attention use the mask of the source, (B, 1, 1, Sk)")
        yield Reading("mask_shape", 5.0 + mask, sentence, fixes, {"k_len": a})


def _anywhere(a: int, b: int, axis: int, problem: Problem) -> Iterator[Reading]:
    """Read what the pasted text or the sizes speak of: rotary tables, learned positions."""
    halved = a == 2 * b or b == 2 * a
    if axis in (2, 3) and halved and max(a, b) % 2 == 0 and (axis == 3 or max(a, b) in HEAD_DIMS):
        half, full = min(a, b), max(a, b)
        sentence = (
            f"{full} channels of a head meet rotary tables cos and sin of {half}: each angle serves a pair of channels"
        )
        fix = (
            f"torch.cat((freqs, freqs), dim=-1) for the half-split layout (or repeat_interleave(2, -1)): {half} to "
            f"{full}"
        )
        score = (5.5 + (axis == 3) if full in HEAD_DIMS else 5.2 if full % 8 == 0 else 3.5) + 4 * problem.hints(
            ROTARY_WORDS
        )
        yield Reading("position", score, sentence, (fix, "apply rotary after the heads are split"), {"head_dim": full})
    if problem.hints(ROTARY_WORDS) and axis in (1, 2):
        sentence = (
            f"the rotary tables hold {b} positions for {a} tokens, or their axes are (S, 1) where (1, S) is needed"
        )
        fix = "cos[:, None] for (B, H, S, D), cos[:, :, None] for (B, S, H, D); slice both to the positions in use"
        yield Reading("position", 8.0, sentence, (fix,))
    if problem.hints(POSITION_WORDS) and axis in (0, 1, 2):
        sentence = f"{a} tokens meet {b} learned positions"
        yield Reading("position", 8.0, sentence, (TABLE_FIX,), {"length": a})


RULES: tuple[Rule, ...] = (
    rule(
        r"size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\) at (?:non-singleton "
        r")?dimension "
        r"(?P<axis>\d+)",
        two_sizes,
    ),
)
