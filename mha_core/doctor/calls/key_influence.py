"""Which key moves which output: the black-box picture of a module, with and without masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from mha_core.doctor.calls.convention import Answer, Inputs, Request

Caller = Callable[[Request], Answer]
STEP = 0.5


def changed(inputs: Inputs, place: int, noise: Tensor, stream: str = "key") -> Inputs:
    """Change the token at one place of the keys and values in all samples; for self-attention that is the query too."""

    def moved(tensor: Tensor) -> Tensor:
        twin = tensor.clone()
        twin[:, place] += noise[..., : tensor.shape[-1]]
        return twin

    if inputs.is_self:
        tokens = moved(inputs.query)
        return Inputs(tokens, tokens, tokens)
    if stream == "query":
        return replace(inputs, query=moved(inputs.query))
    key = moved(inputs.key)
    return Inputs(inputs.query, key, key if inputs.value is inputs.key else moved(inputs.value))


def influence(caller: Caller, request: Request, stream: str = "key") -> Tensor:
    """Give (B, Sq, Sk): how far output i of each sample moves when key j changes. A token's own effect is NaN."""
    columns = moved_by_key(caller, request, stream)
    next(columns)
    return torch.stack(list(columns), -1)


def moved_by_key(caller: Caller, request: Request, stream: str = "key") -> Iterator[Tensor]:
    """Give the output, then key by key how far each output moves, (B, Sq); a token's own effect is NaN."""
    inputs = request.inputs
    own = inputs.is_self or stream == "query"
    tokens = inputs.query if own else inputs.key
    base = caller(request).output
    yield base
    width = max(inputs.query.shape[-1], inputs.key.shape[-1], inputs.value.shape[-1])
    noise = torch.randn(tokens.shape[0], width, generator=torch.Generator().manual_seed(7)) * STEP
    noise = noise.to(tokens.dtype)
    for place in range(tokens.shape[1]):
        moved = caller(replace(request, inputs=changed(inputs, place, noise, stream))).output
        column = (moved - base).abs().amax(-1).double()
        if own:
            column[:, place] = float("nan")
        yield column
