"""Mistakes of the scale and of the softmax axis."""

from __future__ import annotations

import math

from mha_core.doctor.report import Place
from mha_core.doctor.traces.cores import Core
from mha_core.doctor.traces.definitions import SCALE, SOFTMAX, defined
from mha_core.doctor.traces.operands import Sizes, operands
from mha_core.doctor.traces.origins import unpacked
from mha_core.doctor.traces.tracing import Trace

Cause = tuple[str, Place | None]
UNKNOWN: Cause = ("", None)


def scale_cause(core: Core, embed_dim: int, head_dim: int, trace: Trace | None = None) -> Cause:
    """Name a scale that is not 1/sqrt(head_dim); the line is that of the factor that does not belong.

    With the trace, a factor kept in an attribute is followed to the line that gave it its value.
    """
    if core.factor is None or head_dim < 2 or _near(core.factor, head_dim**-0.5):
        return UNKNOWN
    named = {
        1.0: "scores are not scaled: 1/sqrt(head_dim) is missing",
        1 / head_dim: "scores are divided by head_dim, not by its root",
        head_dim**0.5: "scores are multiplied by sqrt(head_dim) instead of divided by it",
        head_dim**-0.25: "only one of queries and keys is scaled by head_dim^-1/4",
        float(head_dim): "scores are multiplied by head_dim",
    }
    if embed_dim != head_dim:
        named[embed_dim**-0.5] = "scores are divided by sqrt(embed_dim), not by sqrt(head_dim)"
        named[1 / embed_dim] = "scores are divided by embed_dim, not by sqrt(head_dim)"
        named[(embed_dim * head_dim) ** -0.5] = "scores are divided by sqrt(embed_dim) and by sqrt(head_dim)"
    k_len, heads = core.k.shape[-2], embed_dim // head_dim
    if heads > 1:
        named.setdefault(heads**-0.5, "scores are divided by sqrt(num_heads), not by sqrt(head_dim)")
    if k_len > 1:
        named.setdefault(k_len**-0.5, "scores are divided by the root of the length, not by sqrt(head_dim)")
    words = next((text for value, text in named.items() if _near(core.factor, value)), "")
    roots = [value for value, _ in core.factors if _near(value, head_dim**-0.5)]
    if _near(core.factor, 1 / head_dim) and len(roots) == 2:
        words = "1/sqrt(head_dim) is applied twice"
    if not words:
        return UNKNOWN
    value, place = _odd_one(core, head_dim)
    known = trace is None or value is None or _near(value, head_dim**-0.5)  # a right number, used at a wrong place
    return words, place if known or trace is None else defined(trace, place, SCALE)


def late_scale_cause(core: Core) -> Cause:
    """Name a product that is scaled only after it is computed."""
    if core.walk is None:
        return UNKNOWN
    inside = None if core.product_step is None else core.product_step
    late = [step for value, step in core.walk.scalars if value is not None and abs(value) < 1 and step is not inside]
    if not late:
        return UNKNOWN
    return "scores are scaled after the product: in half precision q·k overflows first", late[0].place


def softmax_cause(trace: Trace, core: Core, *, batch: int, q_len: int, k_len: int, num_heads: int) -> Cause:
    """Name a softmax over another axis than the keys, or a second one."""
    if core.double is not None:
        return "softmax of a softmax: the weights are flattened", core.double.place
    place = defined(trace, core.softmax_place, SOFTMAX)
    size = core.scores.shape[core.dim]
    if size == q_len * k_len and min(q_len, k_len) > 1 and core.weights.shape[-2:] != (q_len, k_len):
        return "softmax over all pairs of queries and keys, not over the keys of each query", place
    if core.k.shape[-2] == 1:
        return UNKNOWN  # one key: every axis looks alike
    if core.scores.shape[core.dim] == 1 and k_len > 1:
        return "softmax over an axis of size 1: all weights are 1", place
    if core.dim == -1:
        return UNKNOWN
    if core.dim == -2:
        return "softmax over the queries, not over the keys", place
    try:
        axis = _axis_name(trace, core, Sizes(batch, q_len, k_len, num_heads))
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError):
        axis = "batch" if core.dim == -core.scores.dim() else "heads"
    return f"softmax over the {axis}, not over the keys", place


def _axis_name(trace: Trace, core: Core, sizes: Sizes) -> str:
    size = core.scores.shape[core.dim]
    found = operands(trace, core, sizes)
    scores = core.softmax_step.inputs[0] if core.softmax_step is not None else None
    numbers = None if scores is None or core.softmax_step is None else found.origins.of(scores, core.softmax_step.index)
    if numbers is not None and core.aligned is not None and numbers.dim() == core.scores.dim():
        sample = unpacked(numbers).sample.permute(core.aligned.order)
        varies = bool((sample != sample.narrow(core.dim, 0, 1)).any())
        folded = size > sizes.batch and size == sizes.batch * sizes.num_heads
        return ("batch and the heads" if folded else "batch") if varies or sizes.batch == size == 1 else "heads"
    return "batch" if core.dim == -core.scores.dim() and size != sizes.num_heads else "heads"


def _odd_one(core: Core, head_dim: int) -> tuple[float | None, Place | None]:
    """Find the factor to change and its line: the last that is not 1/sqrt(head_dim) once."""
    if not core.factors:
        return None, core.scores_place
    right = [i for i, (value, _) in enumerate(core.factors) if _near(value, head_dim**-0.5)]
    right = right[::-1] if core.kind == "sdpa" else right  # its own scale is the one that stays
    odd = [i for i in range(len(core.factors)) if i not in right[:1]]
    return core.factors[(odd or [len(core.factors) - 1])[-1]]


def _near(value: float, wanted: float) -> bool:
    return math.isclose(value, wanted, rel_tol=2e-3)
