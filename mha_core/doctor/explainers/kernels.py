"""Texts of flex_attention, xformers, flash-attn's packed calls, vLLM, and kernels that a version does not have."""

from __future__ import annotations

import re

from mha_core.doctor.explainers.answer import Explanation, Problem, Rule, numbers, rule, says
from mha_core.doctor.explainers.backends import SDPA_HINT
from mha_core.doctor.explainers.broadcast import REPEAT_FIX
from mha_core.doctor.explainers.solve import divisors, plural

ALIGNED = (
    "allocate the mask with a length rounded up to a multiple of 8 and slice it: torch.zeros(B, H, Sq, 8 * n)[..., :Sk]"
)


def flex_heads(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain flex_attention's head counts of query and key."""
    heads, few = int(match["q"]), int(match["kv"])
    if few and heads % few == 0:
        said = f"{heads} query heads meet {few} KV heads, each for {heads // few} of them: grouped queries."
        fixes = ("flex_attention(q, k, v, enable_gqa=True)", REPEAT_FIX.format(n=heads // few))
        return Explanation(True, "gqa", said, fixes)
    said = f"{heads} query heads meet {few} KV heads, and {few} does not divide {heads}"
    if 0 < few < heads:
        rest = heads % few
        said += f": {heads} = {heads // few} x {few} + {rest}, so {plural(rest, 'head')} would have no group"
    fixes = (
        f"num_kv_heads among {', '.join(map(str, divisors(heads)))}",
        "heads are axis 1 of (B, H, S, D): transpose(1, 2) if the length is there",
    )
    return Explanation(True, "gqa", f"{said}. enable_gqa=True does not help here.", fixes)


def bmhk(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain xformers' shapes: four axes (B, M, H, K), or three, for query, key and value alike."""
    shapes = re.findall(r"(query|key|value)\.shape ?: ?(?:torch\.Size)?\(?\[([\d, ]+)\]", problem.whole)
    said = "xformers takes q, k and v as (B, S, H, D), or all three as (B, S, D), with the length before the heads"
    axes = [str(len(numbers(shape))) for _, shape in shapes]
    if len(axes) == 3:
        said += f"; query, key and value have {axes[0]}, {axes[1]} and {axes[2]} axes"
    fixes = ("q.view(B, S, H, D) for q, k and v alike, without transpose(1, 2)", "unsqueeze(0) where a batch was lost")
    return Explanation(True, "head_split", f"{said}.", fixes)


def unaligned(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a bias whose rows do not begin at multiples of 8 elements."""
    stride = re.search(r"stride\(-?\d\) = (\d+)", problem.whole)
    said = "The kernel reads the mask (attn_bias) in blocks of 8, so each row must begin at a multiple of 8 elements"
    if stride:
        row = int(stride[1])
        said += f"; a row is {row} long" + (f", {row % 8} more than {row - row % 8}" if row % 8 else "")
    return Explanation(True, "mask_shape", f"{said}.", (ALIGNED, SDPA_HINT))


def longer(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain vLLM's max_model_len beyond the model's positions."""
    have, most = int(match["have"]), int(match["most"])
    said = f"{have} tokens are asked for and the model has {most} positions: the last {have - most} have none."
    fixes = (f"max_model_len={most}", "rope_scaling for longer texts, where the model was trained with it")
    return Explanation(True, "position", said, fixes)


def no_room(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a KV cache too small for one sequence of full length."""
    have, room = int(match["have"]), int(match["room"])
    said = (
        f"The memory left after the weights holds keys and values of {room} tokens, and one sequence may have {have}; "
        "the cache grows with layers x KV heads x head_dim x length."
    )
    return Explanation(True, "memory", said, (f"max_model_len={room} or less", "gpu_memory_utilization=0.95"))


RULES: tuple[Rule, ...] = (
    rule(r"number of (?:query )?heads .{0,80}but got Hq=(?P<q>\d+) and Hkv=(?P<kv>\d+)", flex_heads),
    says(
        r"query and key/value to have the same embedding dimension but got E=(?P<q>\d+) and E=(?P<k>\d+)",
        "cross_dims",
        "A head has <q> channels in the query and <k> in the key, and their product needs one head_dim (the value may "
        "have another).",
        "project q and k to the same head_dim",
    ),
    says(
        r"query and key/value to have the same batch size.{0,80}Bq=(?P<q>\d+),? and Bkv=(?P<k>\d+)",
        "cross_dims",
        "Query and key have different batches, <q> and <k>.",
        "k = k.expand(q.size(0), -1, -1, -1) where one memory serves all, else one batch for both",
    ),
    says(
        r"query, key, and value must be 4D tensors",
        "head_split",
        "flex_attention takes (B, H, S, D); these tensors are not split into heads, or have lost their batch.",
        "x.view(B, S, H, D).transpose(1, 2) for q, k and v",
    ),
    rule(r"Query/Key/Value should (?:all )?have BMHK", bmhk),
    rule(r"(?:attn_)?bias(?:_ptr)? is not correctly aligned|attn_bias\.stride\(-?\d\) = \d+, and should be", unaligned),
    says(
        r"head_(?:size|dim)\w* (?:should|must) be (?:a )?(?:multiple of|divisible by) (?P<n>8|16|32)\b",
        "divisibility",
        "This kernel takes heads whose head_dim is a multiple of <n>.",
        "embed_dim / num_heads a multiple of <n>, or F.pad(x, (0, n)) on q, k and v with scale=head_dim**-0.5 kept",
        SDPA_HINT,
    ),
    says(
        r"Head size (?P<have>\d+) is not supported by \w+.{0,20}Supported head sizes are:? (?P<all>\[[\d, ]+\])",
        "divisibility",
        "The model's head_dim is <have>, and this kernel takes <all> only.",
        "another attention backend (VLLM_ATTENTION_BACKEND), or a model with a head_dim of the list",
    ),
    rule(
        r"max_model_len \((?P<have>\d+)\) is greater than the derived max_model_len \([\w ]+=(?P<most>\d+)",
        longer,
    ),
    rule(
        (
            r"max seq len \((?P<have>\d+)\) is larger than the maximum number of tokens that can be stored in KV "
            r"cache \((?P<room>\d+)\)"
        ),
        no_room,
    ),
    says(
        r"\b(?P<name>q|k|v|key|value|kcache|vcache) must have shape "
        r"\((?P<shape>(?:batch|total)\w*[\w, ]*head_size\w*)\)",
        "cross_dims",
        "flash-attn wants <name> as (<shape>), the length before the heads: (B, S, H, D). Its batch, head count or "
        "head_dim is another than the query says, or the axes are (B, H, S, D).",
        "q, k, v = (t.transpose(1, 2) for t in (q, k, v)) from (B, H, S, D) to (B, S, H, D)",
        "k.shape == v.shape; the KV heads must divide the heads of q",
    ),
    says(
        r"query and (?:key|value) must have the same dtype",
        "amp",
        "The query has another dtype than key or value: a rotary step or a cache in float32 cast one of them.",
        "one dtype for all: q, k = q.to(v.dtype), k.to(v.dtype) after the rotary step",
    ),
    says(
        r"Input tensor must have contiguous last dimension",
        "head_split",
        "The channels of a head do not lie next to each other in memory: the last axis was moved by a transpose.",
        "q, k, v = (t.contiguous() for t in (q, k, v))",
    ),
    says(
        r"Flash Attention 2(?:\.0)? with a model not initialized on GPU",
        "amp",
        "A warning, no error: the model was built on the CPU, where flash-attn has no kernel. It works once the model "
        "lies on a GPU.",
        "model.to('cuda') before the first call, or device_map='cuda' in from_pretrained",
    ),
    says(
        r"module '?torch\.nn\.functional'? has no attribute '?scaled_dot_product_attention"
        r"|cannot import name 'scaled_dot_product_attention'",
        "amp",
        "This torch is older than 2.0, which brought scaled_dot_product_attention.",
        "pip install 'torch>=2.0'",
        "(q @ k.transpose(-2, -1) * head_dim**-0.5 + bias).softmax(-1) @ v, which is the same",
    ),
    says(
        r"No module named 'torch\.nn\.attention(?P<part>[\w.]*)'",
        "amp",
        "This torch has no torch.nn.attention<part>: sdpa_kernel came with torch 2.3, flex_attention with 2.5.",
        "a newer torch, or F.scaled_dot_product_attention, which chooses its kernel by itself",
    ),
    says(
        r"cannot import name '(?P<name>\w+(?:FlashAttention2|SdpaAttention|SdpaSelfAttention))'",
        "amp",
        "<name> is gone: since transformers 4.48 a model has one attention class, and the kernel is chosen by a name.",
        "import the plain class (LlamaAttention), with attn_implementation='flash_attention_2' or 'sdpa'",
    ),
    says(
        r"has no attribute 'to_bettertransformer'",
        "amp",
        "BetterTransformer is gone from newer transformers: models call scaled_dot_product_attention themselves.",
        "attn_implementation='sdpa', which is the default",
    ),
)
