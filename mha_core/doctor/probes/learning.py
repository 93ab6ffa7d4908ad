"""A few optimiser steps with a module, and where its gradient ends.

Axes: B batch, S tokens, E width. Steps are relative to the size of each parameter, so that neither tiny nor huge
gradients decide how far it moves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from mha_core.doctor.probes.uses import Use, answer_of, mask_choices, row_kept
from mha_core.doctor.report import Place
from mha_core.doctor.subject import Answer, Inputs, Mode, ModuleFailure, Subject
from mha_core.doctor.traces.tracing import Step, Trace, traced

STEPS = 3
STEP_SIZE = 0.02  # of a parameter's norm
_DETACHING = {
    "detach": "detach()", "detach_": "detach_()", "data": ".data", "numpy": "numpy()", "tolist": "tolist()",
    "item": "item()", "argmax": "argmax", "round": "round", "sign": "sign", "bool": "a comparison", "topk": "topk",
}  # fmt: skip


class BackwardError(Exception):
    """The backward pass raised. `text` is what torch says; `trace` holds the forward pass."""

    def __init__(self, text: str, trace: Trace) -> None:
        super().__init__(text)
        self.text = text
        self.trace = trace


@dataclass
class History:
    """Gradients over the steps.

    Attributes:
        norms: for each parameter, the norm of its gradient in each step (0 for none).
        sizes: for each parameter, its norm before the first step.
        token_norms: smallest gradient of any input token in the last step, by input name.
        touched: for each matrix, the elements that ever got a gradient, bool.
        trace: of the first forward pass. module: the copy that was trained.
    """

    module: nn.Module
    norms: dict[str, list[float]] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)
    token_norms: dict[str, float] = field(default_factory=dict)
    touched: dict[str, Tensor] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)
    reaches_output: bool = True

    @property
    def dead(self) -> list[str]:
        """Parameters that never got a gradient, in any step."""
        return [name for name, norms in self.norms.items() if not any(norms)]


def train(subject: Subject, inputs: Inputs, use: Use) -> History:
    """Take three steps of gradient descent on a random linear loss over the valid rows.

    Raises:
        ModuleFailure: the forward pass raised. BackwardError: the backward pass did.
    """
    module = subject.fresh(training=True, dropout=0.0)
    history = History(module)
    wanted = {n: p for n, p in module.named_parameters() if p.requires_grad and p.numel()}
    history.sizes = {name: float(p.detach().norm()) for name, p in wanted.items()}
    history.norms = {name: [] for name in wanted}
    for step in range(STEPS):
        module.zero_grad(set_to_none=True)
        leaves = _leaves(inputs)
        given = _handed_over(leaves)
        with traced(subject.files) as trace:
            answer = answer_of(subject, given, use, module)
        history.trace = trace if step == 0 else history.trace
        _backward(answer, use, trace, history)
        for name, parameter in wanted.items():
            grad = parameter.grad
            history.norms[name].append(0.0 if grad is None else _norm(grad))
            if grad is not None and grad.dim() == 2 and not grad.is_sparse:
                history.touched[name] = history.touched.get(name, torch.zeros(())).bool() | (grad != 0)
        history.token_norms = _tokens(leaves)
        _descend(wanted)
    return history


def _leaves(inputs: Inputs) -> Inputs:
    """Give copies that collect gradients; one object stays one object."""
    known: dict[int, Tensor] = {}
    for tensor in (inputs.query, inputs.key, inputs.value):
        if id(tensor) not in known:
            known[id(tensor)] = tensor.detach().clone().requires_grad_()
    return Inputs(known[id(inputs.query)], known[id(inputs.key)], known[id(inputs.value)])


def _handed_over(leaves: Inputs) -> Inputs:
    """Give copies in the graph of the leaves: a module may write into what it is given, as between two layers."""
    known = {id(tensor): tensor.clone() for tensor in (leaves.query, leaves.key, leaves.value)}
    return Inputs(known[id(leaves.query)], known[id(leaves.key)], known[id(leaves.value)])


def _backward(answer: Answer, use: Use, trace: Trace, history: History) -> None:
    output = answer.output
    generator = torch.Generator().manual_seed(11)
    direction = torch.randn(output.shape, generator=generator).to(output.dtype)
    rows = row_kept(use, output)
    loss = (output * direction)[rows].sum() / max(int(rows.sum()) * output.shape[-1], 1) ** 0.5
    if not loss.requires_grad:
        history.reaches_output = False
        return
    try:
        loss.backward()
    except RuntimeError as error:
        raise BackwardError(" ".join(str(error).split()), trace) from error


def _norm(grad: Tensor) -> float:
    if grad.is_sparse:
        grad = grad.to_dense()
    return float(grad.detach().double().norm())


def _tokens(inputs: Inputs) -> dict[str, float]:
    found: dict[str, float] = {}
    seen: set[int] = set()
    for name, tensor in (("query", inputs.query), ("key", inputs.key), ("value", inputs.value)):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            grad = tensor.grad
            found[name] = 0.0 if grad is None else float(grad.norm(dim=-1).min())
    return found


@torch.no_grad()
def _descend(wanted: dict[str, nn.Parameter]) -> None:
    for parameter in wanted.values():
        grad = parameter.grad
        if grad is None or not bool(torch.isfinite(grad).all()):
            continue
        norm = float(grad.norm())
        if norm:
            size = float(parameter.norm()) or float(parameter.numel()) ** 0.5
            parameter.sub_(STEP_SIZE * size / norm * grad)


def histories(subject: Subject, batch: int, length: int) -> Iterator[tuple[str, History]]:
    """Train in every way that may use other parameters: each mask, weights wanted, and keys of another sequence."""
    inputs = subject.inputs(batch, length)
    mode = Mode(training=True)
    for words, keys, pairs in mask_choices(subject, batch, length, length):
        use = Use(words, mode, keys, pairs)
        try:
            yield words, train(subject, inputs, use)
        except ModuleFailure:
            if not use.masked:
                raise
    others = [("weights wanted", inputs, Use("weights wanted", replace(mode, weights=True)))]
    if subject.can_cross:
        others.append(("other keys", subject.inputs(batch, length, length + 2), Use("other keys", mode)))
    for words, given, use in others:
        try:
            yield words, train(subject, given, use)
        except ModuleFailure:
            continue


def loses_gradient(step: Step) -> bool:
    """Whether a step took something with a gradient and gave something without."""
    taken = [one for one in step.inputs if one.is_floating_point()]
    if not any(one.requires_grad for one in taken):
        return False
    given = [one for one in step.outputs if one.is_floating_point()]
    if any(one is other for one in given for other in taken):
        return False  # it gave back what it took
    if given:
        return all(one.is_leaf for one in given)  # requires_grad_ afterwards does not mend the link
    return step.name in ("numpy", "tolist", "item")


def ending(trace: Trace, sources: Sequence[Tensor]) -> tuple[str, Place | None]:
    """Find the step where the gradient of some tensors ends: detach, .data, numpy, no_grad."""
    reached = {id(one) for one in sources}
    for step in trace.steps:
        if not any(id(one) in reached for one in step.inputs):
            continue
        if loses_gradient(step):
            if step.name in _DETACHING:
                return f"the gradient ends at {_DETACHING[step.name]}", step.place
            return ("computed under torch.no_grad()" if not step.grad else f"{step.name} has no gradient"), step.place
        reached |= {id(one) for one in step.outputs}
    return "", None


def is_used(trace: Trace, parameter: Tensor) -> bool:
    """Whether the forward pass took a parameter."""
    return bool(trace.used_by(parameter))


def in_place_cause(failure: BackwardError) -> tuple[str, Place | None]:
    """Name the step that overwrote what the backward pass needs."""
    if "inplace operation" not in failure.text:
        return "", None
    shape = re.search(r"Tensor \[([\d, ]*)\]\]", failure.text)
    wanted = tuple(int(n) for n in shape.group(1).split(",")) if shape and shape.group(1) else None
    written = [step for step in failure.trace.steps if step.changed is not None]
    fitting = [step for step in written if step.changed is not None and tuple(step.changed.shape) == wanted]
    for step in reversed(fitting or written):
        return f"{step.name} overwrites a tensor that the backward pass needs", step.place
    return "an in-place operation overwrites a tensor that the backward pass needs", None
