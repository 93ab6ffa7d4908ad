"""One attention layer of a trained model as an experiment: its weights, its real input, and edits inside the model.

An edit (mask, scale, replaced matrices, muted heads) puts our `MultiHeadAttention` in the layer's place while the model
runs; everything after the layer follows. What the chosen layer is given then is the experiment's input.

Axes: B batch, H heads, Sq queries, Sk keys.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mha_core.attention import MultiHeadAttention
from mha_core.choices import Experiment
from mha_core.config import AttentionConfig
from mha_core.errors import MhaError
from mha_core.init_schemes import InitSpec, initial_weights
from mha_core.layouts import AttentionWeights
from mha_core.masks import MaskSizes, build_mask
from mha_core.sources.inputs import Sizes
from mha_core.sources.trained import CheckpointSource, PretrainedSource, sizes_at

if TYPE_CHECKING:
    from mha_core.sources.models.real_model import Site
    from mha_core.sources.models.text import ModelInput
    from mha_core.sources.models.watching import Replacement, SiteCall

KEPT_PASSES = 4
KEPT_BYTES = 64 * 2**20  # of one pass, beside the layer that was asked for
_passes: OrderedDict[tuple[str | None, ...], dict[str, SiteCall]] = OrderedDict()
_passes_lock = threading.Lock()


def source_of_layer(experiment: Experiment) -> PretrainedSource:
    """Give the experiment's source, which has to be a trained model."""
    assert isinstance(experiment.source, PretrainedSource)
    return experiment.source


def unedited(experiment: Experiment) -> Experiment:
    """Give the same layer and text as the model has them."""
    source = replace(source_of_layer(experiment), own_mask=True, replaced=(), muted=())
    attention = replace(experiment.attention, scale=source.site().config.scale)
    return replace(experiment, source=source, attention=attention, mask=replace(experiment.mask, kinds=()))


def is_edited(experiment: Experiment) -> bool:
    """Say whether anything in the model is changed."""
    return experiment != unedited(experiment)


def starting_weights(experiment: Experiment) -> AttentionWeights:
    """Give the layer's weights: drawn, or trained with some matrices drawn anew.

    Raises:
        MhaError: a checkpoint or model that is not there.
    """
    if isinstance(experiment.source, CheckpointSource):
        return _edited_weights(experiment, *experiment.source.read())
    if isinstance(experiment.source, PretrainedSource):
        site = experiment.source.site()
        return _edited_weights(experiment, site.config, experiment.source.loaded().weights(site))
    return initial_weights(experiment.attention, experiment.init, experiment.seed)


def _edited_weights(experiment: Experiment, config: AttentionConfig, trained: AttentionWeights) -> AttentionWeights:
    assert isinstance(experiment.source, PretrainedSource | CheckpointSource)
    targets = experiment.source.replaced
    if not targets:
        return trained
    fresh = initial_weights(config, replace(experiment.init, targets=targets, packed=False), experiment.seed)
    names = [name for target in targets for name in (target, f"{target}_bias")]
    return replace(trained, **{name: getattr(fresh, name) for name in names})


def with_init(experiment: Experiment, init: InitSpec) -> Experiment:
    """Give the experiment with other initial values; in a trained layer they replace the matrices they target."""
    source = experiment.source
    if isinstance(source, PretrainedSource | CheckpointSource):
        source = replace(source, replaced=init.targets)
    return replace(experiment, init=init, source=source)


def fresh_layer(experiment: Experiment) -> Experiment:
    """Give the experiment with a drawn layer of the same sizes, for lenses that change the sizes or stack layers."""
    source = experiment.source
    if isinstance(source, PretrainedSource | CheckpointSource):
        return replace(experiment, source=source.stand_in())
    return experiment


def muted_in(experiment: Experiment, index: int) -> tuple[int, ...]:
    """Give the muted heads of a layer.

    Raises:
        MhaError: field "muted"; the layer has no such head.
    """
    site = source_of_layer(experiment).loaded().site(index)
    pairs = [tuple(map(int, pair.split("."))) for pair in source_of_layer(experiment).muted]
    heads = tuple(head for layer, head in pairs if layer == index)
    if heads and max(heads) >= site.config.num_heads:
        last = site.config.num_heads - 1
        raise MhaError("muted", f"{index}.{max(heads)}", f"a head from 0 to {last} of {site.label}")
    return heads


