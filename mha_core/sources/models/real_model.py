"""A trained model: its attention layers listed, each as ours, and the model run with somebody looking on.

transformers runs it; what a layer is given and gives comes from `watching`, where its weights lie from `families`.
Loading is `loading`. One pass at a time runs in each model.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.config import DEFAULT_ROPE_THETA, AttentionConfig
from mha_core.errors import MhaError, Suggestion
from mha_core.kernels import attention_scores, attention_weights, share_heads
from mha_core.layouts import AttentionWeights
from mha_core.rotary import turn_pairs
from mha_core.sources.families import FoundLayer, find_layers, read_weights
from mha_core.sources.models.text import ModelInput, Reader
from mha_core.sources.models.watching import Place, Replacement, SiteCall, watching
from mha_core.sources.models.weight_packages import PACKAGES

KEPT_TEXTS = 8
SAME = 1e-4  # largest difference, of weights and of outputs relative to theirs, of two computations of one layer


@dataclass(frozen=True)
class Site:
    """One attention layer of a model.

    Attributes:
        index: in the order of a pass.
        path: of the module in the model. label: for people, as "layer 3" or "decoder 0 cross".
        stack: "encoder" or "decoder", where a model has both; "" otherwise. kind: self or cross.
        config: the layer as ours, with the model's scale and rotary base.
        place, found: where its projections are; None where they are not known.
        problem: why our layer cannot take its place; "" where it can.
    """

    index: int
    path: str
    label: str
    stack: str
    kind: Literal["self", "cross"]
    config: AttentionConfig
    place: Place | None
    found: FoundLayer | None
    problem: str


class RealModel:
    """A loaded model.

    Args:
        name: as in the field `model`. module: of transformers, in evaluation mode. reader: turns text into its input.

    Attributes:
        sites: its attention layers, in the order of a pass.
        read: the reader's, a few texts kept.
        can_predict: whether it gives probabilities of the next token.
    """

    def __init__(self, name: str, module: nn.Module, reader: Reader) -> None:
        self.name, self.module, self.reader = name, module.eval().requires_grad_(False), reader
        self.config: Any = module.config
        self.lock = threading.RLock()
        self.can_predict = getattr(module, "lm_head", None) is not None
        self.read = functools.lru_cache(maxsize=KEPT_TEXTS)(reader.read)  # every part of a page asks again
        self.state = module.state_dict()
        self.sites = _find_sites(self)

    @property
    def title(self) -> str:
        """How people call it."""
        return PACKAGES[self.name].title if self.name in PACKAGES else Path(self.name).name

    @functools.cached_property
    def num_heads(self) -> int:
        """The largest number of heads of a layer."""
        return max(site.config.num_heads for site in self.sites)

    def site(self, index: int) -> Site:
        """Give a layer.

        Raises:
            MhaError: field "layer"; there is no such layer.
        """
        if not 0 <= index < len(self.sites):
            last = len(self.sites) - 1
            raise MhaError("layer", index, f"from 0 to {last} in {self.title}", [Suggestion.of(layer=last)])
        return self.sites[index]

    def weights(self, site: Site) -> AttentionWeights:
        """Give a layer's weights (views of the model's own: read them only).

        Raises:
            MhaError: field "layer"; our layer cannot take its place.
        """
        if site.found is None or site.problem:
            raise MhaError("layer", site.label, "a layer that we can compute", problem=f"{site.label}: {site.problem}")
        return read_weights(site.found, self.state.__getitem__, site.config.num_heads, site.config.kv_heads)[1]

    @torch.no_grad()
    def run(
        self,
        given: ModelInput,
        observe: Callable[[SiteCall], None] = lambda call: None,
        replacements: Mapping[str, Replacement] = {},  # read only
        *,
        every_logit: bool = False,
    ) -> Any:
        """Run the model once.

        Args:
            given: its input. observe: is shown every layer's call. replacements: see `watching`.
            every_logit: give the logits of the next token at every place, not at the last alone.

        Returns:
            What the model of transformers returns.
        """
        places = [site.place for site in self.sites if site.place is not None]
        named: dict[str, Any] = {} if every_logit or not self._cuts_logits else {"logits_to_keep": 1}
        with self.lock, watching(self.module, places, observe, replacements):
            return self.module(**given.arguments, **named)

    @functools.cached_property
    def _cuts_logits(self) -> bool:
        return "logits_to_keep" in inspect.signature(self.module.forward).parameters


@torch.no_grad()
def _find_sites(model: RealModel) -> tuple[Site, ...]:
    """Run a few tokens through the model and note who asks for attention, and with what."""
    arguments = model.reader.smallest().arguments
    calls: list[SiteCall] = []
    with watching(model.module, (), calls.append, {}):
        model.module(**arguments)
    if not calls:
        problem = f"{model.title} does not ask transformers for its attention in the way we can look into"
        raise MhaError("model", model.name, "a BERT-, GPT-2-, LLaMA-, ViT- or T5-like model", problem=problem)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state.items()}
    found = find_layers(shapes, model.config.to_dict())
    layers = {call.path: _layer_below(call.path, found) for call in calls}
    places = {path: _place(path, layer) for path, layer in layers.items() if layer is not None}
    seen: dict[str, SiteCall] = {}
    with watching(model.module, list(places.values()), lambda call: seen.update({call.path: call}), {}):
        model.module(**arguments)
    sites = [
        _site(model, index, seen[call.path], layers[call.path], places.get(call.path))
        for index, call in enumerate(calls)
    ]
    return tuple(replace(site, problem=site.problem or _foreign(model, site, seen[site.path])) for site in sites)


def _foreign(model: RealModel, site: Site, call: SiteCall) -> str:
    """Say whether a layer does what ours does not (softened scores, sinks, other rotary pairs); "" where both agree."""
    assert call.weights is not None
    assert call.output is not None
    try:
        output, weights = _compute(site.config, model.weights(site), call)
    except (MhaError, RuntimeError) as error:
        return f"our layer cannot take its place: {error}".rstrip(".")
    far = (weights - call.weights).abs().max().item()
    far = max(far, ((output - call.output).abs().max() / call.output.abs().max().clamp(min=1)).item())
    return "" if far <= SAME else "it computes something that our layer does not"


def _compute(config: AttentionConfig, layer: AttentionWeights, call: SiteCall) -> tuple[Tensor, Tensor]:
    """Compute what a layer of ours would give: output (B, Sq, E) and weights (B, H, Sq, Sk)."""

    def heads(tensor: Tensor | None, matrix: Tensor, bias: Tensor | None) -> Tensor:  # (B, S, E) -> (B, H, S, D)
        assert tensor is not None
        return F.linear(tensor, matrix, bias).view(*tensor.shape[:2], -1, config.head_dim).transpose(1, 2)

    q, k = heads(call.query, layer.q, layer.q_bias), heads(call.key, layer.k, layer.k_bias)
    v = heads(call.key, layer.v, layer.v_bias)
    if call.rotary is not None:
        q, k = turn_pairs(q, *call.rotary), turn_pairs(k, *call.rotary)
    k, v = share_heads(k, config.num_heads), share_heads(v, config.num_heads)
    scores = attention_scores(q, k, config.softmax_scale, call.score_bias)
    weights = attention_weights(scores, call.mask, "min")
    return F.linear((weights @ v).transpose(1, 2).flatten(2), layer.out, layer.out_bias), weights


def _layer_below(path: str, layers: tuple[FoundLayer, ...]) -> FoundLayer | None:
    return next((layer for layer in layers if _tensor(layer, "q").startswith(f"{path}.")), None)


def _site(model: RealModel, index: int, call: SiteCall, layer: FoundLayer | None, place: Place | None) -> Site:
    heads, kv_heads, head_dim = call.shape
    embed_dim = layer.embed_dim if layer else heads * head_dim
    problem = "" if layer else "its matrices have names that we do not know"
    if any("norm" in name for name, _ in model.module.get_submodule(call.path).named_modules()):
        problem = "it normalises q and k before their product, which our layer does not"
    config = AttentionConfig(
        embed_dim=embed_dim,
        num_heads=heads,
        num_kv_heads=None if kv_heads == heads else kv_heads,
        head_size=None if head_dim * heads == embed_dim else head_dim,
        bias=layer is not None and any(role.endswith("_bias") for role in layer.tensors),
        kdim=layer.key_dim if layer and layer.key_dim != embed_dim else None,
        vdim=layer.value_dim if layer and layer.value_dim != embed_dim else None,
        scale=None if abs(call.scale - head_dim**-0.5) < 1e-9 else call.scale,
        rope_theta=None if call.rotary is None else _rotary_base(model.config),
    )
    words = call.path.split(".")
    has_both = getattr(model.config, "is_encoder_decoder", False)
    stack = next((word for word in words if has_both and word in ("encoder", "decoder")), "")
    kind: Literal["self", "cross"] = "cross" if layer is not None and layer.kind == "cross" else "self"
    number = next((word for word in words if word.isdecimal()), str(index))
    label = f"{stack or 'layer'} {number}{' cross' if kind == 'cross' else ''}"
    return Site(index, call.path, label, stack, kind, config, place, layer, problem)


def _tensor(layer: FoundLayer, role: str) -> str:
    """Name of the tensor that holds a role, alone or fused."""
    for holder in (role, "qkv", "kv" if role in "kv" else "q"):
        if holder in layer.tensors:
            return layer.tensors[holder]
    return ""


def _place(path: str, layer: FoundLayer) -> Place:
    return Place(path, *(_tensor(layer, role).removesuffix(".weight") for role in ("q", "k", "out")))


def _rotary_base(config: Any) -> float:
    """Find the base of the angles; what else the model does to them is in the tables it passes."""
    parameters = getattr(config, "rope_parameters", None) or {"rope_theta": DEFAULT_ROPE_THETA}
    return float(parameters.get("rope_theta") or next(iter(parameters.values()))["rope_theta"])
