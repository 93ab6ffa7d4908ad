"""Fused kernels that refuse: scaled_dot_product_attention, flash-attn, xformers, transformers' implementations."""

from __future__ import annotations

import re

from mha_core.doctor.explainers.answer import Explanation, Problem, Rule, rule, says

ANY_KERNEL = "remove sdpa_kernel(...) (or allow SDPBackend.MATH too): the plain kernel takes every case"
HALF = (
    "model.to(torch.bfloat16) (torch_dtype=torch.bfloat16 in from_pretrained), q, k, v = (t.bfloat16() for t in "
    "(q, k, v))"
)
SDPA_HINT = "F.scaled_dot_product_attention or attn_implementation='sdpa', which choose a kernel by themselves"
REASONS = (
    (
        r"dtype=torch\.float32 \(supported|query dtype:? ?float32|Expected query, key and value to all be of dtype",
        "amp",
        "the dtype is float32 and this kernel takes half precision",
        HALF,
    ),
    (r"bf16 is only supported on", "amp", "this GPU has no bfloat16", "q, k, v in float16"),
    (
        (
            r"attn_bias type is <class 'torch\.Tensor'>|non-null attn_mask|attn_mask is not (?:supported|None)|does "
            r"not "
            r"support non-null attn_mask"
        ),
        "mask_shape",
        "this kernel takes no mask tensor (attn_mask, attn_bias)",
        "is_causal=True or LowerTriangularMask() instead of a tensor, or a kernel that takes one",
    ),
    (
        r"attn_bias\.stride|attn_bias.{0,40}% ?8|bias.{0,20}aligned",
        "mask_shape",
        "the mask's rows are not aligned to 8 elements",
        "allocate the mask with a length rounded up to 8 and slice it: torch.zeros(..., 8 * n)[..., :Sk]",
    ),
    (
        (
            r"device=cpu|device with capability|only supports? gpu architectures|GPU has capability|wasn't build with "
            r"CUDA|sm\d\d"
        ),
        "amp",
        "the device is a CPU or a GPU that this kernel was not made for",
        SDPA_HINT,
    ),
    (
        r"head.?dim\w*|embed per head|query\.shape\[-1\]|last dim",
        "divisibility",
        "the head_dim is one this kernel does not take",
        "a head_dim that is a multiple of 8 and at most 128 (256 in newer versions)",
    ),
    (
        r"operator wasn't built|not available",
        "amp",
        "the package was built without this kernel",
        "install a build that matches torch and CUDA",
    ),
)