def edits(experiment: Experiment, given: ModelInput) -> dict[str, Replacement]:
    """Give what takes the place of the model's layers: path -> our layer and its mask; empty when nothing is edited.

    Args:
        experiment: says what is edited. given: what the model will read.

    Raises:
        MhaError: an edit reaches a layer that we cannot compute, or that is not there.
    """
    source = source_of_layer(experiment)
    model, chosen = source.loaded(), source.site()
    reached: set[int] = set()
    if is_edited(replace(experiment, source=replace(source, muted=()))):
        alike = {site.index for site in model.sites if (site.stack, site.kind) == (chosen.stack, chosen.kind)}
        reached = alike if source.reach == "all" else {chosen.index}
    changed = reached | {int(pair.split(".")[0]) for pair in source.muted}
    if max(changed, default=0) >= len(model.sites):
        raise MhaError("muted", max(changed), f"heads of layers from 0 to {len(model.sites) - 1} of {model.title}")
    return {
        model.site(index).path: _replacement(experiment, model.site(index), given, index in reached)
        for index in sorted(changed)
    }


def _replacement(experiment: Experiment, site: Site, given: ModelInput, is_reached: bool) -> Replacement:
    model, chosen = source_of_layer(experiment).loaded(), source_of_layer(experiment).site()
    factor = experiment.attention.softmax_scale / chosen.config.softmax_scale if is_reached else 1.0
    config = replace(site.config, scale=site.config.softmax_scale * factor)
    weights = model.weights(site)
    weights = _edited_weights(experiment, site.config, weights) if is_reached else weights
    muted, sizes = muted_in(experiment, site.index), sizes_at(site, given)

    def instead(call: SiteCall) -> tuple[MultiHeadAttention, Tensor | None]:
        layer = MultiHeadAttention.from_config(config, weights).eval()
        layer.score_bias, layer.rotary, layer.muted_heads = call.score_bias, call.rotary, muted
        layer.fill = experiment.mask.fill if is_reached else "min"  # what transformers hides by
        return layer, joined_mask(experiment, call.mask, sizes) if is_reached else call.mask

    return instead


def joined_mask(experiment: Experiment, own: Tensor | None, sizes: Sizes) -> Tensor | None:
    """Join the model's own mask, where it is kept, and the experiment's. Broadcasts to (B, H, Sq, Sk)."""
    lengths = torch.tensor(sizes.k_tokens.lengths)
    chosen = build_mask(experiment.mask, MaskSizes(sizes.batch, sizes.q_len, sizes.k_len, lengths))
    if own is None or not source_of_layer(experiment).own_mask:
        return chosen
    return own if chosen is None else own & chosen


def layer_call(experiment: Experiment) -> SiteCall:
    """Run the model with its edits and give what the chosen layer was given there.

    Only edits of earlier layers matter for that, and the last few passes are kept: neither another layer nor an edit of
    the chosen one runs the model again.
    """
    source = source_of_layer(experiment)
    model, site, given = source.loaded(), source.site(), source.read()
    earlier = {other.path for other in model.sites[: site.index]}
    changes = {path: instead for path, instead in edits(experiment, given).items() if path in earlier}
    key = (source.model, source.text, source.memory_text, experiment.to_json() if changes else "")
    with _passes_lock:
        seen = _passes.get(key, {})
        if site.path in seen:
            _passes.move_to_end(key)
            return seen[site.path]
    kept: dict[str, SiteCall] = {}
    model.run(given, _keeper(kept, site.path), changes)
    with _passes_lock:
        _passes[key] = kept
        while len(_passes) > KEPT_PASSES:
            _passes.popitem(last=False)
    return kept[site.path]


def _keeper(kept: dict[str, SiteCall], wanted: str) -> Callable[[SiteCall], None]:
    """Keep the inputs of layers: the wanted one's, and the others' while they are small."""
    held_bytes = 0

    def keep(call: SiteCall) -> None:
        nonlocal held_bytes
        call.weights = call.output = None
        tensors = (call.query, call.key, call.mask, call.score_bias)
        size_bytes = sum(t.numel() * t.itemsize for t in tensors if t is not None)
        if call.path == wanted or held_bytes + size_bytes <= KEPT_BYTES:
            kept[call.path] = call
            held_bytes += size_bytes

    return keep


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What a trained layer is given besides its weights: inputs (B, S, E), the joined mask, score bias and rotary."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    score_bias: Tensor | None
    rotary: tuple[Tensor, Tensor] | None


def surroundings(experiment: Experiment) -> Surroundings:
    """Give what the chosen layer of a trained model is given, edits included."""
    call = layer_call(experiment)
    query, key = call.inputs()
    mask = joined_mask(experiment, call.mask, source_of_layer(experiment).sizes())
    return Surroundings(query, key, mask, call.score_bias, call.rotary)
