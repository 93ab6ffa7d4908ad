"""Why equal tokens give unequal outputs, or outputs that grow with their number: turned values, scores not normalised.

Rotary positions belong to queries and keys: their product then depends on the distance, while values that are turned
no longer average to themselves. Scores that meet the values without a softmax grow with the number of keys.

Axes: B batch, S tokens, D head_dim.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor, nn

from mha_core.doctor.causes.pointing import SOFTMAXES, activation_products, varying_line
from mha_core.doctor.probes.influence import ROUNDING, Look, Probe, mapped, movement
from mha_core.doctor.probes.lengths import usable_lengths
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Inputs, Subject
from mha_core.doctor.traces.tracing import Step
from mha_core.doctor.traces.walk import makers

_ASKED = re.compile(r"(rot\w*_?(v|val\w*)|v(al\w*)?_?rot\w*)$", re.IGNORECASE)
_MAPS = ("sigmoid", "sigmoid_", "relu", "relu_", "elu", "elu_", "gelu", "silu", "softplus", "tanh", "logsigmoid")
_OWN_WAY = re.compile(
    r"linear_?att|linear(self|cross|causal|multi|trans)|retention|retnet|sigmoid|relu|galerkin|fast_?weight|delta_?(net|rule)|"
    r"unnormali[sz]ed|softmax_?free|polynomial|cosformer|hopfield|performer|feature_?map|decay|gated_?linear|rwkv|mamba",
    re.IGNORECASE,
)
_OWN_WORDS = re.compile(
    r"linear attention|retention|without (a )?softmax|no softmax|softmax-free|unnormali[sz]ed|"
    r"not normali[sz]ed|fast weight",
    re.IGNORECASE,
)


def turned_values(subject: Subject, probe: Probe, inputs: Inputs) -> CheckResult | None:
    """Find values of equal tokens that differ in direction alone, where rotary is the only sign of positions."""
    if subject.position_signs != ("rotary",) or subject.is_library:
        return None
    alike = mapped(inputs, _first)
    look = probe.look(alike)
    if not look.cores:
        return None
    values = look.cores[0].v.detach().double()
    if values.dim() < 2 or values.shape[-2] != inputs.key.shape[1]:
        return None
    size = max(float(values.abs().max()), 1e-30)
    lengths = values.norm(dim=-1)
    differs = float((values - values[..., :1, :]).abs().max()) / size
    if differs <= ROUNDING or float((lengths - lengths[..., :1]).abs().max()) / size > ROUNDING:
        return None  # places are added to the tokens, not turned
    evidence = {"tokens": inputs.key.shape[1], "relative_difference_of_values": differs}
    asked = next((n for p in subject.module.modules() for n, held in vars(p).items() if held and _ASKED.search(n)), "")
    if asked:
        reason = f"values are rotated too, as {asked} asks"
        return CheckResult("constant_values", "by_design", reason, evidence)
    reason = (
        f"values of equal tokens are rotated apart, by {differs:.2g} of their size: equal values average to another"
    )
    cause = "values are rotated too: rotary positions are for queries and keys"
    source = look.cores[0].v_source
    where = None if source is None else varying_line(look, probe.look(mapped(alike, _opposite)), source[0])
    return CheckResult("constant_values", "fail", reason, evidence, cause, where or look.cores[0].values_place)


def _first(tensor: Tensor) -> Tensor:
    return tensor[:, :1].expand_as(tensor).contiguous()


def _opposite(tensor: Tensor) -> Tensor:
    return tensor.flip(-1) * -0.7


@dataclass(frozen=True)
class Raw:
    """Scores that met values as they are. map: what was done instead of a softmax, "" where nothing was."""

    step: Step
    map: str
    thrown_away: bool


def raw_scores(subject: Subject, look: Look) -> Raw | None:
    """Find a product of products without a softmax between them; None where attention or a softmax was seen."""
    products = activation_products(look.trace)
    if look.cores or subject.is_library or len(products) < 2:
        return None
    softmaxes = [step for step in look.trace.steps if step.name in SOFTMAXES]
    if any(look.trace.used_by(tensor) for step in softmaxes for tensor in step.outputs):
        return None
    for last in reversed(products):
        behind = [step for tensor in last.inputs for step in makers(look.trace, tensor)]
        if any(step in products for step in behind):
            names = [step.name for step in behind]
            own = next((name for name in _MAPS if name in names), "") or _own_way(subject.module)
            return Raw(last, own, bool(softmaxes))
    return None


def is_own_map(subject: Subject, look: Look) -> bool:
    """Tell whether weights are made by another map than softmax, on purpose: they may follow the number of keys."""
    raw = raw_scores(subject, look)
    return raw is not None and bool(raw.map)


def _own_way(module: nn.Module) -> str:
    for part in module.modules():
        kind = type(part)
        if kind.__module__.startswith("torch."):
            continue
        for name in (kind.__name__, *vars(part)):
            if _OWN_WAY.search(name):
                return name
        told = _OWN_WORDS.search(kind.__doc__ or "")
        if told:
            return told[0]
    return ""


def without_softmax(subject: Subject, probe: Probe, inputs: Inputs, *, spread: float = 0.0) -> CheckResult | None:
    """Judge scores that meet values without a softmax: equal tokens then give more the more there are of them.

    Args:
        spread: how far outputs of equal tokens are known to lie apart at one length, 0 where they do not.
    """
    raw = raw_scores(subject, probe.look(inputs))
    if raw is None:
        return None
    grown = spread or _growth(subject, probe)
    if grown <= ROUNDING:
        return None
    evidence = {"relative_change_with_more_tokens": grown}
    reason = f"equal tokens give outputs that change by {grown:.2g} of their size with the number of keys"
    if raw.map:
        return CheckResult("constant_values", "by_design", f"{reason}: weights by {raw.map}, not normalised", evidence)
    cause = "no softmax: the scores themselves multiply the values"
    if raw.thrown_away:
        cause = "the result of softmax is not used: the scores themselves multiply the values"
    return CheckResult("constant_values", "fail", reason, evidence, cause, raw.step.place)


def _growth(subject: Subject, probe: Probe) -> float:
    """Give how much output 0 of equal tokens changes with their number, 0 where only one number can be asked."""
    lengths = sorted(usable_lengths(subject, (5, 9, 8, 12)))
    if len(lengths) < 2:
        return 0.0
    more = mapped(subject.inputs(2, lengths[1]), _first)
    fewer = mapped(more, lambda tensor: tensor[:, : lengths[0]].contiguous())
    return float(movement(probe.output(more)[:, :1], probe.output(fewer)[:, :1]).max())
