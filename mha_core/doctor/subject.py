"""Any attention module, called in one uniform way.

`examine` finds out how a module wants to be called: which tensors, how wide, in which layout, with which masks. The
`Subject` it gives takes batch-first inputs and masks with True = may attend, and answers batch first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.doctor.calls import caching, calling
from mha_core.doctor.calls.convention import Answer, Convention, Inputs, Mode, Request, Takes
from mha_core.doctor.calls.expression import CALL_NAMES
from mha_core.doctor.calls.failure import ModuleFailure
from mha_core.doctor.calls.finding import Found, find
from mha_core.doctor.calls.knobs import copied, one_thread, set_dropout
from mha_core.doctor.calls.ways import Given

__all__ = ["CALL_NAMES", "Answer", "Inputs", "Mode", "ModuleFailure", "Subject", "examine"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A module and what was found out about it.

    Attributes:
        module: the person's own; it is never called, copies are.
        name: class name, with the file where it is the person's own.
        files: the person's source files; a failure's place lies in one of them.
        embed_dim, key_dim, value_dim: widths of what goes in as query, key and value. out_dim: of what comes out.
        num_heads, num_kv_heads, head_dim: None where nothing tells.
        takes: forward(x), forward(x, context), forward(q, k, v), or forward(q, k, v) of heads already split.
        can_cross: whether query and key may be different tensors.
        batch_first: what the module itself wants; inputs and answers are batch first anyway.
        is_library: the class comes from torch, transformers or this project.
        expects_causal: what the person or the module says; None where nothing does.
        key_mask, pair_mask, sample_pair_mask: whether it can be given masks (B, Sk), (Sq, Sk), (B, Sq, Sk).
        position_signs: why equal tokens at different places may differ.
        has_cache: a key/value cache comes back and can be given.
        assumed: what was taken for granted, in words, by name.
        convention: how it is called.
        cache_start: makes what the first step with a cache is given.
        only_len: the one sequence length the module is bound to, as windows are; `inputs` then always gives it.
    """

    module: nn.Module
    name: str
    files: tuple[str, ...]
    embed_dim: int
    key_dim: int
    value_dim: int
    out_dim: int
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    takes: Takes
    can_cross: bool
    batch_first: bool
    is_library: bool
    expects_causal: bool | None
    key_mask: bool
    pair_mask: bool
    sample_pair_mask: bool
    position_signs: tuple[str, ...]
    has_cache: bool
    assumed: dict[str, Any]
    convention: Convention
    cache_start: caching.Start | None = None
    only_len: int | None = None

    def fresh(self, *, training: bool = False, dropout: float | None = None) -> nn.Module:
        """Give an independent copy of the module."""
        return copied(self.module, training=training, dropout=dropout)

    def inputs(
        self,
        batch: int,
        q_len: int,
        k_len: int | None = None,
        *,
        seed: int = 0,
        scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> Inputs:
        """Give normal random inputs times `scale`; without `k_len` for self-attention, one tensor for all three.

        A module bound to one length gets that length, whatever is asked for.
        """
        if self.only_len is not None:
            q_len, k_len = self.only_len, None if k_len is None else self.only_len
        generator = torch.Generator().manual_seed(seed)

        def draw(length: int, width: int) -> Tensor:
            return (torch.randn(batch, length, width, generator=generator) * scale).to(dtype)

        query = draw(q_len, self.embed_dim)
        if k_len is None and self.key_dim == self.value_dim == self.embed_dim:
            return Inputs(query, query, query)
        key = draw(q_len if k_len is None else k_len, self.key_dim)
        if self.takes == "context":
            return Inputs(query, key, key)
        return Inputs(query, key, draw(key.shape[1], self.value_dim))

    def call(
        self,
        inputs: Inputs,
        *,
        keep_keys: Tensor | None = None,
        keep_pairs: Tensor | None = None,
        mode: Mode = Mode(),
        module: nn.Module | None = None,
        causal: bool | None = None,
        seed: int = 0,
    ) -> Answer:
        """Call the module once, under a seeded generator of its own.

        Args:
            inputs: batch first, as `inputs` gives them.
            keep_keys: (B, Sk) bool, True = may be attended.
            keep_pairs: (Sq, Sk) or (B, Sq, Sk) bool, True = may attend.
            mode: training, weights wanted, dropout.
            module: a copy from `fresh` to call, which then keeps its own dropout; without it a new one is made.
            causal: what to say to an argument such as is_causal; None leaves it alone.
            seed: of the generator the module draws from.

        Raises:
            ModuleFailure: the module raised, cannot be given this mask, or returned no output.
        """
        if module is None:
            module = self.fresh(training=mode.training, dropout=mode.dropout)
        else:
            if module.training is not mode.training:
                module.train(mode.training)
            if mode.dropout is not None:
                set_dropout(module, mode.dropout)
        request = Request(inputs, keep_keys, keep_pairs, mode, causal)
        return calling.call(module, self.convention, request, self.files, seed)

    def accepts(self, keep_keys: Tensor | None = None, keep_pairs: Tensor | None = None) -> bool:
        """Tell whether these masks can be given: the module has arguments for them, and lengths can write them."""
        batch = 1 if keep_keys is None else keep_keys.shape[0]
        pairs = keep_pairs
        if pairs is not None and pairs.dim() == 3:
            batch = pairs.shape[0]
        q_len = pairs.shape[-2] if pairs is not None else 1 if keep_keys is None else keep_keys.shape[1]
        k_len = pairs.shape[-1] if pairs is not None else q_len
        blank = torch.empty(batch, q_len, 1)
        key = blank if k_len == q_len else torch.empty(batch, k_len, 1)
        return calling.can_mask(self.convention, Request(Inputs(blank, key, key), keep_keys, pairs))

    def call_cached(self, module: nn.Module, inputs: Inputs, cache: Any | None, position: int) -> tuple[Answer, Any]:
        """Call one step with the cache of the steps before; gives the cache to go on with.

        Args:
            module: a copy from `fresh`.
            inputs: the new tokens only.
            cache: what the step before gave; None at the first.
            position: the place of the first new token in the sequence.

        Raises:
            ModuleFailure: the module raised, gave no cache back, or cannot be given one.
        """
        if self.cache_start is None:
            raise ModuleFailure("no cache can be given to this module")
        given = self.cache_start(module) if cache is None else cache
        return caching.step(module, self.convention, Request(inputs, position=position), given, self.files)


def examine(
    module: nn.Module,
    *,
    embed_dim: int | None = None,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    causal: bool | None = None,
    batch_first: bool | None = None,
    call: str | Callable[..., Any] | None = None,
) -> Subject:
    """Find out how a module is called; what is given is believed, the rest is read and probed.

    Raises:
        MhaError: it cannot be called; says with which line to pass as --call it could.
    """
    with one_thread():
        found: Found = find(module, Given(embed_dim, num_heads, num_kv_heads, causal, batch_first, call))
    return Subject(**vars(found))
