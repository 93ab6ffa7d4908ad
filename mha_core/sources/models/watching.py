"""One pass of a transformers model with somebody looking on: what each attention layer is given, and what it gives.

Models of transformers call a registered function for the attention equation; ours calls the model's own one
("eager") and keeps what went in and came out, so whatever is shown is what the model does. A layer may be replaced for
the length of a pass by a `MultiHeadAttention` of this project: its projections, equation and output then take the place
of the model's. Where the weights lie is `families`; loading is `real_model`.

Axes: B batch, H heads, Hkv key/value heads, Sq queries, Sk keys, D head_dim, E width.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

INTERFACE = "mha_lab"  # our name among transformers' attention functions
_looking_on = threading.local()


@dataclass(eq=False)
class SiteCall:
    """What one attention layer was given in one pass, and what it gave.

    Attributes:
        path: of the module that asked for attention.
        query: (B, Sq, E), what is projected to q. key: (B, Sk, kdim), what is projected to k and v; the same tensor as
            the query in self-attention. Both None where the model's projections are not known.
        mask: boolean, broadcastable to (B, H, Sq, Sk), True = may attend; None when nothing is hidden.
        score_bias: added to the scaled scores, (1 or B, H, Sq, Sk); None where nothing is added.
        rotary: cos and sin, (B or 1, 1, S, R/2); None without rotary positions.
        scale: factor on q·k.
        shape: H, Hkv, D.
        weights: (B, H, Sq, Sk). output: (B, Sq, E), after the output projection; None where that is not known.
    """

    path: str
    query: Tensor | None = None
    key: Tensor | None = None
    mask: Tensor | None = None
    score_bias: Tensor | None = None
    rotary: tuple[Tensor, Tensor] | None = None
    scale: float = 1.0
    shape: tuple[int, int, int] = (0, 0, 0)
    weights: Tensor | None = None
    output: Tensor | None = None

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Give query and key input of a layer whose projections are known."""
        assert self.query is not None
        assert self.key is not None
        return self.query, self.key


@dataclass(frozen=True)
class Place:
    """Where an attention layer sits in a model: the module that asks for attention, and its projections, by path."""

    path: str
    query: str
    key: str
    out: str


