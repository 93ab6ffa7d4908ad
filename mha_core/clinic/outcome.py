"""What one side of a mistake does on a case: maps, output, numbers, gradients, probes, or the error it stops with.

Axes: B batch, H heads, Sq queries, Sk keys, E width.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mha_core.clinic.case import Case, add_padding, change_last_sequence, change_last_token
from mha_core.clinic.recipe import BIASES, MATRICES, Ran, recipe, run_lines
from mha_core.clinic.record import Mistake, Side
from mha_core.experiment import precision
from mha_core.init_schemes import generator_for

EXPLAINER = "mha_core.doctor.explain"
TRAINING_STEPS = 3
STEP_SHARE = 0.01  # of a matrix' norm, or of 1 where it is zero: what one step of descent moves
_WARNINGS = threading.Lock()  # catching warnings changes the whole process


@dataclass(frozen=True)
class Number:
    """A number with its name and unit ("" for none)."""

    name: str
    value: float
    unit: str = ""


@dataclass(frozen=True)
class Fact:
    """A tensor on the way: after which step, its name, shape, number format, whether its elements lie in order."""

    step: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    is_contiguous: bool


@dataclass(frozen=True)
class Failure:
    """Where the lines stopped, what Python says, and what that means where it is known."""

    step: str
    text: str
    explanation: str = ""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one side does.

    Attributes:
        maps: what a person looks at, (B, H, Sq, Sk), float32; None where there are none.
        output: (B, Sq, E), float32; None where it was not reached.
        loss: a fixed weighted sum of the outputs of real tokens.
        gradients: Frobenius norm of the loss' gradient per matrix; 0 where none arrives.
        numbers: statistics and what the lines report.
        moved: per probe, by how much each output moves, (B, Sq); probes that cannot be asked are left out.
        facts: the tensors in order. failure: None where everything ran. warnings: what was warned of.
    """

    maps: Tensor | None
    output: Tensor | None
    loss: float | None
    gradients: Mapping[str, float]
    numbers: tuple[Number, ...]
    moved: Mapping[str, Tensor]
    facts: tuple[Fact, ...]
    failure: Failure | None
    warnings: tuple[str, ...] = field(default=())

    def number(self, name: str) -> float | None:
        """Give a number by its name, None where there is none."""
        return next((number.value for number in self.numbers if number.name == name), None)


