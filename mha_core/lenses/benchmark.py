"""The engines side by side: do all ways of writing attention agree, how long does each take, how much memory?

`measure` goes through a `Plan` step by step and yields what it knows after each step, so that whoever asks can show
progress and stop between two steps. Variants of one size and pass take turns (A B C A B C), so that a drift of the
machine hits all alike. Nothing global is changed: the thread count is the one it finds.

Axes: B batch, H heads, Sq queries, Sk keys.
"""

from __future__ import annotations

import functools
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mha_core.errors import MhaError
from mha_core.experiment import Experiment
from mha_core.lenses.bench_memory import peak_extra_bytes
from mha_core.lenses.bench_plan import DTYPES, PASSES, ROUNDS, Measurement, Pass, Plan, refusal, sizes_at
from mha_core.lenses.bench_reference import Reference, compare, cotangent_for, reference
from mha_core.lenses.bench_timing import MIN_RUNS, Stopwatch, Timing, Warning, doubts
from mha_core.lenses.bench_variants import Contender, Material, Variant, build, config_of, why_not
from mha_core.masks import MaskSizes, build_mask
from mha_core.sources.inputs import Sizes, embed
from mha_core.sources.inputs import measure as measure_source
from mha_core.trained_layer import starting_weights

__all__ = ["DTYPES", "PASSES", "Measurement", "Plan", "agreement", "latest", "machine", "measure"]

OVERTIME = 3.0  # times the given seconds that may be used for as many runs as a spread needs
AGREEMENT_CELLS = 2**20  # B x H x Sq x Sk up to which the experiment itself is compared


def material_for(experiment: Experiment, sizes: Sizes) -> Material:
    """Draw weights and inputs, and build the mask.

    Raises:
        MhaError: a custom mask of another size.
    """
    lengths = torch.tensor(sizes.k_tokens.lengths)
    mask = build_mask(experiment.mask, MaskSizes(sizes.batch, sizes.q_len, sizes.k_len, lengths))
    inputs = embed(experiment.source, sizes, experiment.attention, experiment.positions, experiment.seed)
    weights = starting_weights(experiment)
    fill = "zero" if mask is None else experiment.mask.fill
    return Material(experiment.attention, fill, weights, inputs, mask, {})


