"""All initialisation schemes side by side: the same input, seed and loss, and what each does to values and gradients.

Targets, gain, std and bias are those of the experiment; the matrices that are no target stay Xavier-uniform.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mha_core.choices import Experiment
from mha_core.init_schemes import INIT_SCHEMES
from mha_core.lenses.gradients import PARAMETERS, Gradients, backward
from mha_core.lenses.verdicts import Verdict, healthy_experiment, judge_all
from mha_core.trained_layer import with_init


@dataclass(frozen=True)
class SchemeRow:
    """One scheme on the experiment.

    Attributes:
        stds: standard deviation of q, k, v, the scores before the mask, and the output; without scores for the fused
            kernel.
        entropy_nats: mean entropy of a row of weights. relative_entropy: over ln(allowed keys). None for the fused
            kernel.
        norms: gradient norm of each parameter, by name.
        verdicts: by parameter.
        identical_heads: whether all heads stay the same for ever.
    """

    scheme: str
    summary: str
    stds: Mapping[str, float]
    entropy_nats: float | None
    relative_entropy: float | None
    loss_value: float
    norms: Mapping[str, float]
    verdicts: Mapping[str, Verdict]
    identical_heads: bool

    def as_row(self) -> dict[str, str | float | bool | None]:
        """Give flat data: scheme, std of each stage, entropy, gradient norm and verdict of each parameter."""
        row: dict[str, str | float | bool | None] = {"scheme": self.scheme}
        row |= {f"std_{name}": value for name, value in self.stds.items()}
        row |= {"entropy_nats": self.entropy_nats, "relative_entropy": self.relative_entropy, "loss": self.loss_value}
        for name in [name for name in PARAMETERS if name in self.norms]:
            row |= {f"norm_{name}": self.norms[name], f"verdict_{name}": self.verdicts[name].kind}
        return row | {"identical_heads": self.identical_heads}


def with_scheme(experiment: Experiment, scheme: str) -> Experiment:
    """Give the experiment with another scheme for its targets."""
    return with_init(experiment, replace(experiment.init, scheme=scheme))


def scheme_row(found: Gradients, reference: Gradients) -> SchemeRow:
    """Read one scheme off its backward pass."""
    scheme = found.experiment.init.scheme
    return SchemeRow(
        scheme=scheme,
        summary=INIT_SCHEMES[scheme].summary,
        stds={n: found.tensor[n].value_std for n in ("q", "k", "v", "scores", "output") if n in found.tensor},
        entropy_nats=found.facts.entropy_nats,
        relative_entropy=found.facts.relative_entropy,
        loss_value=found.loss_value,
        norms={flow.name: flow.norm for flow in found.parameters},
        verdicts=judge_all(found, reference).parameters,
        identical_heads=found.facts.identical_heads,
    )


def compare_schemes(experiment: Experiment, loss: str = "sum") -> Iterator[SchemeRow]:
    """Run every scheme of INIT_SCHEMES, one after another.

    Raises:
        MhaError: as `backward`.
    """
    reference = backward(healthy_experiment(experiment), loss)
    for scheme in INIT_SCHEMES:
        yield scheme_row(backward(with_scheme(experiment, scheme), loss), reference)