def refused(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a list of reasons why no kernel took the call."""
    found = [entry for entry in REASONS if re.search(entry[0], problem.whole, re.IGNORECASE)]
    shape = re.search(
        r"query\W+(?:shape=)?(?:torch\.Size)?\(\[?(?P<s>[\d, ]+)\]?\)(?: \((?P<d>torch\.\w+)\))?", problem.whole
    )
    said = "Every fused kernel has its conditions on dtype, device, head_dim and mask, and none took this call"
    if shape:
        said += f" (query [{shape['s']}]" + (f", {shape['d']})" if shape["d"] else ")")
    said += (
        "; the reasons given: " + "; ".join(reason for _, _, reason, _ in found)
        if found
        else "; the text gives no reasons"
    )
    kind = found[0][1] if found else "amp"
    fixes = tuple(fix for _, _, _, fix in found[:3])
    fixes = (*fixes, SDPA_HINT if "operator" in match[0] else ANY_KERNEL)
    return Explanation(True, kind, said + ".", tuple(dict.fromkeys(fixes)))


def head_limit(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain flash-attn's limit of the head size."""
    limit = match["limit"]
    sizes = problem.sizes
    said = f"flash-attn keeps one head in registers and takes a head_dim of at most {limit}"
    if "embed_dim" in sizes and "num_heads" in sizes:
        head_dim = sizes["embed_dim"] // sizes["num_heads"]
        said += f"; here it is {sizes['embed_dim']} / {sizes['num_heads']} = {head_dim}"
    said += (
        ". The heads are an axis of their own there, (B, S, H, D): a tensor (B, H, S, D), or one that is not "
        "split, puts the wrong axis last."
    )
    return Explanation(True, "divisibility", said, ("more heads: num_heads = embed_dim / 64 or / 128", SDPA_HINT))


RULES: tuple[Rule, ...] = (
    rule(r"No operator found for (?:memory_efficient_attention|this attention)", refused),
    rule(r"No available kernel\. ?Aborting|No viable backend for scaled_dot_product_attention", refused),
    rule(
        (
            r"(?:memory.efficient|flash|cudnn|math)(?: attention)? (?:attention )?kernel (?:not used|was not|has been "
            r"disabled)"
        ),
        refused,
    ),
    rule(r"Expected query, key and value to all be of dtype|attention does not support non-null attn_mask", refused),
    rule(r"head dim\w* (?:at most|less than or equal to|up to|<=) (?P<limit>\d+)", head_limit),
    says(
        r"Only fp16 and bf16 are supported|FlashAttention.{0,20}only supports? "
        r"(?:torch\.)?(?:fp16|float16|half|bf16)|flash.attn.*(?:fp16|float16).*bf(?:loat)?16|"
        r"Flash Attention 2(?:\.0)? (?:without specifying a torch dtype|only supports)|FlashAttention\w* only "
        r"supports? .{0,40}(?:bf16|bfloat16)",
        "amp",
        (
            "flash-attn computes in float16 or bfloat16 only, and q, k and v are float32 (or a layer norm or rotary "
            "step "
            "promoted them)."
        ),
        HALF,
        "with torch.autocast('cuda', dtype=torch.bfloat16): around the call",
    ),
    says(
        r"FlashAttention\w* only supports (?:Ampere|Hopper|Turing|CUDA|GPUs)|flash_?attn requires|FlashAttention2? "
        r"(?:has been toggled on, but it )?(?:cannot|can't) be used|"
        r"flash_attn\S*\.so: undefined symbol|No module named 'flash_attn|Torch was not compiled with "
        r"(?:flash|memory efficient) attention",
        "amp",
        "The flash kernel is not there: not installed, built against another torch or CUDA, or not made for this "
        "device. The result "
        "does not depend on it, only time and memory do.",
        SDPA_HINT,
        "pip install flash-attn --no-build-isolation, built for the installed torch",
    ),
    says(
        r"attn_implementation=.{0,30} is not supported|does not support an attention implementation|does not support "
        r"(?:Flash Attention|`?sdpa|scaled_dot_product)|"
        r"does not support attention implementation",
        "weights_reading",
        (
            "This model has no such attention implementation; they differ in speed, memory and whether weights can be "
            "read."
        ),
        "attn_implementation='eager' (weights can be read) or 'sdpa'",
    ),
    says(
        r"output_attentions.{0,80}(?:not supported|does not support)|does not support output_attentions|attention "
        r"does not support output_attentions|does not support.{0,20}(?:head_mask|output_attentions)",
        "weights_reading",
        "Fused attention never holds the weights, so it cannot return them: attentions come back empty or None.",
        "AutoModel.from_pretrained(name, attn_implementation='eager'), then output_attentions=True",
    ),
    says(
        r"Expected query, key,? and value to all be +at least 2|Expected query, key,? and value to all be (?:4|3).dim",
        "head_split",
        "scaled_dot_product_attention wants (B, H, S, D); these tensors have fewer axes, or differ in number.",
        "x.view(B, S, H, D).transpose(1, 2) for q, k and v",
    ),
    says(
        r"cu_seqlens\w* must|cu_seqlens.{0,40}(?:shape|dtype|int32)|unpad_input",
        "mask_shape",
        "The packed form of flash-attn wants cumulative lengths cu_seqlens: int32, of shape (B + 1,), starting with "
        "0 and ending "
        "with the number of real tokens.",
        "cu_seqlens = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))",
    ),
)