class _Group:
    """All variants at one size and pass."""

    def __init__(self, plan: Plan, length: int | None, pass_: Pass) -> None:
        self.plan, self.pass_ = plan, pass_
        self.sizes = sizes_at(plan.experiment, length)
        self.known: dict[Variant, Measurement] = {}
        self.watches: dict[Variant, Stopwatch] = {}
        self._references: dict[bool, Reference] = {}

    @functools.cached_property
    def material(self) -> Material:
        """What all contenders share; drawn when the first of them asks."""
        return material_for(self.plan.experiment, self.sizes)

    @functools.cached_property
    def cotangent(self) -> Tensor | None:
        """The loss of the backward pass."""
        return None if self.pass_ == "forward" else cotangent_for(self.material)

    def check(self, variant: Variant) -> Measurement:
        """Compare a variant with the reference and measure its memory."""
        experiment, sizes = self.plan.experiment, self.sizes
        base = Measurement(variant, sizes.batch, sizes.q_len, sizes.k_len, self.pass_)
        reason = refusal(variant, experiment, sizes, self.pass_)
        try:
            reason = reason or why_not(variant, experiment, self.material.has_empty_rows) or ""
            if reason:
                return self._keep(replace(base, reason=reason))
            contender = build(variant, self.material)
        except MhaError as error:
            return self._keep(replace(base, reason=error.problem))
        off = compare(contender, self._reference(variant), self.cotangent)
        if not self.plan.rounds:
            return self._keep(replace(base, differences=off))
        call = self._call(contender)
        self.watches[variant] = Stopwatch(call)
        return self._keep(replace(base, differences=off, peak_extra_bytes=peak_extra_bytes(call)))

    def _call(self, contender: Contender) -> Callable[[], object]:
        cotangent = self.cotangent
        return contender.infer if cotangent is None else lambda: contender.learn(cotangent)

    def _reference(self, variant: Variant) -> Reference:
        """The reference of a variant's number of heads; the weights are kept from the first that compares them."""
        if variant.one_head not in self._references:
            config = config_of(replace(variant, kernel="explicit"), self.plan.experiment.attention)
            keep = any(other.need_weights and not self._is_refused(other) for other in self.plan.contenders)
            self._references[variant.one_head] = reference(self.material, config, self.cotangent, keep_weights=keep)
        return self._references[variant.one_head]

    def _is_refused(self, variant: Variant) -> bool:
        return bool(refusal(variant, self.plan.experiment, self.sizes, self.pass_))

    def visit(self, variant: Variant, slot_s: float) -> Measurement:
        """Time a variant for a while."""
        self.watches[variant].visit(slot_s)
        timing = self.watches[variant].read()
        warnings = (*doubts(timing), *self._slow_format(variant, timing), *_few_threads())
        return self._keep(replace(self.known[variant], timing=timing, warnings=warnings))

    def _slow_format(self, variant: Variant, timing: Timing) -> tuple[Warning, ...]:
        """Say where a shorter format is slower than float32 beyond the spread."""
        twin = self.known.get(replace(variant, dtype="float32"))
        if variant.dtype in ("float32", "float64") or twin is None or twin.timing is None:
            return ()
        if timing.low_ms <= twin.timing.high_ms:
            return ()
        times = timing.median_ms / twin.timing.median_ms
        cost = "what it costs here (casts, missing hardware support) is more than what it saves"
        sentence = f"{variant.dtype} takes {times:.1f} times as long as float32: {cost}."
        return (Warning("slow_format", sentence),)

    def _keep(self, measurement: Measurement) -> Measurement:
        self.known[measurement.variant] = measurement
        return measurement

    def steps(self) -> Iterator[Measurement]:
        """Check every variant, then time them in turn."""
        for variant in self.plan.contenders:
            yield self.check(variant)
        slot_s = self.plan.seconds / (max(1, len(self.watches)) * ROUNDS)
        start = time.perf_counter()
        for number in range(self.plan.rounds):
            for variant in self.plan.contenders:
                allowed_s = self.plan.seconds * (OVERTIME if number < MIN_RUNS else 1.0)
                is_over = number > 0 and time.perf_counter() - start > allowed_s
                if variant in self.watches and not is_over:
                    yield self.visit(variant, slot_s)
                else:
                    yield self.known[variant]


def _few_threads() -> tuple[Warning, ...]:
    used, there = torch.get_num_threads(), os.cpu_count() or 1
    if used >= there:
        return ()
    return (Warning("threads", f"Torch used {used} of {there} cores; with more threads other variants may win."),)


def measure(plan: Plan) -> Iterator[Measurement]:
    """Take `plan.total` steps; each yields what is then known of one variant."""
    for length in plan.lengths:
        for pass_ in plan.passes:
            yield from _Group(plan, length, pass_).steps()  # type: ignore[arg-type]  # checked by the plan


def latest(results: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Give the last measurement of each variant, size and pass, in the order they were begun."""
    return tuple({result.key: result for result in results}.values())


def agreement(experiment: Experiment, dtypes: Sequence[str], passes: Sequence[str] = ("forward",)) -> Plan:
    """Plan one comparison of all variants without timing; long experiments are cut to what is quick."""
    sizes = measure_source(experiment.source)
    cells = sizes.batch * experiment.attention.num_heads * sizes.q_len * sizes.k_len
    length = None
    if cells > AGREEMENT_CELLS and "custom" not in experiment.mask.kinds:
        length = max(1, int(sizes.q_len * math.sqrt(AGREEMENT_CELLS / cells)))
    return Plan(experiment, (length,), tuple(passes), tuple(dtypes), seconds=0.0)


def machine() -> dict[str, Any]:
    """Describe what the times belong to."""
    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
