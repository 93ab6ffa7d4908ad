"""Results that are read wrongly, packed projections that are split wrongly, devices."""

from __future__ import annotations

import re

from mha_core.doctor.explainers.answer import Explanation, Problem, Rule, numbers, rule, says

ALONE = 90  # characters: an error line without the code around it, which could say that it is no matter of attention
UNPACK = {
    2: (
        "nn.MultiheadAttention and the layers of transformers since 4.48 return (output, weights), older ones a cache "
        "as third"
    ),
    3: "output, weights and cache are three in transformers before 4.48; later layers return two, (output, weights)",
}
TENSOR = (
    r"shape|size|view|reshape|transpose|permute|dim|ndim|dtype|device|detach|to|mean|cpu|numpy|softmax|float|"
    r"unsqueeze|squeeze|contiguous|masked_fill|sum|backward"
)


def packed(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a split of a packed projection."""
    have, sizes = int(match["have"]), numbers(match["sizes"])
    total = sum(sizes)
    said = (
        f"The axis has {have} channels and the parts {list(sizes)} add up to {total}, {abs(have - total)} too "
        f"{'many' if total > have else 'few'}. "
    )
    if len(sizes) == 3 and sizes[1] == sizes[2] and have > sizes[0] and (have - sizes[0]) % 2 == 0:
        part = (have - sizes[0]) // 2
        said += f"With a query part of {sizes[0]}, K and V have {part} each"
        said += ": the KV heads are fewer than the heads (grouped queries), or more." if part != sizes[0] else "."
        kind = "gqa" if sizes[0] % part == 0 and part != sizes[0] else "qkv_layout"
        return Explanation(True, kind, said, (f"x.split([{sizes[0]}, {part}, {part}], dim=-1)",))
    if have % 3 == 0:
        said += f"Equal parts for q, k and v would be {have // 3} each."
        return Explanation(
            True, "qkv_layout", said, (f"q, k, v = x.split({have // 3}, dim=-1), or x.chunk(3, dim=-1)",)
        )
    said += f"{have} is no multiple of 3, so q, k and v are not packed in it in equal parts."
    return Explanation(True, "qkv_layout", said, ("qkv = nn.Linear(E, 3 * E), or parts [H * D, Hkv * D, Hkv * D]",))


def unpacked(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain an unpacking of shapes, of packed projections, or of what attention returned."""
    expected = int(match["n"])
    got = match["got"]
    whole = problem.whole
    alone = len(whole) <= ALONE
    if re.search(r"\.shape\b|\.size\(\)", whole) or (
        alone and (expected == 4 or (expected == 3 and "too many" in match[0]))
    ):
        said = (
            f"A shape was unpacked into {expected} names and has "
            f"{'more' if 'too many' in match[0] else got or 'fewer'} axes. Three are (B, S, E), four (B, H, S, "
            "D): the heads are already split, not yet split, or the batch is missing."
        )
        return Explanation(
            True, "head_split", said, ("print(x.shape) before the line; x.view(B, S, H, D).transpose(1, 2) splits",)
        )
    if re.search(r"\bchunk|\bsplit|\bunbind|qkv|q, k, v", whole):
        said = (
            f"A packed projection was cut into another number of parts than {expected}: chunk(n) takes a number "
            "of parts, split(n) their size, and for unbind the axis must be that of the 3."
        )
        return Explanation(True, "qkv_layout", said, ("q, k, v = qkv.chunk(3, dim=-1), or x.split(E, dim=-1)",))
    if not alone and not re.search(
        r"attn|attention|mha|weights|past_key|self_attn|hidden_states", whole, re.IGNORECASE
    ):
        return None
    said = (
        f"What attention returned was unpacked into {expected} names: "
        f"{UNPACK.get(expected, 'the number of results differs')}; scaled_dot_product_attention returns one "
        "tensor."
    )
    return Explanation(
        True, "weights_reading", said, ("output, *rest = attention(...), or output = attention(...)[0]",)
    )


def not_a_tensor(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain a tuple or None where a tensor was expected, where it speaks of attention."""
    if match["type"] == "tuple":
        said = (
            "A layer's whole result was used as a tensor. nn.MultiheadAttention returns (output, weights) and "
            "transformers' layers a tuple as well, the output first."
        )
        return Explanation(True, "weights_reading", said, ("output, weights = mha(x, x, x)", "output = layer(x)[0]"))
    if not problem.hints(r"attn|attention|weights|need_weights|attentions"):
        return None
    said = "The weights are None: need_weights=False, or a fused kernel (sdpa, flash) that never holds them."
    fixes = (
        "mha(q, k, v, need_weights=True, average_attn_weights=False)",
        "attn_implementation='eager', output_attentions=True",
    )
    return Explanation(True, "weights_reading", said, fixes)


def other_device(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain tensors on two devices: which one was made in forward, or is not registered."""
    if problem.hints(r"masked_fill|mask|tril|triu|where"):
        kind, what = "mask_shape", "a mask built in forward without device= (torch.ones, tril, arange lie on the CPU)"
    elif problem.hints(r"index_select|embedding|cos\b|sin\b|rotary|position"):
        kind, what = "position", "token ids, position ids or a rotary table that stayed on the CPU"
    else:
        kind, what = (
            "init",
            "a weight or table that .to(device) did not move: kept in a plain list or as a plain attribute",
        )
    said = f"Two tensors of one operation lie on different devices; most likely {what}."
    fixes = (
        "torch.ones(S, S, device=x.device)",
        "self.register_buffer('mask', mask, persistent=False)",
        "nn.ParameterList, nn.ModuleList instead of a list",
    )
    return Explanation(True, kind, said, fixes)


def none_unpacked(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain None that was unpacked, where the text speaks of attention or stands alone."""
    if problem.hints(r"position_embeddings|cos, sin"):
        said = (
            "position_embeddings is None: newer layers get the rotary cos and sin from the model instead of "
            "making them."
        )
        return Explanation(
            True,
            "position",
            said,
            ("layer(x, position_embeddings=model.rotary_emb(x, position_ids), attention_mask=mask)",),
        )
    alone = len(problem.whole) <= ALONE and "unpack" in match[0]
    if not alone and not problem.hints(r"attn|attention|weights|past_key|mha\b"):
        return None
    said = (
        "None was read as a pair. Of an attention layer that is the weights with need_weights=False or a fused "
        "kernel, the cache where past_key_values is None, or position_embeddings (cos, sin) that a transformers "
        "layer was not given."
    )
    fixes = (
        "need_weights=True, or attn_implementation='eager'",
        "position_embeddings=model.rotary_emb(x, position_ids)",
    )
    return Explanation(True, "weights_reading", said, fixes)


RULES: tuple[Rule, ...] = (
    rule(
        r"cannot unpack non-iterable NoneType object|'NoneType' object is not (?:subscriptable|iterable)", none_unpacked
    ),
    rule(r"split_sizes to sum exactly to (?P<have>\d+).*?split_sizes=\[(?P<sizes>[\d, ]+)\]", packed),
    rule(
        r"(?:too many|not enough) values to unpack \(expected (?:at least )?(?P<n>\d+)(?:, got (?P<got>\d+))?", unpacked
    ),
    rule(r"'(?P<type>tuple|NoneType)' object has no attribute '(?:" + TENSOR + r")'", not_a_tensor),
    rule(
        (
            r"Expected all tensors to be on the same device|indices should be either on cpu or on the same device|is "
            r"on "
            r"\S+, different from other tensors on"
        ),
        other_device,
    ),
    says(
        (
            r"forward\(\) missing (?P<n>\d+) required positional arguments?: 'key' and 'value'|forward\(\) missing \d+ "
            r"required positional arguments?: 'value'"
        ),
        "cross_dims",
        "Attention was called with a query alone: nn.MultiheadAttention takes query, key and value, the same tensor "
        "three times for "
        "self-attention.",
        "output, weights = mha(x, x, x)",
    ),
    says(
        r"linear\(\): argument 'input' \(position 1\) must be Tensor, not "
        r"tuple|(?:layer_norm|dropout|add|matmul)\(\): argument '\w+' \(position \d\) must be Tensor, not "
        r"tuple|"
        r"unsupported operand type\(s\) for \+: '(?:Tensor' and 'tuple|tuple' and 'Tensor)'",
        "weights_reading",
        "A layer's whole result went on as a tensor: nn.MultiheadAttention returns (output, weights).",
        "x = x + mha(x, x, x, need_weights=False)[0]",
    ),
)
