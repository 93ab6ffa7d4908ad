"""What is passed to a module and what comes back: inputs, mode and answer of a call, and the convention between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from mha_core.doctor.calls.layout import Layout
from mha_core.doctor.calls.mask_forms import MaskUse

Takes = Literal["tokens", "context", "qkv", "heads"]


@dataclass(frozen=True)
class Inputs:
    """Query (B, Sq, E), key (B, Sk, kdim), value (B, Sk, vdim); always batch first.

    For self-attention key and value are the same object as the query; for a context both are the context.
    """

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def is_self(self) -> bool:
        """Whether query, key and value are one tensor."""
        return self.key is self.query


@dataclass(frozen=True)
class Mode:
    """How to call: training or evaluation, with weights asked for, and with every dropout knob set to a value."""

    training: bool = False
    weights: bool = False
    dropout: float | None = None


@dataclass(frozen=True)
class Answer:
    """What came back: output (B, Sq, anything); weights (B, H, Sq, Sk) or (B, Sq, Sk), or None; everything else."""

    output: Tensor
    weights: Tensor | None
    extra: tuple[Any, ...]


@dataclass(frozen=True)
class Request:
    """One call: inputs, masks as `keep` (True = may attend), mode, whether causality is asked for, and a cache.

    Where the inputs continue a sequence, `position` is the place of their first token and `cache` holds those before.
    """

    inputs: Inputs
    keep_keys: Tensor | None = None
    keep_pairs: Tensor | None = None
    mode: Mode = Mode()
    causal: bool | None = None
    position: int = 0
    cache: Any | None = None
    caching: bool = False


Maker = Callable[[Request], Any]


@dataclass(frozen=True)
class Convention:
    """How one module is called.

    Attributes:
        takes: which tensors forward wants.
        streams: argument names of the tensors, by role: "tokens", "query", "key", "value", "context".
        positional: pass the tensors by place, in the order of `streams`, as forward(*args) needs.
        batch_first: what the module itself wants.
        num_heads: where a mask or an input is laid out per head.
        layout, context_layout: how tokens, and what is attended to, are laid out where they are no rows of tokens.
        one_query: it answers one query per call, so it is called once for each.
        packed: the tensors are handed over in one tuple.
        heads_axis: for `takes == "heads"`, 1 for (B, H, S, D), 2 for (B, S, H, D).
        masks: how masks are given; several with one scope are given together.
        whole_masks: a mask given takes the place of the module's own causal one, so causality is written into it.
        unmasked: what a mask argument gets when nothing is hidden, where it may not be left out.
        makers: other arguments forward needs, made from the request.
        weights: arguments that ask for weights, with the value that does and the one that does not.
        causal: arguments that ask for causality.
        cache: the argument that takes a key/value cache, and the one that switches caching on.
        weights_by: what runs slower where returned weights have batch and heads in one axis, or heads first.
        out_dim: width of the output, to know it from other things that come back.
        needs_context: self-attention passes the tokens as the context too.
        call: the person's own way to call the module, and the masks ("keys", "pairs") it can be given.
    """

    takes: Takes
    streams: dict[str, str]
    batch_first: bool = True
    num_heads: int = 1
    heads_axis: int = 1
    positional: bool = False
    layout: Layout = "tokens"
    context_layout: Layout = "tokens"
    packed: bool = False
    one_query: bool = False
    masks: tuple[MaskUse, ...] = ()
    self_masks: tuple[MaskUse, ...] = ()
    whole_masks: bool = False
    unmasked: tuple[MaskUse, ...] = ()
    makers: dict[str, Maker] = field(default_factory=dict)
    weights: tuple[tuple[str, Any, Any], ...] = ()
    causal: tuple[str, ...] = ()
    cache: str | None = None
    use_cache: str | None = None
    needs_context: bool = False
    weights_by: Literal["batch", "heads"] = "batch"
    out_dim: int | None = None
    call: Callable[[nn.Module, Request], Any] | None = None
    call_masks: frozenset[str] = frozenset()

    @property
    def scopes(self) -> frozenset[str]:
        """Which masks can be given: "keys", "pairs", "sample_pairs"."""
        own = {use.scope for use in self.masks}
        if "pairs" in self.call_masks:
            return frozenset({"keys", "pairs", "sample_pairs"})
        if "sample_pairs" in own:
            own |= {"keys", "pairs"}
        return frozenset(own | self.call_masks)

    def mask(self, scope: str) -> MaskUse | None:
        """Give the first mask with this scope."""
        return next((use for use in self.masks if use.scope == scope), None)