def one_line(error: BaseException) -> str:
    """Give an error as one line, as Python prints it."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _explained(text: str, case: Case) -> str:
    """Ask the error explainer what a text means, where there is one and it knows."""
    if importlib.util.find_spec(EXPLAINER) is None:
        return ""
    explain: Any = importlib.import_module(EXPLAINER).explain
    config = case.experiment.attention
    sizes = {"B": case.query.shape[0], "Sq": case.query.shape[1], "Sk": case.key.shape[1]}
    sizes |= {"E": config.embed_dim, "H": config.num_heads, "D": config.head_dim}
    found = explain(text, sizes)
    return str(found.explanation) if found.known else ""


def loss_of(case: Case, output: Tensor) -> Tensor:
    """Weigh the outputs of real tokens by fixed random numbers and add them up."""
    direction = torch.randn(output.shape, generator=generator_for(case.experiment.seed, "direction"))
    return (output.float() * direction)[case.keep_q].sum() / output.shape[-1]


def _gradients(case: Case, ran: Ran) -> tuple[float | None, dict[str, Tensor]]:
    """Run one backward pass. Returns the loss and the gradient per matrix, zeros where none arrives."""
    output = ran.tensor("output")
    leaves = {name: ran.names[variable] for name, variable in MATRICES.items()}
    if output is None or output.shape[:2] != case.keep_q.shape:
        return None, {}
    loss = loss_of(case, output)
    if not loss.requires_grad:
        return loss.item(), {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return loss.item(), {n: torch.zeros_like(leaf) if g is None else g for (n, leaf), g in pairs}


def _norms(gradients: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: gradient.double().norm().item() for name, gradient in gradients.items()}


def _trained(case: Case, lines: dict[str, str]) -> dict[str, float]:
    """Give the gradient norms after a few steps of plain gradient descent."""
    for step in range(TRAINING_STEPS + 1):
        with precision(case.experiment):
            ran = run_lines(case, lines, leaves=True)
        gradients = {} if ran.error else _gradients(case, ran)[1]
        if not gradients or step == TRAINING_STEPS:
            return _norms(gradients)
        weights = {f"{name}_bias": ran.names[variable] for name, variable in BIASES.items()}
        for name, variable in MATRICES.items():
            matrix, gradient = ran.names[variable].detach(), gradients[name]
            rate = STEP_SHARE * (matrix.norm() or torch.tensor(1.0)) / gradient.norm().clamp_min(1e-30)
            weights[name] = matrix - (rate * gradient).to(matrix.dtype)
        case, lines = replace(case, weights=replace(case.weights, **weights)), lines | {"init": ""}
    raise AssertionError("the last step returns")


def _probes(case: Case) -> Iterator[tuple[str, Case]]:
    """Give the changed cases, by probe."""
    yield "token", change_last_token(case)
    other = change_last_sequence(case)
    if other is not None:
        yield "sequence", other
    padded = add_padding(case)
    if padded is not None:
        yield "padding", padded
    yield "again", replace(case, run_seed=1)


@torch.no_grad()
def _evaluated(case: Case, mistake: Mistake | None, side: Side) -> Tensor | None:
    """Give the output (B, Sq, E) as after `eval()`."""
    with precision(case.experiment):
        ran = run_lines(case, recipe(case, mistake, side), training=False)
    ran.names.pop("mha")
    output = ran.tensor("output")
    return None if ran.error is not None or output is None else output.float()


def _moved(case: Case, mistake: Mistake | None, side: Side) -> dict[str, Tensor]:
    """Run every probe and measure how far each output moves, (B, Sq)."""
    output, found = _evaluated(case, mistake, side), {}
    for name, changed in () if output is None else _probes(case):
        moved = _evaluated(changed, mistake, side)
        if moved is not None and output is not None and moved.shape[0] == output.shape[0]:
            found[name] = (moved[:, : output.shape[1]] - output).abs().amax(-1)
    return found


def _visible(values: Tensor) -> float:
    """Give the largest finite value; NaN where one is not finite; 0 of nothing."""
    return values.max().item() if values.numel() else 0.0


def _map_numbers(case: Case, maps: Tensor) -> Iterator[Number]:
    """Describe maps (B, H, Sq, Sk) by the mask they should have obeyed."""
    allowed = case.mask.expand(maps.shape[0], maps.shape[1], -1, -1)
    rows = case.keep_q[:, None].expand(maps.shape[:3]) & allowed.any(-1)
    sums = maps.sum(-1)[rows]
    yield Number("smallest row sum", sums.min().item() if sums.numel() else 0.0)
    yield Number("largest row sum", _visible(sums))
    yield Number("weight on hidden keys, largest of a row", _visible((maps * ~allowed).sum(-1)[rows]))
    entropy = -torch.special.xlogy(maps, maps).sum(-1)[rows]
    yield Number("keys a row really uses, mean", entropy.exp().mean().item() if entropy.numel() else 0.0, "keys")
    spread = (maps - maps.mean(1, keepdim=True)).abs().sum(-1).mean(1)[case.keep_q]
    yield Number("difference between heads, mean", spread.mean().item() if spread.numel() else 0.0)


def _numbers(case: Case, mistake: Mistake | None, ran: Ran, maps: Tensor | None) -> Iterator[Number]:
    for variable, name, unit in () if mistake is None else mistake.reports:
        if variable in ran.names:
            yield Number(name, float(ran.names[variable]), unit)
    if ran.scores is not None and ran.scores.ndim == 4 and ran.scores.shape[-2:] == case.mask.shape[-2:]:
        shown = ran.scores.detach().float()[case.mask.expand(ran.scores.shape[:2] + case.mask.shape[2:])]
        yield Number("spread (std) of the scores", shown.std(correction=0).item() if shown.numel() else 0.0)
    if maps is not None and maps.shape[0] == case.mask.shape[0] and maps.shape[-2:] == case.mask.shape[-2:]:
        yield from _map_numbers(case, maps)
    output = ran.tensor("output")
    if output is not None:
        bad = int((~output.detach().isfinite()).sum())
        yield Number("numbers in the output that are not finite", bad, f"of {output.numel():,}")
        finite = output.detach().float().nan_to_num(0.0, 0.0, 0.0)
        yield Number("size (RMS) of the output", finite.square().mean().sqrt().item())


def _moved_numbers(case: Case, moved: Mapping[str, Tensor]) -> Iterator[Number]:
    """Say how far outputs move that a probe should leave alone."""
    if "token" in moved and case.is_self and "causal" in case.experiment.mask.kinds:
        last = case.keep.long().cumsum(-1).argmax(-1)
        earlier = torch.arange(case.query.shape[1]) < last[:, None]
        yield Number("earlier outputs moved by the last token", _visible(moved["token"][earlier & case.keep_q]))
    for probe, name in (
        ("sequence", "outputs moved by another sequence"),
        ("padding", "outputs moved by added padding"),
        ("again", "outputs moved by a second run"),
    ):
        if probe in moved:
            found = moved[probe][:-1] if probe == "sequence" else moved[probe]
            yield Number(name, _visible(found[case.keep_q[: len(found)]]))


def look(case: Case, mistake: Mistake | None = None, side: Side = "right") -> tuple[Outcome, dict[str, Tensor]]:
    """Run one side of a mistake, or the plain layer. Returns everything there is to see, and the gradients."""
    lines = recipe(case, mistake, side)
    training = False if mistake is not None and mistake.evaluating else None
    with _WARNINGS, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with precision(case.experiment):
            ran = run_lines(case, lines, training=training, leaves=True)
    ran.names.pop("mha")
    facts = tuple(Fact(*fact) for fact in ran.facts)
    warned = tuple(dict.fromkeys(str(one.message) for one in caught))
    if ran.error is not None:
        text = one_line(ran.error)
        failure = Failure(ran.step, text, _explained(text, case))
        return Outcome(None, None, None, {}, (), {}, facts, failure, warned), {}
    loss, gradients = _gradients(case, ran)
    shown, output = ran.tensor("shown"), ran.tensor("output")
    maps = None if shown is None or shown.ndim != 4 else shown.detach().float()
    read = None if output is None else output.detach().float()
    moved = {} if read is None else _moved(case, mistake, side)
    numbers = [*_numbers(case, mistake, ran, maps), *_moved_numbers(case, moved)]
    norms = _norms(gradients)
    if mistake is not None and mistake.trains:
        later = _trained(case, lines)
        numbers += [Number(f"gradient of {n} after {TRAINING_STEPS} steps", value) for n, value in later.items()]
    return Outcome(maps, read, loss, norms, tuple(numbers), moved, facts, None, warned), gradients
