"""Dtypes that do not meet, operations a dtype lacks, and fills that float16 cannot hold."""

from __future__ import annotations

import re

from mha_core.doctor.explainers.answer import Explanation, Problem, Rule, rule, says

LIMITS = {"half": 65504.0, "bfloat16": 3.39e38, "float": 3.40e38}
CAST_BACK = "weights = scores.float().softmax(-1).to(v.dtype); rotary output .type_as(x)"
WHOLE = "one dtype for the model and its input: model.to(x.dtype) or x.to(model.dtype), or torch.autocast around both"
PLAIN = {
    "c10::half": "float16",
    "half": "float16",
    "c10::bfloat16": "bfloat16",
    "float": "float32",
    "double": "float64",
    "long int": "int64",
}


def plain(dtype: str) -> str:
    """Name a dtype as torch does in Python."""
    return PLAIN.get(dtype.lower(), dtype.removeprefix("c10::").lower())


def too_large(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a fill value that the dtype of the scores cannot hold."""
    dtype, value = match["dtype"].lower(), match["value"]
    limit = LIMITS.get(dtype, 65504.0)
    said = f"A number was to be stored in {plain(dtype)}, whose largest is {limit:g}"
    if value:
        said += f"; {value} is {abs(float(value)) / limit:,.0f} times that"
    said += ". The usual one is the value that hides masked scores, -1e9 or the minimum of float32."
    fixes = (
        "scores.masked_fill(~keep, float('-inf')), with no fully masked row",
        "torch.finfo(scores.dtype).min (-65504 in float16), taken from the scores and not from float32",
        "keep in float32: scores.float().masked_fill(...).softmax(-1).to(v.dtype)",
    )
    return Explanation(True, "mask_value", said, fixes)


def two_dtypes(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a product of two dtypes."""
    a, b = plain(match["a"]), plain(match["b"])
    whole = {"long", "int64", "int", "bool", "byte", "short"}
    if whole & {a, b}:
        said = f"A layer met {a} and {b}: token ids or a mask reached a product that takes floating point numbers."
        return Explanation(True, "amp", said, ("embed the ids first: nn.Embedding(vocabulary, E)(ids)", "x.float()"))
    half = next((dtype for dtype in (a, b) if dtype in ("float16", "bfloat16")), b)
    said = (
        f"A product met {a} and {b}. In a {half} model something is still (or again) {a if b == half else b}: a "
        "softmax with dtype=float32 not cast back, rotary tables or a mask in float32 that promote q and k, an "
        "input or a layer not cast."
    )
    return Explanation(True, "amp", said, (CAST_BACK, WHOLE))


def old_text(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain two dtypes as torch before 1.5 said it."""
    if match["name"] != "mask":
        return two_dtypes(match, problem)
    said = (
        f"The mask should be {plain(match['a'])} and is {plain(match['b'])}: masks were bytes before torch 1.2 "
        "and are bool since."
    )
    return Explanation(True, "mask_dtype", said, ("mask.bool() in newer versions, mask.byte() in older ones",))


def baddbmm_dtypes(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain baddbmm: its `input` is the attn_mask of nn.MultiheadAttention."""
    mask, one, two = (plain(match[name]) for name in ("mask", "one", "two"))
    if one != two:
        return Explanation(True, "amp", f"Query and key are {one} and {two}.", (WHOLE,))
    said = (
        f"The attn_mask is {mask} while query and key are {one}: nn.MultiheadAttention adds it to the scores by "
        "baddbmm, which takes one dtype."
    )
    return Explanation(True, "mask_dtype", said, ("attn_mask.to(x.dtype)", "a bool attn_mask, True = may not attend"))


def three_dtypes(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain query, key and value of several dtypes."""
    q, k, v = (plain(match[name]) for name in ("q", "k", "v"))
    said = (
        f"query is {q}, key {k}, value {v}; they must be one dtype. Under autocast, and with rotary tables or a "
        "cache in float32, some of them are cast and others are not."
    )
    return Explanation(True, "amp", said, ("q, k = q.to(v.dtype), k.to(v.dtype) after the rotary step", WHOLE))


def not_implemented(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain a kernel that a dtype lacks."""
    kernel, dtype = match["kernel"], plain(match["dtype"])
    if (
        re.search(
            r"softmax|addmm|bmm|gemm|baddbmm|layer_?norm|mul_cpu|triu|tril|masked|dropout|sdpa|attention|dot|mm_|_mm",
            kernel,
            re.IGNORECASE,
        )
        is None
    ):
        return None
    if dtype in ("long", "int", "bool"):
        kind = "mask_dtype" if re.search(r"masked|mul|bmm", kernel) else "softmax_dim" if "softmax" in kernel else "amp"
        said = f"{kernel} was called on {dtype}: a mask or token ids where floating point scores belong."
        return Explanation(
            True, kind, said, ("scores = q @ k.transpose(-2, -1) must be float before softmax", "mask.bool()")
        )
    if re.search(r"tri[ul]", kernel):
        said = f"triu and tril are not made for {dtype} in this version, and a causal mask is built in that dtype."
        fix = "torch.full((S, S), float('-inf')).triu(1).to(x.dtype): build in float32, then cast"
        return Explanation(True, "mask_dtype", said, (fix, "torch.ones(S, S, dtype=torch.bool).tril()"))
    said = f"This version has no {dtype} kernel for {kernel} on this device, most often float16 on the CPU."
    return Explanation(
        True, "amp", said, ("model.float() on the CPU, or torch.bfloat16", "run float16 on a GPU, or update torch")
    )


DTYPE = r"[\w:]+"
RULES: tuple[Rule, ...] = (
    rule(
        r"Expected object of scalar type (?P<a>\w+) but got scalar type (?P<b>\w+) for argument #\d '(?P<name>\w+)'",
        old_text,
    ),
    rule(
        r"value cannot be converted to type (?:at|c10)?:*(?P<dtype>\w+) without overflow(?:: ?(?P<value>[-+\d.e]+))?",
        too_large,
    ),
    rule(
        (
            rf"Input dtypes must be the same,? got:? input:? (?P<mask>{DTYPE}),? batch1:? (?P<one>{DTYPE}),? batch2:? "
            rf"(?P<two>{DTYPE})"
        ),
        baddbmm_dtypes,
    ),
    rule(
        (
            rf"query, key,? and value to have the same dtype,? but got query\.dtype: (?P<q>{DTYPE}),? key\.dtype: "
            rf"(?P<k>{DTYPE}),? and value\.dtype: (?P<v>{DTYPE})"
        ),
        three_dtypes,
    ),
    rule(
        rf"expected m1 and m2 to have the same dtype,? but got:? (?P<a>(?:long )?{DTYPE}) != (?P<b>(?:long )?{DTYPE})",
        two_dtypes,
    ),
    rule(r"mat1 and mat2 must have the same dtype,? but got (?P<a>\w+) and (?P<b>\w+)", two_dtypes),
    rule(
        (
            r"expected scalar type (?P<a>Float|Half|BFloat16|Double|Long) but found "
            r"(?P<b>Float|Half|BFloat16|Double|Long|Int)"
        ),
        two_dtypes,
    ),
    rule(
        (
            r"expected (?:both )?(?:\w+ )*to have the same (?:data ?)?type,? but got:? (?P<a>[\w:]+) (?:!=|and) "
            r"(?P<b>[\w:]+)"
        ),
        two_dtypes,
    ),
    rule(r"expected dtype (?P<a>[\w:]+) (?:for `?end`? )?but got dtype (?P<b>[\w:]+)", two_dtypes),
    rule(r'\b(?P<kernel>\w{1,80})"? not implemented for \'?(?P<dtype>Half|BFloat16|Long|Int|Bool)\b', not_implemented),
    says(
        r"mat1 and mat2 must have the same dtype|expected mat1 and mat2 to have the same dtype",
        "amp",
        "A product met two dtypes: in a half-precision model something is still float32.",
        CAST_BACK,
        WHOLE,
    ),
    says(
        r"Input type \((?P<a>[\w.]+)\) and (?:weight|bias) type \((?P<b>[\w.]+)\) should be the same",
        "amp",
        "The input is <a> and the weights are <b>: dtype (or device) of model and input differ.",
        WHOLE,
    ),
    says(
        r"mean\(\): could not infer output dtype|one of the following scalar types: Long, Int; but got (?P<t>\S+)",
        "amp",
        "Whole numbers and floating point numbers are exchanged: token ids must be integers for nn.Embedding, "
        "everything after "
        "it is floating point.",
        "nn.Embedding(vocabulary, E)(ids.long())",
    ),
    says(
        r"Got unsupported ScalarType BFloat16",
        "weights_reading",
        "NumPy has no bfloat16, so weights of a bfloat16 model cannot become an array as they are.",
        "weights.detach().float().cpu().numpy()",
    ),
    says(
        r"Can't call numpy\(\) on Tensor that requires grad",
        "weights_reading",
        "The weights still hang on the graph of the backward pass; for reading them they have to be cut off.",
        "weights.detach().cpu().numpy(), or run under torch.no_grad()",
    ),
    says(
        r"can't convert (?P<d>\S+) device type tensor to numpy",
        "weights_reading",
        "The tensor lies on <d>; NumPy reads the main memory only.",
        "weights.detach().cpu().numpy()",
    ),
)
