"""Does the module behave the same whatever it did before, in whatever mode it is asked?

Dropout lost after eval, caches kept from another length, another path when weights are wanted. Everything is compared
with a copy that was never called, under the same seed. Axes: B batch, S tokens, E width.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.doctor.causes.pointing import attention_line
from mha_core.doctor.probes.in_training import mode_kept, unscaled_dropout
from mha_core.doctor.probes.influence import Look
from mha_core.doctor.probes.uses import Use, answer_of, difference, look, mask_choices, probe_sizes, row_kept
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import Inputs, Mode, ModuleFailure, Subject

CLOSE = 1e-3  # relative; far above rounding, far below a mistake
_STATISTICS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def _result(status: Any, reason: str, evidence: Any, cause: str = "", where: Place | None = None) -> CheckResult:
    return CheckResult("mode_round_trip", status, reason, evidence, cause, where)


@dataclass(frozen=True)
class _Bench:
    """The subject with the inputs that the questions share."""

    subject: Subject
    inputs: Inputs
    statistics: bool  # whether a layer of the module follows its inputs' statistics by design
    moves: bool  # whether a forward pass in training changes the state

    def output(self, module: nn.Module | None, mode: Mode, seed: int = 1, inputs: Inputs | None = None) -> Tensor:
        """Give the output without masks."""
        return answer_of(self.subject, inputs or self.inputs, Use("", mode), module, seed=seed).output.detach()


def _line(subject: Subject, *words: str) -> Place | None:
    """Find the line of the module's class that sets one of these words on self."""
    for part in subject.module.modules():
        try:
            lines, start = inspect.getsourcelines(type(part))
            file = inspect.getsourcefile(type(part)) or ""
        except (OSError, TypeError):
            continue
        if file not in subject.files:
            continue
        inside = False
        for offset, line in enumerate(lines):
            inside = "def __init__" not in line if line.lstrip().startswith("def ") else inside
            if inside and re.search(r"self\.(\w*)(" + "|".join(words) + r")\w*\s*(\[.*\]\s*)?=[^=]", line):
                return Place(file.rsplit("/", 1)[-1], start + offset, line.strip())
    return None


def _dropout_survives(bench: _Bench) -> CheckResult | None:
    """Train, eval, train: the third as the first."""
    module = bench.subject.fresh(training=True, dropout=0.5)
    train = Mode(training=True)
    before = [bench.output(module, train, seed) for seed in (1, 2)]
    bench.output(module, Mode())
    after = [bench.output(module, train, seed) for seed in (1, 2)]
    was, now = difference(before[1], before[0]), difference(after[1], after[0])
    evidence = {"change_by_seed_before_eval": was, "change_by_seed_after_eval": now}
    if was > CLOSE > now:
        reason = f"in training, two seeds differ by {was:.2g} before eval and by {now:.2g} after it: dropout is lost"
        line = _line(bench.subject, "p", "drop")
        return _result(
            "fail", reason, evidence, "eval overwrites the dropout rate on self and nothing restores it", line
        )
    gap = difference(after[0], before[0])
    if gap > CLOSE and not bench.moves:  # what moves the state is for `_eval_survives`
        reason = f"training with one seed differs by {gap:.2g} of the largest output before and after an eval call"
        return _result("fail", reason, evidence, "something is kept on self between calls")
    return None


def _eval_survives(bench: _Bench) -> CheckResult | None:
    """An eval output does not change by a forward pass in training, nor the state by a forward pass in eval."""
    module = bench.subject.fresh(dropout=0.0)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    before = bench.output(module, Mode())
    written = [n for n, t in module.state_dict().items() if n not in state or not _same(state[n], t)]
    if written:
        reason = f"a forward pass in eval changes the state: {', '.join(written[:4])}"
        return _result(
            "warn", reason, {"changed": written}, "buffers are written in eval", _line(bench.subject, *written)
        )
    bench.output(module, Mode(training=True))
    moved = [n for n, t in module.state_dict().items() if n not in state or not _same(state[n], t)]
    gap = difference(bench.output(module, Mode()), before)
    evidence = {"relative_change": gap, "changed": moved}
    if gap <= CLOSE:
        return None
    if bench.statistics:
        return _result("by_design", f"a forward pass in training moves running statistics ({moved[0]})", evidence)
    if moved:
        what = f"changes {', '.join(moved[:4])} and the eval output by {gap:.2g} of its largest value"
        reason = f"a forward pass in training, without an optimiser step, {what}"
        return _result("warn", reason, evidence, "state is updated in forward", _line(bench.subject, *moved))
    reason = f"the eval output changes by {gap:.2g} of its largest value after one forward pass in training"
    return _result("fail", reason, evidence, "something is kept on self between calls")


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)))