class OurLayer(Protocol):
    """What of `mha_core.attention.MultiHeadAttention` takes a layer's place."""

    def project(self, query: Tensor, key: Tensor, value: Tensor, /) -> tuple[Tensor, Tensor, Tensor]:
        """Project and split into heads."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, /) -> tuple[Tensor, Tensor | None]:
        """Give context and weights."""

    def merge(self, context: Tensor, /) -> Tensor:
        """Lay the heads side by side and project."""


Replacement = Callable[[SiteCall], tuple[OurLayer, Tensor | None]]  # the layer to use instead, and its mask


class Watcher:
    """Looks on during one pass.

    Args:
        model: the model. places: of the layers whose inputs and outputs are wanted.
        observe: called with every layer's finished call, in the order of the pass.
        replacements: path -> what to use instead of the model's layer.
    """

    def __init__(
        self,
        model: nn.Module,
        places: Sequence[Place],
        observe: Callable[[SiteCall], None],
        replacements: Mapping[str, Replacement],
    ) -> None:
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._places = {place.path: place for place in places}
        self._observe, self._replacements = observe, replacements
        self._calls: dict[str, SiteCall] = {}
        self._instead: dict[str, tuple[OurLayer, Tensor]] = {}  # layer and its context

    def _call(self, path: str) -> SiteCall:
        return self._calls.setdefault(path, SiteCall(path))

    def hooks(self, model: nn.Module) -> Iterator[Any]:
        """Hang the hooks into the model; gives their handles."""
        for path, place in self._places.items():
            asking = model.get_submodule(path)
            yield asking.register_forward_pre_hook(functools.partial(self._see_positions, path), with_kwargs=True)
            for role in ("query", "key"):
                projection = model.get_submodule(getattr(place, role))
                yield projection.register_forward_pre_hook(functools.partial(self._see_input, path, role))
            yield model.get_submodule(place.out).register_forward_hook(functools.partial(self._see_output, path))

    def _see_positions(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls[path] = SiteCall(path)
        positions = kwargs.get("position_embeddings")
        if isinstance(positions, tuple) and len(positions) == 2:
            # transformers keeps every angle twice, once for each half of the channels
            cos, sin = (table[..., : table.shape[-1] // 2].unsqueeze(-3) for table in positions)
            self._calls[path].rotary = (cos, sin)

    def _see_input(self, path: str, role: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        setattr(self._call(path), role, args[0])

    def _see_output(self, path: str, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if path in self._instead:
            layer, context = self._instead.pop(path)
            output = layer.merge(context)
        call = self._calls.pop(path)
        call.output = output
        self._observe(call)
        return output

    def attend(self, module: nn.Module, own: Callable[..., Any], q: Tensor, k: Tensor, *more: Any, **named: Any) -> Any:
        """Answer a model's call for attention: by its own function, or by what is to be used instead."""
        path = self._paths[id(module)]
        call = self._call(path)
        call.shape = (q.shape[1], k.shape[1], q.shape[3])
        call.scale = _scale_of(module, q, named.get("scaling"))
        call.mask, call.score_bias = _split_mask(more[1], named.get("position_bias"))
        if path in self._replacements:
            layer, mask = self._replacements[path](call)
            query, key = call.inputs()
            heads = layer.project(query, key, key)
            context, call.weights = layer.attend(*heads, mask)
            self._instead[path] = (layer, context)
            return context.transpose(1, 2), call.weights  # (B, H, Sq, D) -> (B, Sq, H, D)
        context, call.weights = own(module, q, k, *more, **named)
        if path not in self._places:
            self._observe(self._calls.pop(path))
        return context, call.weights


def _scale_of(module: nn.Module, q: Tensor, passed: float | None) -> float:
    """Find the factor on q·k: OPT and Whisper multiply q by it themselves and pass 1."""
    own = getattr(module, "scaling", None)
    if passed is None:
        return float(q.shape[-1] ** -0.5)
    return float(own) if passed == 1.0 and isinstance(own, float) else float(passed)


def _split_mask(mask: Tensor | None, position_bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Tell what is hidden from what is added: transformers hides by the most negative number of the format."""
    bias = position_bias if position_bias is not None and position_bias.any() else None
    if mask is None:
        return None, bias
    if mask.dtype == torch.bool:
        return mask, bias
    allowed = mask > torch.finfo(mask.dtype).min / 2
    shift = torch.where(allowed, mask, 0.0)
    if shift.any():
        bias = shift if bias is None else bias + shift
    return (None if allowed.all() else allowed), bias


def _attend(module: nn.Module, query: Tensor, key: Tensor, *more: Any, **named: Any) -> Any:
    """The function that transformers calls; with nobody looking on it is the model's own."""
    own = sys.modules[type(module).__module__].eager_attention_forward
    watcher: Watcher | None = getattr(_looking_on, "watcher", None)
    if watcher is None:
        return own(module, query, key, *more, **named)
    return watcher.attend(module, own, query, key, *more, **named)


@functools.cache
def register() -> str:
    """Make our attention function known to transformers; returns its name."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(INTERFACE, _attend)
    AttentionMaskInterface.register(INTERFACE, eager_mask)
    return INTERFACE


@contextmanager
def watching(
    model: nn.Module,
    places: Sequence[Place],
    observe: Callable[[SiteCall], None],
    replacements: Mapping[str, Replacement],
) -> Iterator[None]:
    """Look on while the model runs in this thread. One pass of a model at a time: the hooks hang in the model."""
    watcher = Watcher(model, places, observe, replacements)
    with ExitStack() as stack:
        for handle in watcher.hooks(model):
            stack.callback(handle.remove)
        _looking_on.watcher = watcher
        stack.callback(setattr, _looking_on, "watcher", None)
        yield
