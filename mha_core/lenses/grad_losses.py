"""The losses a backward pass can start from: what each is, its gradient at the output, and what it needs.

All are taken over the output y (B, Sq, E), in float32 at least. Letters: B batch, S sequence, E width, V candidates of
the read-out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_core.choices import Experiment
from mha_core.errors import MhaError, Suggestion
from mha_core.experiment import Given
from mha_core.init_schemes import generator_for
from mha_core.sources.inputs import Sizes, TextSource, token_vectors

NO_TARGET = -100  # what torch's cross-entropy leaves out


@dataclass(frozen=True)
class Loss:
    """One loss: its name, and what it is in words."""

    name: str
    summary: str
    value: Callable[[Experiment, Given, Tensor], Tensor]


@dataclass(frozen=True)
class ReadOut:
    """Candidates (V, E), or (B, V, E) where each sequence has its own, and targets (B, S): rows of them, or none."""

    candidates: Tensor
    targets: Tensor


def read_out(experiment: Experiment, given: Given) -> ReadOut:
    """Make the tied read-out and the next tokens.

    For a text the candidates are the embeddings of its different tokens (without positions) and the target of a token
    is the one after it; padding is never a target. For random input the candidates of a sequence are its own S vectors
    and the target of position s is number s + 1.
    """
    tokens, dtype = given.sizes.q_tokens, given.inputs.query.dtype
    if isinstance(experiment.source, TextSource):
        rows = {token: row for row, token in enumerate(dict.fromkeys(t for line in tokens.sequences for t in line))}
        width = experiment.attention.embed_dim
        candidates = token_vectors(experiment.source, list(rows), width, experiment.seed)
        numbers = [[rows[token] for token in line[1:]] for line in tokens.sequences]
    else:
        candidates = given.inputs.query
        numbers = [list(range(1, len(line))) for line in tokens.sequences]
    padded = [line + [NO_TARGET] * (tokens.length - len(line)) for line in numbers]
    return ReadOut(candidates.to(dtype), torch.tensor(padded))


def _wide(tensor: Tensor) -> Tensor:
    """In float32 at least: a loss in half precision would round the gradient before it starts."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _sum(experiment: Experiment, given: Given, output: Tensor) -> Tensor:
    return _wide(output).sum()


def _mse(experiment: Experiment, given: Given, output: Tensor) -> Tensor:
    target = torch.randn(output.shape, generator=generator_for(experiment.seed, "loss", "target"))
    return F.mse_loss(_wide(output), target.to(_wide(output).dtype))


def _next_token(experiment: Experiment, given: Given, output: Tensor) -> Tensor:
    read = read_out(experiment, given)
    candidates = _wide(read.candidates)
    logits = _wide(output) @ candidates.transpose(-1, -2) / experiment.attention.embed_dim**0.5  # (B, S, V)
    return F.cross_entropy(logits.flatten(0, 1), read.targets.flatten(), ignore_index=NO_TARGET)


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("sum", "the sum of all outputs: every output gets the gradient 1", _sum),
        Loss("mse", "the mean square of output - target, the target drawn N(0, 1) from the seed", _mse),
        Loss(
            "next_token",
            "cross-entropy of the next token, mean over the positions that have one; logits are y·e / √E over the "
            "candidates e: the embeddings of the text's tokens, or for random input the sequence's own vectors",
            _next_token,
        ),
    )
}


def check_loss(experiment: Experiment, sizes: Sizes, name: str) -> None:
    """Refuse a loss that is unknown or that the experiment cannot have.

    Raises:
        MhaError: field "loss", with what would work.
    """
    if name not in LOSSES:
        raise MhaError("loss", name, "one of " + ", ".join(LOSSES), [Suggestion.of(loss="sum")])
    if name != "next_token":
        return
    others = [Suggestion.of(loss="sum"), Suggestion.of(loss="mse")]
    if sizes.is_cross:
        problem = "next_token asks each token for the one after it, but here queries and keys are two sequences"
        cure = Suggestion.of("no second text", memory_text=None, k_len=None)
        raise MhaError("loss", name, "sum or mse with cross-attention", [*others, cure], problem=problem)
    if max(sizes.q_tokens.lengths) < 2:
        problem = "next_token needs a token that another one follows, but every sequence is one token long"
        raise MhaError("loss", name, "sum or mse with one token", others, problem=problem)


def candidates_alike(experiment: Experiment, given: Given, name: str) -> bool:
    """Whether the read-out offers one vector only, so that no output is better than another."""
    if name != "next_token":
        return False
    candidates = read_out(experiment, given).candidates
    return bool((candidates == candidates[..., :1, :]).all())


def extra_numbers(sizes: Sizes, experiment: Experiment, name: str) -> int:
    """Count the numbers a loss keeps beside the layer: target or logits, and their gradients."""
    if name == "next_token":
        is_text = isinstance(experiment.source, TextSource)
        tokens = {t for line in sizes.q_tokens.sequences for t in line} if is_text else range(sizes.q_len)
        return 4 * sizes.batch * sizes.q_len * len(tokens) + len(tokens) * experiment.attention.embed_dim
    return 3 * sizes.batch * sizes.q_len * experiment.attention.embed_dim
