"""Masks whose dtype has no meaning, does not meet the query's, or lacks the operation that inverts it."""

from __future__ import annotations

import re

from mha_core.doctor.explainers.answer import Explanation, Problem, Rule, rule, says

BOOL = (
    "mask = mask.bool() (nn.MultiheadAttention: True = may NOT attend; scaled_dot_product_attention: True = may attend)"
)


def mask_dtype(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain an attn_mask whose dtype is neither bool nor that of the query."""
    mask, query = match["mask"].removeprefix("c10::"), match["query"].removeprefix("c10::")
    said = (
        f"The mask is {mask} and the query {query}. A mask is either bool (True = may attend) or added to the "
        "scores, and then needs the dtype of the query."
    )
    if mask.lower().startswith(("long", "int", "unsigned", "short")):
        return Explanation(True, "mask_dtype", f"{said} Numbers 0 and 1 have no such meaning.", ("attn_mask.bool()",))
    return Explanation(True, "mask_dtype", said, ("attn_mask.to(query.dtype)", "attn_mask.bool() if it holds 1 and 0"))


def truth(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain `if mask:`, where the text speaks of a mask."""
    if not problem.hints(r"mask"):
        return None
    said = "`if mask:` asks for one truth value, and a mask has one for every position."
    return Explanation(True, "mask_dtype", said, ("if mask is not None:",))


RULES: tuple[Rule, ...] = (
    rule(r"Boolean value of Tensor with more than one value is ambiguous", truth),
    rule(
        (
            r"Expected attn_mask dtype to be bool.*?attn_mask\.dtype: (?P<mask>[\w:]+(?: int| char)?) and "
            r"+query\.dtype: "
            r"(?P<query>[\w:]+)"
        ),
        mask_dtype,
    ),
    says(
        r"Byte tensor for (?P<name>\w+) .{0,40}is deprecated|types are supported for attn_mask, not (?P<t>\S+)",
        "mask_dtype",
        "The mask is not of dtype bool or float; integers and bytes have lost their meaning in newer versions.",
        BOOL,
    ),
    says(
        (
            r"only bool and floating types of (?P<name>\w+) are supported|only (?:float, "
            r")?(?:byte|double|half).*?types "
            r"are supported for attn_mask"
        ),
        "mask_dtype",
        "The mask (<name>) holds integers. Only bool (True = hidden) and float (added to the scores) have a meaning; "
        "older "
        "versions took integers silently, and training and evaluation then read them differently.",
        BOOL,
        "check the direction: transformers' attention_mask has 1 = may attend, so ~attention_mask.bool()",
    ),
    says(
        r"Support for mismatched (?P<a>\w+) and (?P<b>\w+) is deprecated",
        "mask_dtype",
        "One of <a> and <b> is bool and the other float (generate_square_subsequent_mask gives float 0 and -inf). It "
        "works "
        "today: the bool one is turned into 0 and -inf.",
        "both bool: causal = torch.ones(S, S, dtype=torch.bool).triu(1)",
        "both float: padding = torch.zeros(B, S).masked_fill(padding, float('-inf'))",
    ),
    says(
        r"masked_fill_? only supports boolean masks,? but got mask with dtype (?P<dtype>[\w ]+)|expected scalar type "
        r"Bool but found (?P<found>\w+)|"
        r"masked_fill_?.*expected (?:BoolTensor|mask)|expected BoolTensor cannot be|where expected condition to be a "
        r"boolean",
        "mask_dtype",
        "masked_fill and where take a bool mask, and this one holds numbers.",
        (
            "scores.masked_fill(mask == 0, float('-inf')) where 1 = may attend; masked_fill(mask.bool(), ...) where "
            "1 = "
            "hidden"
        ),
    ),
    says(
        (
            r"indexing with dtype torch\.uint8 is now deprecated|masked_fill_ received a mask with dtype "
            r"torch\.uint8|Converting mask without torch\.bool dtype"
        ),
        "mask_dtype",
        "The mask is not of dtype bool. It is still read as true and false, slowly, and not in every version.",
        "mask = mask.bool(); then ~mask inverts it (on uint8, ~1 is 254, which is true as well)",
    ),
    says(
        (
            r"(?:Subtraction|Negation), the - operator, (?:with|on) (?:a|two) bool tensors? is not supported|"
            r"~ \(operator\.invert\) (?:\(operator\.invert\) )?is only implemented on"
        ),
        "mask_dtype",
        "The mask is inverted by an operation its dtype lacks: 1 - mask needs numbers, ~mask needs bool.",
        "~mask for bool; 1 - mask, or mask == 0, for numbers",
    ),
    says(
        r"bitwise_(?P<op>and|or|xor)_\w+\W+not implemented for '?(?P<dtype>Float|Half|BFloat16|Double)",
        "mask_dtype",
        "Masks are combined by & and |, which are made for bool, and one of them holds numbers (<dtype>): a float "
        "attention_mask of 0 and 1 (transformers combines it with the causal one), or an additive mask of 0 and -inf.",
        "attention_mask.bool(), or .long(), where 1 = may attend; mask == 0 for an additive one",
    ),
    says(
        r"argument 'attn_mask' must be Tensor, not (?P<have>\w+)",
        "mask_dtype",
        "attn_mask must be a tensor, and a <have> was given.",
        "attn_mask=torch.as_tensor(mask, dtype=torch.bool, device=q.device), True = may attend; None for no mask",
    ),
)
