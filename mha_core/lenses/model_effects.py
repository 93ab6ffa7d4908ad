"""What an edit inside a trained model does to what the model says: next tokens, likeness of sentences, repetition.

The model runs twice, as it is and with the experiment's edits in the place of its layers; everything after them
follows. Which heads are which is `real_heads`.

Axes: B batch, S sequence, V vocabulary, E width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mha_core.choices import Experiment
from mha_core.errors import MhaError
from mha_core.lenses.real_heads import repeated_tokens
from mha_core.sources.models.real_model import RealModel
from mha_core.sources.models.text import ModelInput, TextReader
from mha_core.sources.models.watching import Replacement
from mha_core.sources.trained import PretrainedSource
from mha_core.trained_layer import edits, source_of_layer, unedited

MAX_LOGITS = 64 * 2**20  # numbers: 256 MiB
CHECK_DRAWS = 5  # of other heads, that the strongest are compared with


@dataclass(frozen=True)
class Guess:
    """One possible next token, and its probability before and after the edits."""

    token: str
    before: float
    after: float


@dataclass(frozen=True)
class NextToken:
    """What comes after one sequence.

    Attributes:
        tokens: of the sequence. guesses: the likeliest before and after, by the larger of the two.
        divergence_nats: Kullback-Leibler divergence of the edited prediction from the model's own.
    """

    tokens: tuple[str, ...]
    guesses: tuple[Guess, ...]
    divergence_nats: float


@dataclass(frozen=True)
class Likeness:
    """How alike the sentences of a batch are, as cosines of their vectors.

    Attributes:
        before, after: B rows of B numbers. moved: per sentence, the cosine of its vector before and after the edits.
    """

    before: tuple[tuple[float, ...], ...]
    after: tuple[tuple[float, ...], ...]
    moved: tuple[float, ...]


def next_tokens(experiment: Experiment, count: int = 8) -> tuple[NextToken, ...]:
    """Predict the next token of each sequence, before and after the edits.

    Args:
        experiment: a layer of a trained model, with edits. count: number of guesses kept of either prediction.

    Raises:
        MhaError: the model predicts nothing, or the batch is too large.
    """
    source = source_of_layer(experiment)
    model, given = source.loaded(), source.read()
    before, after = (_last_logits(model, given, changes).log_softmax(-1) for changes in _two(experiment, given))
    read = given.tokens if given.second is None else given.second
    assert isinstance(model.reader, TextReader)
    label = model.reader.label
    answers = []
    for sequence, tokens in enumerate(read.sequences):
        old, new = before[sequence], after[sequence]  # (V,)
        likely = {number for logits in (old, new) for number in logits.topk(min(count, len(logits))).indices.tolist()}
        guesses = [Guess(label(number), old[number].exp().item(), new[number].exp().item()) for number in likely]
        guesses.sort(key=lambda guess: -max(guess.before, guess.after))
        divergence = torch.nn.functional.kl_div(new, old, log_target=True, reduction="sum").item()
        answers.append(NextToken(tokens, tuple(guesses[:count]), divergence))
    return tuple(answers)


def _two(experiment: Experiment, given: ModelInput) -> tuple[Mapping[str, Replacement], Mapping[str, Replacement]]:
    return {}, edits(experiment, given)


def _last_logits(model: RealModel, given: ModelInput, changes: Mapping[str, Replacement]) -> Tensor:
    """Give the logits after each sequence's last real token, (B, V)."""
    if not model.can_predict:
        problem = f"{model.title} does not predict tokens"
        raise MhaError("model", model.name, "a model that predicts the next token", problem=problem)
    read = given.tokens if given.second is None else given.second
    is_even = len(set(read.lengths)) == 1
    if not is_even and read.batch * read.length * model.config.vocab_size > MAX_LOGITS:
        problem = "so many sequences of different lengths would need too many logits at once"
        raise MhaError("text", read.batch, "fewer or shorter sequences", problem=problem)
    logits: Tensor = model.run(given, replacements=changes, every_logit=not is_even).logits
    last = torch.tensor(read.lengths) - 1 if logits.shape[1] > 1 else torch.zeros(read.batch, dtype=torch.long)
    return logits[torch.arange(read.batch), last].float()


