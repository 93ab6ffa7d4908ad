"""Masks of the wrong shape, dtype or together with the wrong flag, as torch and transformers refuse them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mha_core.doctor.explainers.answer import Explanation, Problem, Reading, Rule, answer, numbers, rule, says
from mha_core.doctor.explainers.broadcast import MASK_AXES
from mha_core.doctor.explainers.key_masks import BATCH_FIRST, LIST

PER_HEAD = "mask.repeat_interleave(num_heads, dim=0), in this order: repeat(num_heads, 1, 1) would mix samples"
PADDING_FIX = "mha(x, x, x, key_padding_mask=mask), (B, Sk), True = hidden; attn_mask is (Sq, Sk)"


def pairs_mask(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain a 2-D or 3-D attn_mask of another shape than (Sq, Sk) or (B * H, Sq, Sk)."""
    have, want = numbers(match["have"]), numbers(match["want"])
    if len(want) == 3:
        return _three(have, want, problem)
    facts = (
        f"The layer sees {problem.named(want[0])} queries and {problem.named(want[1])} keys, the mask is {list(have)}."
    )
    readings = list(_padding(have, want))
    square = have[0] == have[-1]
    if square and want[0] == want[1]:
        sentence = (
            f"batch and length are exchanged: {want[0]} is the batch size, and axis 0 is read as the length "
            "(batch_first)"
        )
        readings.append(Reading("mask_shape", 6.0, sentence, (BATCH_FIRST,), {"batch": want[0], "length": have[0]}))
    if tuple(reversed(want)) == tuple(have):
        fixes = ("mask.t(): rows are queries, columns keys",)
        readings.append(Reading("mask_shape", 8.0, "the mask is transposed, (Sk, Sq) for (Sq, Sk)", fixes))
    elif square and want[0] != want[1]:
        sentence = (
            f"this is cross-attention or a cache: the mask of {have[0]} tokens is square, but {want[0]} queries meet "
        )
        fixes = (
            f"a mask ({want[0]}, {want[1]}): torch.ones({want[1]}, {want[1]}).tril()[-{want[0]}:] for a cache, or none",
        )
        readings.append(Reading("mask_shape", 6.0, f"{sentence}{want[1]} keys", fixes))
    fix = (
        f"build the mask for this input: ({want[0]}, {want[1]}), not for a fixed length; or slice mask[:{want[0]}, "
        f":{want[1]}]"
    )
    roles = {"length": want[0]}
    sentence = f"the mask was built for {have[0]} tokens and the input has {want[0]}"
    if square or have[-1] != want[1]:
        readings.append(Reading("mask_shape", 5.0, sentence, (fix,), roles))
    return answer(facts, readings, problem)


def _padding(have: tuple[int, ...], want: tuple[int, ...]) -> Iterator[Reading]:
    """Read a padding mask (B, Sk) that was given as attn_mask: its keys fit, its rows are no queries."""
    if len(have) == 2 and have[1] == want[1] and have[0] != want[0]:
        sentence = (
            f"this is a padding mask (B, Sk): its {have[1]} keys fit, and {have[0]} is the batch, not the queries"
        )
        roles = {"batch": have[0], "k_len": have[1]}
        yield Reading("mask_shape", 7.0, sentence, (PADDING_FIX,), roles)


def _three(have: tuple[int, ...], want: tuple[int, ...], problem: Problem) -> Explanation | None:
    facts = f"A 3-D mask must be (batch x heads, Sq, Sk) = {list(want)} and is {list(have)}."
    rows = (have[0], want[0])
    readings = []
    if have[1] == 1 < want[1] and have[2] == want[2]:
        sentence = f"this is a padding mask (B, 1, Sk) for a batch of {have[0]}: it speaks of keys, not of pairs"
        fix = "mha(x, x, x, key_padding_mask=mask[:, 0]), (B, Sk), True = hidden"
        readings.append(Reading("mask_shape", 8.0, sentence, (fix,), {"batch": have[0]}))
    if want[0] % have[0] == 0 and have[0] < want[0]:
        n = want[0] // have[0]
        who = "one mask for all" if have[0] == 1 else f"it has one mask per sequence of {have[0]}"
        fixes = (PER_HEAD.replace("num_heads", str(n)), "scaled_dot_product_attention takes (B, 1, Sq, Sk) instead")
        sentence = f"{want[0]} = {have[0]} x {n}, and {who}, without its {n} heads"
        readings.append(Reading("mask_shape", 6.0, sentence, fixes, {"batch": have[0], "num_heads": n}))
    if have[1:] != want[1:]:
        sentence = f"the lengths {list(have[1:])} differ from (Sq, Sk) = {list(want[1:])}"
        fixes = (f"a mask of {want[1]} queries by {want[2]} keys", BATCH_FIRST)
        readings.append(Reading("mask_shape", 5.0, sentence, fixes))
    elif not readings:
        sentence = f"{rows[0]} is not batch x heads = {rows[1]}"
        readings.append(Reading("mask_shape", 5.0, sentence, (PER_HEAD,)))
    return answer(facts, readings, problem)