def _modes_agree(bench: _Bench) -> CheckResult | None:
    """Training without dropout, eval, and eval with weights wanted: one output, with every mask."""
    batch, length = bench.inputs.query.shape[:2]
    random = difference(bench.output(None, Mode(True, False, 0.0), 2), bench.output(None, Mode(True, False, 0.0), 1))
    for words, keys, pairs in mask_choices(bench.subject, batch, length, length):
        plain = answer_of(bench.subject, bench.inputs, Use("", Mode(), keys, pairs), seed=1)
        rows = row_kept(Use("", Mode(), keys, pairs), plain.output)
        raised = _raises_in_training(bench, Use(f"training with dropout, {words}", Mode(True, False, 0.5), keys, pairs))
        if raised is not None:
            return raised
        for mode, name in ((Mode(weights=True), "when weights are wanted"), (Mode(True, False, 0.0), "in training")):
            if mode.training and (random > CLOSE or bench.moves):
                continue
            use = Use(f"{name}, {words}", mode, keys, pairs)
            other = answer_of(bench.subject, bench.inputs, use, seed=1)
            gap = difference(other.output, plain.output, rows)
            if gap > CLOSE:
                evidence = {"use": use.words, "relative_difference": gap}
                what = "training without dropout" if mode.training else "the output with weights wanted"
                reason = f"{what} differs from eval by {gap:.2g} of the largest output ({words})"
                cause = "two paths through the module do not compute the same"
                return _result("fail", reason, evidence, cause, _path_line(bench, use))
    return None


def _path_line(bench: _Bench, use: Use) -> Place | None:
    """Find the attention of the path that differs."""
    sight = look(bench.subject, bench.inputs, use, seed=1)
    return attention_line(Look(sight.answer, sight.trace, sight.cores))


def _raises_in_training(bench: _Bench, use: Use) -> CheckResult | None:
    try:
        answer_of(bench.subject, bench.inputs, use)
    except ModuleFailure as failure:
        reason = f"{use.words} raises {failure.text}; eval does not"
        return _result(
            "fail", reason, {"use": use.words, "error": failure.text}, "training takes another path", failure.place
        )
    return None


def _other_calls(bench: _Bench) -> list[tuple[str, Inputs]]:
    """Inputs of other lengths and batch sizes. The first is the usual one."""
    subject = bench.subject
    batch, length = bench.inputs.query.shape[:2]
    calls = [("the same input", bench.inputs)]
    for words, size, tokens in (
        ("a longer input", batch, length + 6),
        ("a shorter input", batch, length - 2),
        ("a larger batch", batch + 3, length),
        ("one sample", 1, length),
    ):
        calls.append((words, subject.inputs(size, tokens, seed=2)))
    return calls


def _calls_do_not_interfere(bench: _Bench) -> CheckResult | None:
    """One module called with other sizes, there and back: as a copy that was never called."""
    expected: list[tuple[str, Inputs, Tensor]] = []
    for words, inputs in _other_calls(bench):
        try:
            expected.append((words, inputs, bench.output(None, Mode(), inputs=inputs)))
        except ModuleFailure:  # a length it does not take at all
            if words == "the same input":
                raise
    usual = expected[0]
    for other in expected[1:]:
        for order in ((usual, other, usual), (other, usual, other)):
            found = _sequence(bench, order)
            if found is not None:
                return found
    return None


