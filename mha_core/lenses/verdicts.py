"""Verdicts on gradients, and the reason from the chain rule: which factor is zero, tiny or huge.

With y = context Woutᵀ, context = weights v, weights = softmax(scores), scores = scale q kᵀ, q = x Wqᵀ:

    dL/dWout = (dL/dy)ᵀ context             dL/dcontext = dL/dy Wout
    dL/dv = weightsᵀ dL/dcontext            dL/dweights = dL/dcontext vᵀ
    dL/dscores = weights ⊙ (dL/dweights - Σ_keys weights dL/dweights)
    dL/dq = scale dL/dscores k              dL/dk = scale (dL/dscores)ᵀ q
    dL/dWq = (dL/dq)ᵀ x, and so for k and v; a bias gets the sum over the rows

A verdict compares with the same layer started by Xavier-uniform, gain 1, on the same input, loss and seed: how large a
gradient "should" be depends on all of these, so no fixed number would do. FAR is two orders of magnitude: a learning
rate that suits Xavier then moves the parameter a hundred times too little or too much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mha_core.choices import Experiment
from mha_core.init_schemes import InitSpec
from mha_core.lenses.gradients import Flow, Gradients, backward
from mha_core.trained_layer import with_init

VerdictKind = Literal["dead", "vanishing", "healthy", "exploding", "by design"]
VERDICTS: tuple[VerdictKind, ...] = ("dead", "vanishing", "healthy", "exploding", "by design")
ALARMING: tuple[VerdictKind, ...] = ("dead", "vanishing", "exploding")
FAR = 100.0
THRESHOLDS = (
    "Dead: every entry is exactly 0, or would be without rounding. Vanishing or exploding: the norm is more than "
    f"{FAR:.0f} times smaller or larger than that of the same layer started by Xavier-uniform with gain 1 on the same "
    "input, loss and seed; NaN and Inf count as exploding. By design: the key bias adds one number to all scores of a "
    "row, which changes no weight, so its gradient is only rounding noise, and that is fine."
)
BY_DESIGN = (
    "The key bias adds q·b, the same number, to all scores of a row, and the softmax does not see that: Σ over keys of "
    "dL/dscores is 0. Its gradient is only rounding noise, and that is fine."
)
IDENTICAL = (
    "All heads start with the same numbers, so they get the same gradients and stay identical for ever: {heads} heads "
    "do the work of one. Random values break the tie."
)
FORMULAS = {
    "q": "dL/dWq = (dL/dq)ᵀ x with dL/dq = scale · dL/dscores · k",
    "k": "dL/dWk = (dL/dk)ᵀ x with dL/dk = scale · (dL/dscores)ᵀ · q",
    "v": "dL/dWv = (dL/dv)ᵀ x with dL/dv = weightsᵀ · dL/dcontext",
    "out": "dL/dWout = (dL/dy)ᵀ · context",
    "output": "dL/dy comes from the loss",
    "context": "dL/dcontext = dL/dy · Wout",
    "weights": "dL/dweights = dL/dcontext · vᵀ",
    "scores": "dL/dscores = weights ⊙ (dL/dweights - row sum)",
}
CAUSES = {
    "loss": "every candidate of the read-out is the same vector, so the loss prefers no output and dL/dy is zero",
    "no loss": "dL/dy is zero: the loss asks for nothing",
    "out": "out is zero, so dL/dcontext = dL/dy · Wout is zero and nothing reaches q, k, v",
    "v": "v is zero, so dL/dweights = dL/dcontext · vᵀ is zero",
    "v in context": "v is zero, so context is zero and out gets nothing",
    "values alike": "all values are the same vector (as when v is zero but for its bias), so moving attention changes "
    "nothing and dL/dscores is zero",
    "mask": "no query may attend to any key, so all weights are zero",
    "one key": "no query has more than one key, so its weight is 1 whatever the score",
    "softmax": "the softmax is saturated (one-hot): weights ⊙ (dL/dweights - row sum) is zero",
    "scale": "the scale is zero, so no score depends on q and k",
    "k": "k is zero, so the gradient of q is zero",
    "q": "q is zero, so the gradient of k is zero",
    "keys alike": "all keys are the same vector (as when k is zero but for its bias), so a query changes all scores of "
    "its row alike and the softmax does not see it",
    "hidden": "every score that a gradient reaches is hidden by the mask",
    "fused softmax": "no other factor is zero: the softmax passes nothing on (saturated, or a product too small for "
    "the number format); the fused kernel shows no weights",
    "underflow": "no factor is zero, but the product is smaller than the smallest number of {dtype}: it underflows",
}
STAGES = {"out_bias": "output", "q_bias": "q", "k_bias": "k", "v_bias": "v"}
# Factors of each gradient, from the loss on.
CHAINS = {
    "output": ("loss",),
    "out": ("loss", "context"),
    "context": ("loss", "out"),
    "v": ("loss", "out", "weights", "value input"),
    "weights": ("loss", "out", "v"),
    "scores": ("loss", "out", "v", "softmax"),
    "q": ("loss", "out", "v", "softmax", "k", "query input"),
    "k": ("loss", "out", "v", "softmax", "q", "key input"),
}
FACTOR_WORDS = {
    "loss": "the gradient of the output",
    "out": "out",
    "softmax": "what the softmax passes on",
    "weights": "the weights",
    "context": "the context",
    "k": "k",
    "q": "q",
    "v": "v",
}


@dataclass(frozen=True)
class Verdict:
    """What a gradient is, why, which factors are to blame, and its norm over that under Xavier (None: no measure)."""

    kind: VerdictKind
    reason: str
    factors: tuple[str, ...] = ()
    relative: float | None = None

    @property
    def is_alarming(self) -> bool:
        """Whether something should be done about it."""
        return self.kind in ALARMING


def healthy_experiment(experiment: Experiment) -> Experiment:
    """Give the same experiment, started by Xavier-uniform with gain 1 everywhere."""
    return with_init(experiment, InitSpec(bias=experiment.init.bias))


def healthy(found: Gradients) -> Gradients:
    """Run the pass that verdicts compare with; where the experiment is that already, it is `found` itself."""
    same = healthy_experiment(found.experiment)
    return found if same == found.experiment else backward(same, found.loss)


def blame(found: Gradients, stage: str) -> tuple[str, ...]:
    """Name the factors that make a gradient zero in exact arithmetic: keys of CAUSES, from the loss on.

    Args:
        stage: a key of CHAINS.
    """
    chain, facts = CHAINS[stage], found.facts
    blamed: list[str] = []
    if facts.candidates_alike:
        blamed.append("loss")
    elif found.tensor["output"].norm == 0:
        blamed.append("no loss")
    if "out" in chain and found.parameter["out"].value_norm == 0:
        blamed.append("out")
    if stage in ("v", "out", "scores", "q", "k") and facts.most_keys == 0 and _is_empty(found):
        return (*blamed, "mask")
    if stage == "out" and found.tensor["context"].value_norm == 0:
        blamed.append("v in context" if found.tensor["v"].value_norm == 0 else "mask")
    if "v" in chain and found.tensor["v"].value_norm == 0:
        blamed.append("v")
    return (*blamed, *_blame_softmax(found, stage, bool(blamed)), *_blame_product(found, stage))


def _is_empty(found: Gradients) -> bool:
    """Whether rows without a key are zero: other fills give them weights."""
    return found.tensor["context"].value_norm == 0


def _blame_softmax(found: Gradients, stage: str, is_blamed: bool) -> tuple[str, ...]:
    if "softmax" not in CHAINS[stage]:
        return ()
    facts = found.facts
    if facts.most_keys == 1 and facts.hidden_weight == 0:
        return ("one key",)
    if facts.values_alike and found.experiment.attention.dropout == 0:  # dropped weights would tell values apart
        return ("values alike",)
    if is_blamed:
        return ()
    if "scores" not in found.tensor:
        product = [found.tensor[name].norm == 0 for name in "qk"]
        has_factors = all(found.tensor[name].value_norm for name in "qk")
        return ("fused softmax",) if all(product) and has_factors else ()
    passes_nothing = found.tensor["scores"].norm == 0 and found.tensor["weights"].norm != 0
    if not passes_nothing:
        return ()
    if facts.most_keys == 0:
        return ("hidden",)
    return ("softmax",) if facts.peak is not None and facts.peak > 0.5 else ("underflow",)


def _blame_product(found: Gradients, stage: str) -> tuple[str, ...]:
    """What scores = scale q kᵀ is to blame for."""
    if stage not in ("q", "k"):
        return ()
    blamed = ["scale"] if found.experiment.attention.softmax_scale == 0 else []
    if stage == "q" and found.tensor["k"].value_norm == 0:
        blamed.append("k")
    elif stage == "q" and found.facts.keys_alike and found.facts.most_keys > 1 and found.facts.hidden_weight == 0:
        blamed.append("keys alike")
    if stage == "k" and found.tensor["q"].value_norm == 0:
        blamed.append("q")
    return tuple(blamed)


def _factors(found: Gradients) -> dict[str, float]:
    """How large each factor of the chain rule is: RMS of what is multiplied, and what the softmax passes on."""
    sizes = {name: found.tensor[name].value_rms for name in ("q", "k", "v", "context")}
    sizes |= {"loss": found.tensor["output"].rms, "out": found.parameter["out"].value_rms}
    if "scores" in found.tensor:
        weights = found.tensor["weights"]
        sizes["weights"] = weights.value_rms
        sizes["softmax"] = found.tensor["scores"].rms / weights.rms if weights.rms else 0.0
    elif all((sizes["k"], sizes["v"], found.tensor["context"].rms)):  # what is left of dL/dq once the rest is known
        sizes["softmax"] = found.tensor["q"].rms / (found.tensor["context"].rms * sizes["v"] * sizes["k"])
    return sizes


def _compare(found: Gradients, reference: Gradients, stage: str, kind: VerdictKind) -> tuple[tuple[str, ...], str]:
    """Name the factors that make a gradient small or large, largest share first, and say by how much."""
    here, there = _factors(found), _factors(reference)
    sign = -1.0 if kind == "vanishing" else 1.0
    pulls: dict[str, float] = {}
    for name in CHAINS[stage]:
        if here.get(name) and there.get(name):
            pulls[name] = sign * math.log(here[name] / there[name])
    strongest = max(pulls.values(), default=0.0)
    named = [n for n in sorted(pulls, key=lambda n: -pulls[n]) if pulls[n] > max(strongest / 4, math.log(1.5))]
    if not named:
        return (), "No single factor stands out: their directions do not fit one another."
    told = [f"{FACTOR_WORDS[name]} {here[name] / there[name]:.2g}" for name in named]
    peaks = (found.facts.peak or 0.0, reference.facts.peak or 0.0)
    saturated = "softmax" in named and kind == "vanishing" and peaks[0] > peaks[1]
    note = f" The softmax saturates: the largest weight of a row is {peaks[0]:.3g} on average." if saturated else ""
    return tuple(named), f"Relative to Xavier: {', '.join(told)}.{note}"


def judge(found: Gradients, reference: Gradients, flow: Flow) -> Verdict:
    """Judge the gradient of one parameter or tensor.

    Args:
        reference: the pass of `healthy`.
        flow: one of `found`'s parameters or tensors.
    """
    stage = STAGES.get(flow.name, flow.name)
    if not math.isfinite(flow.norm):
        return Verdict("exploding", f"NaN or Inf. The first tensor that has one is {found.facts.not_finite}.")
    if flow.name == "k_bias" and found.experiment.attention.rope_theta is None and found.facts.hidden_weight == 0:
        return Verdict("by design", BY_DESIGN)
    blamed = blame(found, stage)
    if blamed or flow.norm == 0:
        return _dead(found, flow, stage, blamed)
    expected = _expected(reference, flow)
    if expected is None:
        return Verdict("healthy", "It is not zero; under Xavier it would be, so there is nothing to compare it with.")
    if found is reference:
        return Verdict("healthy", "This is the Xavier start that others are compared with.", relative=1.0)
    relative = flow.norm / expected
    if not 1 / FAR <= relative <= FAR:
        kind: VerdictKind = "vanishing" if relative < 1 else "exploding"
        factors, told = _compare(found, reference, stage, kind)
        reason = f"{relative:.2g} times the norm under Xavier. {FORMULAS[stage]}. {told}"
        return Verdict(kind, reason, factors, relative)
    return Verdict("healthy", _healthy_words(found, flow, relative), relative=relative)


def _dead(found: Gradients, flow: Flow, stage: str, blamed: tuple[str, ...]) -> Verdict:
    factors = blamed or ("underflow",)
    causes = "; ".join(CAUSES[name].format(dtype=found.experiment.dtype) for name in factors)
    noise = "" if flow.norm == 0 else " What is left is rounding noise."
    return Verdict("dead", f"{FORMULAS[stage]}: {causes}.{noise}", factors, relative=0.0)


def _expected(reference: Gradients, flow: Flow) -> float | None:
    """The norm under Xavier; None where it is zero there, or not finite."""
    flows = reference.tensor if flow.kind == "tensor" else reference.parameter
    norm = flows[flow.name].norm
    is_measure = norm > 0 and math.isfinite(norm) and not blame(reference, STAGES.get(flow.name, flow.name))
    return norm if is_measure else None


def _healthy_words(found: Gradients, flow: Flow, relative: float) -> str:
    words = f"{relative:.2g} times the norm under Xavier."
    if flow.name in ("q", "k") and found.tensor["q"].value_norm == 0:
        return f"{words} q is zero, so attention is uniform; q learns because k is not zero."
    if flow.name in ("q", "k") and found.tensor["k"].value_norm == 0:
        return f"{words} k is zero, so attention is uniform; k learns because q is not zero."
    return words


@dataclass(frozen=True, eq=False)
class Judged:
    """A backward pass with the verdict on each parameter and on the gradient of each tensor, by name."""

    found: Gradients
    parameters: dict[str, Verdict]
    tensors: dict[str, Verdict]


def judge_all(found: Gradients, reference: Gradients) -> Judged:
    """Judge every parameter and every tensor of a pass against the pass of `healthy`."""
    parameters = {flow.name: judge(found, reference, flow) for flow in found.parameters}
    return Judged(found, parameters, {flow.name: judge(found, reference, flow) for flow in found.tensors})


def judged(experiment: Experiment, loss: str = "sum") -> Judged:
    """Run an experiment forward and backward, and judge what comes out.

    Raises:
        MhaError: as `mha_core.lenses.gradients.backward`.
    """
    found = backward(experiment, loss)
    return judge_all(found, healthy(found))