def huggingface(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain what transformers says of masks, weights and outputs "should be of size"."""
    want, have = numbers(match["want"]), numbers(match["have"])
    what = match["what"].lower()
    apart = [i for i, (a, b) in enumerate(zip(want, have, strict=False)) if a != b]
    spoken = ", ".join(f"axis {i}: {problem.named(want[i])} wanted, {problem.named(have[i])} given" for i in apart)
    facts = f"Wanted {list(want)}, given {list(have)}" + (f" ({spoken})." if spoken else ".")
    if "mask" in what:
        return answer(facts, [_mask_of(want, have)], problem)
    if len(apart) == 2 and have == _exchanged(want, *apart) and "mask" not in what:
        i, j = apart
        sentence = (
            f"axes {i} and {j} are exchanged: the numbers are right and a transpose({i}, {j}) is missing or done twice"
        )
        fix = f"(B, S, H, D) becomes (B, H, S, D) by one transpose({i}, {j}), before the product and not after it"
        return answer(facts, [Reading("head_split", 7.0, sentence, (fix,))], problem)
    if "output" in what:
        sentence = (
            "values, heads and head_dim do not come together: V has another head count (KV heads not "
            "repeated) or length"
        )
        fixes = ("value_states = repeat_kv(value_states, n_rep) as for the keys", "head_dim = hidden_size // num_heads")
        kind = "gqa" if len(want) == 4 and 1 in apart else "cross_dims"
        return answer(facts, [Reading(kind, 5.0, sentence, fixes)], problem)
    sentence = "the keys have another length than kv_seq_len says, as with a stale or differently counted cache"
    kind = "cross_dims"
    if (apart and apart[0] == 0) or (len(want) == 4 and apart == [1]):
        kind, sentence = "gqa", "heads or batch differ: KV heads not repeated, or another batch in the cache"
    fixes = ("kv_seq_len = key_states.shape[-2] after the cache is updated", "start with past_key_values=None")
    return answer(facts, [Reading(kind, 5.0, sentence, fixes)], problem)


def _exchanged(shape: tuple[int, ...], i: int, j: int) -> tuple[int, ...]:
    """Give a shape with two of its axes exchanged."""
    found = list(shape)
    found[i], found[j] = shape[j], shape[i]
    return tuple(found)


def _mask_of(want: tuple[int, ...], have: tuple[int, ...]) -> Reading:
    if len(want) != len(have):
        sentence = f"the mask has {len(have)} axes and needs {len(want)}: (B, 1, Sq, Sk)"
        return Reading("mask_shape", 5.0, sentence, (MASK_AXES,))
    sentence = f"the mask covers {have[-1]} keys by {have[-2]} queries where {want[-2]} queries meet {want[-1]} keys"
    if have[-1] < want[-1]:
        sentence += f"; with a cache it must also cover the {want[-1] - have[-1]} past keys"
    elif have[-1] > want[-1]:
        sentence += f"; {have[-1] - want[-1]} keys too many, as when the cache is gone or the mask kept growing"
    fixes = ("attention_mask of (B, past + new), ones for the past", f"mask[:, :, -{want[-2]}:, :{want[-1]}]")
    return Reading("mask_shape", 5.0, sentence, fixes)


RULES: tuple[Rule, ...] = (
    rule(rf"shape of the [23]D attn_mask is {LIST.format('have')},? but should be {LIST.format('want')}", pairs_mask),
    rule(
        r"(?P<what>attention[ _]mask|attention weights|attn_weights|attn_output\w*|\b\w{1,40}attn_output|attn_probs) "
        r"should "
        r"be of size "
        rf"{LIST.format('want')},? but is {LIST.format('have')}",
        huggingface,
    ),
    says(
        r"assert key_padding_mask\.(?:size\(0\)|shape\[0\]) == (?P<what>\w+)",
        "batch_first",
        "A key_padding_mask is (B, Sk), and its rows are not the batch that the layer sees: it reads (S, B, E), axis "
        "1 as the batch, "
        "unless batch_first=True.",
        BATCH_FIRST,
        "the mask stays (B, Sk) whatever batch_first says",
    ),
    says(
        (
            r"size of the 2D attn_mask is not correct|(?:attn_mask must be (?:a )?[23]-?D)|attn_mask's (?:dim|size)\w* "
            r".{0,20}(?:not supported|not correct)"
        ),
        "mask_shape",
        "A 2-D attn_mask is (Sq, Sk), rows queries and columns keys, of the lengths the layer sees; with "
        "batch_first=False (or in "
        "versions without it) axis 0 of the input is the length.",
        "build it from this input: torch.ones(Sq, Sk).triu(1).bool()",
        BATCH_FIRST,
    ),
    says(
        r"size of the 3D attn_mask is not correct",
        "mask_shape",
        "A 3-D attn_mask is (B * num_heads, Sq, Sk), one after another the heads of each sequence.",
        PER_HEAD,
    ),
    says(
        r"assert key_padding_mask\.size\(1\) == (?P<what>\w+)",
        "cross_dims",
        "A key_padding_mask is (B, Sk): its length must be that of the keys (src_len), and one of them is another. In "
        "cross-attention the target's mask has the query length and does not fit; versions that compare with tgt_len "
        "or bsz "
        "mean the axes as the layer reads them.",
        "in decoder cross-attention pass the SOURCE padding mask: memory_key_padding_mask=src_key_padding_mask",
        "check batch_first: with (S, B, E) the mask stays (B, S)",
    ),
    says(
        r"For mask_type == 2,? mask shape should match input shape",
        "mask_shape",
        "The fast path (eval, no gradient) takes a 3-D attn_mask as (batch x heads, Sq, Sk) and got another shape, "
        "most often "
        "(B, Sq, Sk); training may have accepted other shapes.",
        PER_HEAD,
    ),
    says(
        r"For mask_type == 1,? mask shape should be \(B, L\)",
        "mask_shape",
        "The fast path takes a key_padding_mask of shape (B, Sk), and its batch or length is another.",
        "key_padding_mask (B, Sk) for batch-first and sequence-first input alike",
    ),
    says(
        (
            r"For mask_type == 0,? mask shape should be \(L, L\)|Mask shape should match input|attn_mask.*should be "
            r"(?:2D|2-D)"
        ),
        "mask_shape",
        "The mask does not have the shape (Sq, Sk) of the scores, rows queries and columns keys.",
        "build it from this input: torch.ones(Sq, Sk).tril().logical_not() for nn.MultiheadAttention",
    ),
    says(
        (
            r"expected (?P<what>attn_mask|key_padding_mask) to be None(?:,| or) (?P<need>[\w\- ]+) but found "
            r"(?P<have>\d)-D"
        ),
        "mask_shape",
        "For this query <what> must be <need>, and it has <have> axes. key_padding_mask is (B, Sk), attn_mask (Sq, "
        "Sk) or "
        "(B * H, Sq, Sk); a mask with its own axes for batch and heads is what scaled_dot_product_attention takes.",
        "key_padding_mask.view(B, Sk); attn_mask.reshape(B * H, Sq, Sk)",
    ),
    says(
        r"Need attn_mask if specifying the is_causal hint",
        "causal",
        "In nn.MultiheadAttention is_causal is only a hint that the attn_mask is causal; without the mask torch 2.0 "
        "ignored it "
        "(nothing was hidden), newer versions refuse it.",
        "mha(x, x, x, attn_mask=nn.Transformer.generate_square_subsequent_mask(S), is_causal=True)",
        "F.scaled_dot_product_attention(q, k, v, is_causal=True) needs no mask",
    ),
    says(
        r"Explicit (?:attn_)?mask should not be set when is_causal\s*=\s*True|only support is_causal when attn_mask "
        r"is None|"
        r"(?:attn_mask|mask) and is_causal (?:cannot|can't|should not)",
        "causal",
        "attn_mask and is_causal=True exclude each other; some fused CPU kernels accept both and combine them, so "
        "the same "
        "call fails on one machine and not on another.",
        (
            "one mask for both: keep = padding[:, None, None, :] & torch.ones(Sq, Sk, dtype=torch.bool).tril(Sk - Sq), "
            "is_causal=False"
        ),
    ),
    says(
        (
            r"The shape of the mask \[(?P<a>[\d, ]+)\] at index (?P<i>\d) does not match the shape of the indexed "
            r"tensor "
            r"\[(?P<b>[\d, ]+)\]"
        ),
        "mask_shape",
        "A bool mask of shape [<a>] indexes a tensor of shape [<b>]; they must agree axis by axis from the left, and "
        "differ "
        "on axis <i>.",
        "scores.masked_fill(mask, value), which broadcasts, instead of scores[mask] = value",
    ),
    says(
        r"attention mask (?:and the pad token id were not set|is not set and cannot be inferred)",
        "mask_shape",
        "generate was called without an attention_mask, and where the padding token equals the end token it cannot be "
        "worked out: padded positions are attended to.",
        "inputs = tokenizer(texts, padding=True, return_tensors='pt'); model.generate(**inputs)",
    ),
    says(
        (
            r"(?:Invalid shape for attention bias|attn_bias.*(?:invalid|expected) shape): "
            r"?(?:torch\.Size\()?\[(?P<a>[\d, ]+)\]\)? \(expected \(?\[?(?P<b>[\d, ]+)"
        ),
        "mask_shape",
        "The bias has the shape [<a>] where [<b>] (B, H, Sq, Sk) is needed; it is not broadcast.",
        "attn_bias.expand(B, H, Sq, Sk)",
    ),
)