def _sequence(bench: _Bench, order: tuple[tuple[str, Inputs, Tensor], ...]) -> CheckResult | None:
    module, before = bench.subject.fresh(), ""
    for _, inputs, expected in order:
        shapes = f"{tuple(inputs.query.shape)}" + (f" after {before}" if before else "")
        evidence: dict[str, Any] = {"input": shapes}
        try:
            output = bench.output(module, Mode(), inputs=inputs)
        except ModuleFailure as failure:
            reason = f"a second call raises {failure.text} (input {shapes}); a module never called before does not"
            return _result(
                "fail", reason, evidence | {"error": failure.text}, _KEPT, failure.place or _kept_line(bench)
            )
        gap = difference(output, expected)
        if gap > CLOSE:
            words = f"(input {shapes}): {gap:.2g} of the largest output"
            reason = f"a second call differs from the first call of an unused copy {words}"
            return _result("fail", reason, evidence | {"relative_difference": gap}, _KEPT, _kept_line(bench))
        before = f"{tuple(inputs.query.shape)}"
    return None


_KEPT = "a mask, table or cache of an earlier call is kept on self and used again"


def _kept_line(bench: _Bench) -> Place | None:
    return _line(
        bench.subject, "cache", "mask", "past", "bias", "cos", "sin", "table", "freq", "pos", "prev", "last", "k", "v"
    )


def _other_dtype(bench: _Bench) -> CheckResult | None:
    """The module turned to float64 after a call in float32, against one that was turned before any call."""
    wide = {id(t): t.double() for t in (bench.inputs.query, bench.inputs.key, bench.inputs.value)}
    inputs = Inputs(*(wide[id(t)] for t in (bench.inputs.query, bench.inputs.key, bench.inputs.value)))
    try:
        expected = bench.output(bench.subject.fresh().double(), Mode(), inputs=inputs)
    except ModuleFailure:
        return None
    module = bench.subject.fresh()
    bench.output(module, Mode())
    module.double()
    try:
        output = bench.output(module, Mode(), inputs=inputs)
    except ModuleFailure as failure:
        reason = f"after a call in float32, the module turned to float64 raises {failure.text}"
        return _result("fail", reason, {"error": failure.text}, _KEPT, failure.place or _kept_line(bench))
    gap = difference(output, expected)
    if gap > CLOSE or output.dtype != expected.dtype:
        words = f"gives {output.dtype} values that differ by {gap:.2g} of the largest output"
        reason = f"after a call in float32, the module turned to float64 {words}"
        return _result("fail", reason.replace("torch.", ""), {"relative_difference": gap}, _KEPT, _kept_line(bench))
    return None


def _moves(subject: Subject, inputs: Inputs) -> bool:
    module = subject.fresh()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    answer_of(subject, inputs, Use("", Mode(training=True)), module)
    return any(name not in before or not _same(before[name], tensor) for name, tensor in module.state_dict().items())


def _mode_kept(bench: _Bench) -> CheckResult | None:
    return mode_kept(bench.subject, bench.inputs)


def _unscaled(bench: _Bench) -> CheckResult | None:
    return unscaled_dropout(bench.subject, bench.inputs)


_QUESTIONS: tuple[Callable[[_Bench], CheckResult | None], ...] = (
    _calls_do_not_interfere,
    _dropout_survives,
    _modes_agree,
    _eval_survives,
    _other_dtype,
    _mode_kept,
    _unscaled,
)


@torch.no_grad()
def check(subject: Subject) -> CheckResult:
    """Ask for the same behaviour whatever came before."""
    batch, length = probe_sizes(subject)
    inputs = subject.inputs(batch, length)
    statistics = any(isinstance(part, _STATISTICS) for part in subject.module.modules())
    bench = _Bench(subject, inputs, statistics, _moves(subject, inputs))
    found = [result for question in _QUESTIONS if (result := question(bench)) is not None]
    if found:
        return min(found, key=lambda result: ("fail", "warn", "by_design").index(result.status))
    evidence = {"questions": ["dropout", "other sizes", "train, eval and weights", "state", "other dtype"]}
    return _result(
        "pass", "train, eval and train again, other sizes and dtypes before: the outputs stay the same", evidence
    )
