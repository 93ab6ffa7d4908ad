"""Out of memory: which product of sizes, B x H x Sq x Sk above all, has as many bytes as were asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from mha_core.doctor.explainers.answer import Explanation, Problem, Rule, numbers, rule, says
from mha_core.doctor.explainers.solve import USUAL_HEADS, power_of_two, times, usual

UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
ITEM_SIZES = {4: "float32", 2: "float16 or bfloat16", 8: "float64", 1: "bool"}
FIXES = (
    "F.scaled_dot_product_attention without need_weights: the fused kernels never hold the (B, H, Sq, Sk) matrix",
    "half the length costs a quarter, half the batch or heads a half; bfloat16 halves it",
    "torch.utils.checkpoint in training, torch.no_grad() in evaluation, or queries in chunks",
)


def allocation(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a number of bytes."""
    unit, amount = (match["unit"] or "b").lower().removesuffix("ytes").removesuffix("yte"), match["amount"]
    number, scale = float(amount), UNITS.get(unit, 1)
    if unit == "gb" and re.search(r"CUDA|GPU", problem.whole):
        scale = 2**30  # torch before 2.0 wrote GiB, and some reports abridge it to GB
    digits = len(amount.partition(".")[2])
    error = 0.5 * 10**-digits * scale if scale > 1 else 0.0
    count, decimal = number * scale, number * UNITS.get(unit, 1)
    facts = f"{count / 2**30:.2f} GiB ({count / 1e9:.2f} GB) were asked for at once"
    return Explanation(True, "memory", f"{facts}. {_solve(count, error, decimal, problem)}", FIXES)


def _solve(count: float, error: float, decimal: float, problem: Problem) -> str:
    sizes = problem.sizes
    if "num_heads" in sizes and ("q_len" in sizes or "k_len" in sizes):
        return _from_sizes(count, error, problem)
    found, lead = list(_square(count, error)), "That fits"
    if not found:
        found, lead = list(_square(decimal, decimal * error / count)), "Taken as decimal units, that fits"
    if not found:
        return (
            "Attention keeps B x H x Sq x Sk scores, so doubling the length costs four times; give the sizes to "
            "see whether this is it."
        )
    spoken = " or ".join(
        f"{rows} score matrices (batch x heads) of {n} x {n} in {ITEM_SIZES[size]}" for rows, n, size in found[:3]
    )
    return f"{lead} {spoken}: scores are B x H x Sq x Sk numbers, and double the length costs four times."


def _from_sizes(count: float, error: float, problem: Problem) -> str:
    sizes = problem.sizes
    q_len = sizes.get("q_len", sizes.get("k_len", 1))
    k_len = sizes.get("k_len", q_len)
    batch, heads = sizes.get("batch", 1), sizes["num_heads"]
    elements = batch * heads * q_len * k_len
    spoken = f"B x H x Sq x Sk = {times((batch, heads, q_len, k_len))} = {elements:,} scores"
    for size, name in ITEM_SIZES.items():
        if abs(elements * size - count) <= max(error, 0.01 * count):
            return (
                f"{spoken} x {size} bytes ({name}) are {elements * size / 2**30:.2f} GiB: it is the matrix of "
                "scores (or weights)."
            )
    ratio = count / elements
    return (
        f"{spoken} would be {elements * 4 / 2**30:.2f} GiB in float32; the request is {ratio:.3g} bytes per "
        "score, so it is another tensor or other sizes."
    )


def _square(count: float, error: float) -> Iterator[tuple[int, int, int]]:
    """Find rows x n x n x itemsize equal to a count, with usual rows and lengths, most plausible first."""
    found = []
    for item, rank in ((4, 0.0), (2, 0.5)):
        for rows in (1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 256, 512):
            n = round(math.sqrt(count / item / rows))
            if n >= 256 and abs(n * n * rows * item - count) <= max(error, 0):
                exact = 0 if power_of_two(n) else 0.4 if n % 1000 == 0 else 1 if n % 64 == 0 or n % 100 == 0 else 9
                found.append((exact + rank + 3 - usual(rows, USUAL_HEADS), rows, n, item))
    yield from ((rows, n, item) for score, rows, n, item in sorted(found) if score < 4.5)


def tensor(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain an allocation of which the shape is told."""
    shape = numbers(match["shape"])
    if not shape or min(shape) < 0:
        return None
    elements = math.prod(shape)
    said = (
        f"{times(shape)} = {elements:,} elements are {elements * 4 / 1e9:.1f} GB = {elements * 4 / 2**30:.1f} GiB "
        "in float32, half of that in float16"
    )
    if len(shape) >= 3 and shape[-1] == shape[-2]:
        said += (
            f": (batch x) heads {list(shape[:-2])} score matrices of {shape[-2]} x {shape[-1]} tokens. Half the "
            "length needs a quarter"
        )
    return Explanation(True, "memory", said + "; training keeps two or three of them.", FIXES)


NUMBER = r"(?P<amount>\d+(?:\.\d+)?)"
UNIT = r"(?P<unit>[KMGT]i?B|bytes?|B)?"
RULES: tuple[Rule, ...] = (
    rule(
        (
            r"(?:OOM|out of memory|ResourceExhausted\w*|allocat\w+).{0,60}?(?:tensor (?:with|of) "
            r")?(?:shape|a|size)\W{0,3}[\[(](?P<shape>[\d, ]+)[\])]"
        ),
        tensor,
    ),
    rule(rf"(?:out of memory|OutOfMemory\w*).*?Tried to allocate {NUMBER} ?{UNIT}", allocation),
    rule(rf"tried to allocate {NUMBER} ?{UNIT}", allocation),
    rule(
        (
            rf"(?:Unable to allocate|Failed to allocate(?: request for)?|Out of memory.{{0,40}}?allocat\w+) {NUMBER} "
            rf"?{UNIT}"
        ),
        allocation,
    ),
    rule(rf"(?:MPS backend out of memory).*?Tried to allocate {NUMBER} ?{UNIT}", allocation),
    rule(rf"Invalid buffer size: {NUMBER} ?{UNIT}", allocation),
    says(
        r"CUDA out of memory|out of memory|OutOfMemoryError|DefaultCPUAllocator|CUBLAS_STATUS_ALLOC_FAILED",
        "memory",
        "The device has no room left. Attention without a fused kernel keeps B x H x Sq x Sk scores, two or three "
        "times in "
        "training: double the length costs four times.",
        *FIXES,
    ),
    says(
        (
            r"Unsupported operator aten::\w*(?:attention|softmax|matmul|bmm)\w* encountered (?P<n>\d+) time|treated "
            r"as a "
            r"zero-op"
        ),
        "flops",
        "The counter has no formula for this operation and counts it as 0, so the products of attention, 4 x B x Sq "
        "x Sk x E "
        "FLOPs per layer, are missing from the total.",
        (
            "add 2 x 2 x B x H x Sq x Sk x D per layer by hand, or count with the MATH backend of "
            "scaled_dot_product_attention"
        ),
    ),
)
