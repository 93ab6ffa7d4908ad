"""The tensors of an experiment that the clinic works on, and changed copies of them for probes.

Axes: B batch, Sq queries, Sk keys, E width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mha_core.choices import Experiment
from mha_core.experiment import give
from mha_core.init_schemes import generator_for
from mha_core.layouts import AttentionWeights
from mha_core.rotary import rotate_positions, turn_pairs

ADDED = 2  # tokens that the padding probe appends
Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Case:
    """What a layer gets.

    Attributes:
        query, key, value: (B, Sq, E), (B, Sk, kdim), (B, Sk, vdim); one tensor where they are the same.
        mask: (B, 1, Sq, Sk), True = may attend; all True where nothing is hidden.
        keep, keep_q: (B, Sk) and (B, Sq), True = a real token; keep is all True without a padding mask.
        weights: detached. bias: of the scores, or None. angles: of trained rotary positions, or None.
        muted: heads that say nothing.
        run_seed: of dropout.
    """

    experiment: Experiment
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor
    keep: Tensor
    keep_q: Tensor
    weights: AttentionWeights
    bias: Tensor | None
    angles: Angles | None
    muted: tuple[int, ...]
    run_seed: int = 0

    @property
    def is_self(self) -> bool:
        """Whether queries and keys are the same tokens."""
        return self.key is self.query

    def turn(self, heads: Tensor, first: int) -> Tensor:
        """Turn q or k (B, H, S, D) by its positions, where the experiment has rotary ones."""
        if self.angles is not None:
            return turn_pairs(heads, *self.angles)
        theta = self.experiment.attention.rope_theta
        return heads if theta is None else rotate_positions(heads, theta, first=first)


def case_of(experiment: Experiment) -> Case:
    """Make the tensors of an experiment.

    Raises:
        MhaError: it cannot be run.
    """
    given = give(experiment)
    sizes, inputs, layer = given.sizes, given.inputs, given.layer
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool) if given.mask is None else given.mask
    has_padding = "padding" in experiment.mask.kinds
    return Case(
        experiment,
        inputs.query,
        inputs.key,
        inputs.value,
        mask.expand(sizes.batch, 1, sizes.q_len, sizes.k_len).clone(),
        _real(sizes.k_tokens.lengths, sizes.k_len) if has_padding else torch.ones(sizes.batch, sizes.k_len).bool(),
        _real(sizes.q_tokens.lengths, sizes.q_len),
        layer.weights().map(lambda tensor: tensor.detach()),
        layer.score_bias,
        layer.rotary,
        layer.muted_heads,
    )


def _real(lengths: tuple[int, ...] | list[int], longest: int) -> Tensor:
    return torch.arange(longest) < torch.tensor(lengths)[:, None]  # (B, S)


def _redraw(case: Case, name: str, tensor: Tensor, tokens: Tensor) -> Tensor:
    """Put new numbers of the same spread at the tokens (B, S) that are True."""
    noise = torch.randn(tensor.shape, generator=generator_for(case.experiment.seed, "probe", name))
    spread = tensor.detach().float().std().clamp_min(1e-3)
    return torch.where(tokens[..., None], (noise * spread).to(tensor.dtype), tensor)


def _with_inputs(case: Case, query: Tensor, key: Tensor, value: Tensor) -> Case:
    """Put in other inputs; what was one tensor stays one tensor."""
    key = query if case.is_self else key
    return replace(case, query=query, key=key, value=key if case.value is case.key else value)


def change_tokens(case: Case, q_tokens: Tensor, k_tokens: Tensor) -> Case:
    """Give other numbers to the query tokens (B, Sq) and key tokens (B, Sk) that are True."""
    return _with_inputs(
        case,
        _redraw(case, "query", case.query, q_tokens),
        _redraw(case, "key", case.key, k_tokens),
        _redraw(case, "value", case.value, k_tokens),
    )


def change_last_token(case: Case) -> Case:
    """Change the last real key of every sequence."""
    last = case.keep.long().cumsum(-1).argmax(-1)  # (B,)
    k_tokens = torch.arange(case.key.shape[1]) == last[:, None]
    return change_tokens(case, k_tokens if case.is_self else torch.zeros_like(case.keep_q), k_tokens)


def change_last_sequence(case: Case) -> Case | None:
    """Change every token of the last sequence; None where there is one sequence only."""
    batch = case.query.shape[0]
    if batch < 2:
        return None
    chosen = (torch.arange(batch) == batch - 1)[:, None]
    return change_tokens(case, chosen.expand_as(case.keep_q), chosen.expand_as(case.keep))


def add_padding(case: Case) -> Case | None:
    """Append tokens that nobody may look at; None where positions or a bias come ready made for this length."""
    if case.bias is not None or case.angles is not None:
        return None

    def longer(name: str, tensor: Tensor) -> Tensor:
        more = torch.cat([tensor, tensor.new_zeros(tensor.shape[0], ADDED, tensor.shape[2])], 1)
        tokens = (torch.arange(more.shape[1]) >= tensor.shape[1]).expand(more.shape[:2])
        return _redraw(case, name, more, tokens)

    pad = torch.nn.functional.pad
    mask = pad(case.mask, (0, ADDED))  # no query sees the new keys
    query = longer("query", case.query) if case.is_self else case.query
    mask = torch.cat([mask, mask[:, :, -1:].expand(-1, -1, ADDED, -1)], 2) if case.is_self else mask
    keep_q = pad(case.keep_q, (0, ADDED)) if case.is_self else case.keep_q
    grown = replace(case, mask=mask, keep=pad(case.keep, (0, ADDED)), keep_q=keep_q)
    return _with_inputs(grown, query, longer("key", case.key), longer("value", case.value))
