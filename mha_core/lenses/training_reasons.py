"""Why each racer did what it did: one verdict each, read off what was recorded and never off the scheme's name.

What is looked at: which attention matrices had a gradient of exactly zero and when, whether the maps are uniform or the
heads equal, the rank of W_v, and how much weight goes to keys that hold the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mha_core.init_schemes import TARGETS
from mha_core.lenses.training import GOAL, Progress, Track, held_out, tracks
from mha_core.lenses.training_model import RaceSetting

Kind = Literal["untrained", "diverged", "all_zero", "uniform", "equal_heads", "learned", "unfinished"]
SAME = 1e-5  # largest difference of two weights that counts as rounding
NEAR_CHANCE = 0.05


@dataclass(frozen=True)
class Verdict:
    """What became of one racer.

    Attributes:
        accuracy: the last one on the held-out sequences, 0..1.
        steps_to_goal: first recorded step with 95 %; None if there is none.
        kind: which reason was found. sentence: the reason, with its numbers.
    """

    racer: str
    accuracy: float
    steps_to_goal: int | None
    kind: Kind
    sentence: str


def always_zero(track: Track) -> tuple[str, ...]:
    """Name the matrices whose gradient was exactly zero at every step, in every layer."""
    return tuple(
        name
        for place, name in enumerate(TARGETS)
        if all(layer[place] == 0 for point in track.points for layer in point.gradients)
    )


def head_difference(track: Track) -> float:
    """Give the largest difference between the maps of two heads of one layer, over all recorded steps."""
    return max(float(np.ptp(stop.maps, axis=1).max()) for stop in track.stops)


def distance_from_uniform(maps: NDArray[np.float32]) -> float:
    """Give the largest difference of a weight from an even share of all it may see; maps (layers, H, S, S)."""
    side = maps.shape[-1]
    even = np.tril(np.ones((side, side))) / np.arange(1, side + 1)[:, None]
    return float(np.abs(maps - even).max())


def answer_weight(setting: RaceSetting, maps: NDArray[np.float32]) -> NDArray[np.float32]:
    """Give the weight of each head on keys that hold the answer, mean over the probe's counted rows: (layers, H)."""
    probe = held_out(setting)
    counted = probe.counts[0].numpy()
    is_answer = (probe.targets[0][:, None] == probe.inputs[0][None, :]).numpy()  # (S, S)
    weight: NDArray[np.float32] = (maps * is_answer).sum(-1)[..., counted].mean(-1)
    return weight


def explain(setting: RaceSetting, results: Sequence[Progress]) -> tuple[Verdict, ...]:
    """Give the verdict on every racer, also of a race that was stopped early."""
    return tuple(_judge(setting, track) for track in tracks(results))


def _judge(setting: RaceSetting, track: Track) -> Verdict:
    kind, reason = _reason(setting, track)
    return Verdict(track.racer, track.accuracy, track.steps_to(), kind, reason)


def _reason(setting: RaceSetting, track: Track) -> tuple[Kind, str]:
    if not track.points:
        return "untrained", "Not trained yet."
    broken = next((point.step for point in track.points if not math.isfinite(point.loss)), None)
    if broken is not None:
        return "diverged", f"The loss was no finite number from step {broken} on: the weights had run away."
    zero = always_zero(track)
    if zero == TARGETS:
        return "all_zero", _all_zero(setting, track)
    if {"q", "k"} <= {*zero} and distance_from_uniform(track.stops[-1].maps) < SAME:
        return "uniform", _uniform(setting, track)
    difference = head_difference(track)
    if setting.num_heads > 1 and difference < SAME:
        return "equal_heads", _equal_heads(setting, track, difference)
    sentence = f"{_first_step(track)} {_outcome(setting, track)} {_where_it_looks(setting, track)}"
    return ("unfinished" if track.steps_to() is None else "learned"), sentence


def _all_zero(setting: RaceSetting, track: Track) -> str:
    steps, others = len(track.points), track.points[0].other_gradient
    seen = f"All four attention matrices had a gradient of exactly 0 at each of {steps} steps."
    started = dict(zip(TARGETS, track.stops[0].weight_norms[0], strict=True))
    if started["v"] == started["out"] == 0:
        seen += (
            " v is 0, so the heads read nothing and out gets no gradient; out is 0, so nothing passes back through it"
            " to v, q and k."
        )
    return (
        f"{seen} Only embeddings, read-out and biases learn (gradient norm {others:.2g} at step 1). They see one token "
        f"and its position, from which at most {setting.chance:.1%} can be known: {_against_chance(setting, track)}."
    )


def _against_chance(setting: RaceSetting, track: Track) -> str:
    if abs(track.accuracy - setting.chance) <= NEAR_CHANCE:
        return f"the {track.accuracy:.1%} it got are chance"
    where = "above" if track.accuracy > setting.chance else "below"
    return f"the {track.accuracy:.1%} it got are {where} chance, {setting.chance:.1%}"


def _uniform(setting: RaceSetting, track: Track) -> str:
    return (
        f"q and k had a gradient of exactly 0 at each of {len(track.points)} steps: each has the other as a factor in "
        "its gradient, and both are 0. So every map stays uniform, and heads hand on the average of all they may see; "
        f"v and out do learn. {_outcome(setting, track)}"
    )


def _equal_heads(setting: RaceSetting, track: Track, difference: float) -> str:
    ranks = track.stops[-1].value_ranks
    sentence = (
        f"The {setting.num_heads} heads of a layer show one and the same map at all {len(track.stops)} recorded steps "
        f"(largest difference {difference:.1g}): heads that start equal get equal gradients and stay equal."
    )
    if max(ranks) <= 1:
        sentence += (
            f" So do their channels: v ends with rank {max(ranks)} of {setting.embed_dim}, so attention hands on one "
            "number per token."
        )
    return f"{sentence} {_outcome(setting, track)}"


def _first_step(track: Track) -> str:
    first = track.points[0]
    norms = {name: first.gradient([name]) for name in TARGETS}
    missing = [name for name in TARGETS if norms[name] == 0]
    if missing:
        moving = next((p.step for p in track.points if all(p.gradient([name]) for name in missing)), None)
        later = f"from step {moving} on they had one" if moving else "some never got one"
        because = ""
        if missing == ["q", "k", "v"] and track.stops[0].weight_norms[-1][3] == 0:
            because = " (out was 0, so nothing passed back through it)"
        return f"At step 1 {_listed(missing)} had a gradient of exactly 0{because}; {later}."
    spelled = ", ".join(f"{name} {norm:.2g}" for name, norm in norms.items())
    return f"At step 1 all four matrices had a gradient (norms {spelled})."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _outcome(setting: RaceSetting, track: Track) -> str:
    reached, steps = track.steps_to(), len(track.points)
    if reached is not None:
        return f"{GOAL:.0%} was reached by step {reached}."
    return f"{GOAL:.0%} was not reached in {steps} steps: {_against_chance(setting, track)}."


def _where_it_looks(setting: RaceSetting, track: Track) -> str:
    before, after = (answer_weight(setting, stop.maps) for stop in (track.stops[0], track.stops[-1]))
    layer, head = np.unravel_index(int(after.argmax()), after.shape)
    place = f"layer {layer}, head {head}" if setting.layers > 1 else f"head {head}"
    return (
        f"Its keenest head ({place}) now puts {after[layer, head]:.0%} of its weight on the answer, "
        f"{before[layer, head]:.0%} at the start."
    )
