"""Mistakes of modes and gradients: random numbers in evaluation, tensors out of autograd, weights nobody knows."""

from __future__ import annotations

from torch import Tensor, nn

from mha_core.doctor.report import Place
from mha_core.doctor.traces.definitions import enclosing
from mha_core.doctor.traces.fused import arguments
from mha_core.doctor.traces.operands import is_projection
from mha_core.doctor.traces.products import product
from mha_core.doctor.traces.tracing import Step, Trace

Cause = tuple[str, Place | None]
UNKNOWN: Cause = ("", None)
DROPOUTS = (
    "dropout",
    "dropout_",
    "alpha_dropout",
    "feature_dropout",
    "feature_alpha_dropout",
    "dropout1d",
    "dropout2d",
)
RANDOM = ("rand", "rand_like", "randn", "randn_like", "bernoulli", "bernoulli_", "multinomial", "normal_", "uniform_")
LEAVES = ("detach", "detach_", "data", "numpy", "tolist", "__array__", "stop_gradient")
SHIFTS = ("max", "amax", "mean", "min", "amin", "logsumexp", "sum")


def dropout_cause(trace: Trace) -> Cause:
    """Name what draws random numbers in a pass that was run in evaluation mode."""
    for step in trace.steps:
        if step.name in DROPOUTS:
            chance, training = step.argument(1, "p", 0.5), step.argument(2, "training", True)
            if training and chance:
                return "dropout runs in evaluation too: training=self.training is missing", step.place
        if step.name == "scaled_dot_product_attention" and arguments(step).get("dropout_p"):
            return "dropout_p is given in evaluation too: use p if self.training else 0.0", step.place
    for step in trace.steps:
        if step.name in RANDOM:
            return f"{step.name} draws random numbers in evaluation too", step.place
    return UNKNOWN


def detach_cause(trace: Trace) -> Cause:
    """Name where a tensor that depends on the weights leaves autograd."""
    learns: dict[int, bool] = {}
    lost: Step | None = None
    for step in trace.steps:
        sources = [t for t in step.inputs if t.is_floating_point() or t.is_complex()]
        depends = any(learns.get(id(t), isinstance(t, nn.Parameter)) for t in sources)
        if depends and step.place is not None and step.name in LEAVES and _matters(trace, step):
            words = {"data": ".data", "numpy": "numpy()", "tolist": "tolist()"}.get(step.name, f"{step.name}()")
            return f"{words} takes a tensor out of autograd: nothing before it learns", step.place
        lost = lost or (step if depends and not step.grad and _multiplies(trace, step) else None)
        for tensor in step.outputs:
            learns[id(tensor)] = depends
    if lost is not None and any(s.grad for s in trace.steps):
        return "part of the pass runs under no_grad: nothing in it learns", enclosing(trace, lost.place, "no_grad")
    return UNKNOWN


def _multiplies(trace: Trace, step: Step) -> bool:
    return is_projection(trace, step) or product(trace, step) is not None


def _matters(trace: Trace, step: Step) -> bool:
    """Whether a detached tensor goes on as data, not as a maximum subtracted for stability or a number to look at."""
    source = step.inputs[0]
    made = trace.made_before(source, step.index)
    if source.numel() <= 1 or (made is not None and made.name in SHIFTS):
        return False
    if step.name in ("numpy", "tolist", "__array__"):
        return True
    return _multiplied_later(trace, step.output if isinstance(step.output, Tensor) else source, step.index)


def _multiplied_later(trace: Trace, tensor: Tensor, index: int) -> bool:
    """Whether a tensor goes on to a product or a projection; else it is only looked at or returned."""
    waiting: list[tuple[Tensor, int]] = [(tensor, index)]
    seen: set[int] = set()
    while waiting and len(seen) < 200:
        tensor, index = waiting.pop()
        for step in trace.used_by(tensor):
            if step.index <= index or step.index in seen:
                continue
            seen.add(step.index)
            if _multiplies(trace, step):
                return True
            if step.name not in SHIFTS:
                waiting += [(given, step.index) for given in step.outputs if given.is_floating_point()]
    return False


def unregistered_cause(trace: Trace, module: nn.Module) -> Cause:
    """Name weights that a step multiplies by and that the module's parameters do not contain."""
    known = {id(p) for p in module.parameters()} | {id(b) for b in module.buffers()}
    for step in trace.steps:
        for tensor in step.inputs:
            if isinstance(tensor, nn.Parameter) and id(tensor) not in known:
                return "layers are kept in a plain list or dict: their weights are not registered", step.place
    for step in trace.steps:
        for tensor in step.inputs[-2:] if step.name in ("linear", "matmul", "einsum") else ():
            loose = tensor.requires_grad and tensor.is_leaf and id(tensor) not in known
            if loose and trace.made(tensor) is None and tensor is not step.inputs[0]:
                return "a weight is a plain tensor, not an nn.Parameter: no optimiser knows it", step.place
    return UNKNOWN