def likeness(experiment: Experiment) -> Likeness:
    """Compare the sentences of the batch before and after the edits.

    A sentence's vector is the mean of the last hidden states over its real tokens, as all-MiniLM-L6-v2 is used.

    Raises:
        MhaError: the model gives no hidden states.
    """
    source = source_of_layer(experiment)
    model, given = source.loaded(), source.read()
    old, new = (_sentence_vectors(model, given, changes) for changes in _two(experiment, given))
    rows = [tuple(map(tuple, (vectors @ vectors.T).tolist())) for vectors in (old, new)]
    return Likeness(rows[0], rows[1], tuple((old * new).sum(-1).tolist()))


def _sentence_vectors(model: RealModel, given: ModelInput, changes: Mapping[str, Replacement]) -> Tensor:
    """(B, E), each of length 1."""
    hidden: Tensor | None = getattr(model.run(given, replacements=changes), "last_hidden_state", None)  # (B, S, E)
    if hidden is None:
        problem = f"{model.title} gives predictions of tokens, no vectors of sentences"
        raise MhaError("model", model.name, "a model that gives hidden states, as minilm", problem=problem)
    read = given.tokens if given.second is None else given.second
    real = torch.tensor([[s < length for s in range(hidden.shape[1])] for length in read.lengths])
    means = (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    return torch.nn.functional.normalize(means, dim=-1)


@dataclass(frozen=True)
class InductionCheck:
    """Whether the heads that look like induction heads do the work of repeating.

    Attributes:
        intact: mean probability of the right token in the second half of a repeated random text.
        strongest: the same with the strongest heads muted. heads: which those are, as "layer.head".
        others: the same with as many other heads muted, one number per draw of heads.
    """

    intact: float
    strongest: float
    heads: tuple[str, ...]
    others: tuple[float, ...]


def induction_check(
    source: PretrainedSource, scores: Sequence[Sequence[float]], count: int = 8, seed: int = 0
) -> InductionCheck:
    """Mute the strongest induction heads, and as many others, and see how well the model still repeats.

    Args:
        source: the model. scores: induction score per layer and head, as `real_heads.induction_scores` gives.
        count: number of heads that are muted. seed: of the random text and of the other heads.

    Raises:
        MhaError: the model predicts nothing.

    Source: Olsson et al. 2022, section "Ablations".
    """
    model = source.loaded()
    ranked = sorted(
        ((score, layer, head) for layer, row in enumerate(scores) for head, score in enumerate(row) if score == score),
        reverse=True,
    )
    count = min(count, max(1, len(ranked) // 3))  # as many others have to be left in a small model
    names = [f"{layer}.{head}" for _, layer, head in ranked]
    strongest, rest = names[:count], names[2 * count :]  # the next strongest may be induction heads as well
    rng = torch.Generator().manual_seed(seed)
    draws = [[rest[i] for i in torch.randperm(len(rest), generator=rng)[:count].tolist()] for _ in range(CHECK_DRAWS)]
    intact, muted, *others = (right_token_probability(model, source, heads, seed) for heads in ([], strongest, *draws))
    return InductionCheck(intact, muted, tuple(strongest), tuple(others))


def right_token_probability(model: RealModel, source: PretrainedSource, muted: Sequence[str], seed: int = 0) -> float:
    """Mean probability of the right next token where a random text repeats, with some heads muted.

    Raises:
        MhaError: the model predicts nothing.
    """
    ids = repeated_tokens(model, seed)
    if ids is None or not model.can_predict or not isinstance(model.reader, TextReader):
        problem = f"{model.title} does not predict tokens"
        raise MhaError("model", model.name, "a model that predicts the next token", problem=problem)
    given = model.reader.from_ids([ids])
    experiment = unedited(Experiment(source=replace(source, layer=0)))
    experiment = replace(experiment, source=replace(source_of_layer(experiment), muted=tuple(muted)))
    logits: Tensor = model.run(given, replacements=edits(experiment, given), every_logit=True).logits  # (1, S, V)
    places = torch.arange(len(ids) // 2, len(ids) - 1)  # where the next token has been seen to follow
    right = torch.tensor(ids)[places + 1]
    return logits[0].softmax(-1)[places, right].mean().item()
