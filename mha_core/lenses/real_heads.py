"""What all heads of a trained model do on one text, and whether our layer computes the same.

One pass of the model; each layer's maps are pooled and described while the model runs, so that no more than one layer's
maps are there at a time. The induction score needs a text of its own: random tokens, repeated.

Axes: B batch, H heads, Sq queries, Sk keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mha_core.attention import MultiHeadAttention
from mha_core.lenses.head_stats import HeadStats, describe_heads
from mha_core.lenses.pooling import pool_maps
from mha_core.sources.models.real_model import RealModel, Site
from mha_core.sources.models.text import ModelInput, TextReader
from mha_core.sources.models.watching import SiteCall
from mha_core.sources.trained import sizes_at

REPEAT_LENGTH = 25  # tokens of the random text that is repeated
SMALL_SIDE = 32  # cells a side of a small map
_induction: WeakKeyDictionary[RealModel, tuple[tuple[float, ...], ...]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Difference:
    """How far our layer is from the model's: largest absolute difference of the weights and of the output.

    Attributes:
        weights, output: None where the layer cannot be computed by ours.
        problem: why not; "" where it can.
    """

    weights: float | None
    output: float | None
    problem: str = ""


@dataclass(frozen=True, eq=False)
class LayerView:
    """One attention layer on one sequence.

    Attributes:
        site: the layer. maps: (H, rows, columns), pooled. hidden: (H, rows, columns), True = masked.
        stats: numbers of each head. induction: of each head, NaN where it is not defined.
        difference: between the model's layer and ours, over the whole batch.
    """

    site: Site
    maps: Tensor
    hidden: Tensor
    stats: tuple[HeadStats, ...]
    induction: tuple[float, ...]
    difference: Difference


def recompute(model: RealModel, site: Site, call: SiteCall) -> Difference:
    """Compute a layer with our core, from its weights and real input, and compare with what the model gave.

    Args:
        call: a finished call of this layer, with inputs, mask, weights and output.
    """
    if site.problem or call.query is None or call.key is None or call.weights is None or call.output is None:
        return Difference(None, None, site.problem or "its inputs were not seen")
    layer = MultiHeadAttention.from_config(site.config, model.weights(site)).eval()
    layer.score_bias, layer.rotary = call.score_bias, call.rotary
    layer.fill = "min"  # as transformers hides: a filler row without a key is spread evenly
    output, weights = layer(call.query, call.key, call.key, call.mask)
    assert weights is not None  # the explicit kernel gives them
    return Difference((weights - call.weights).abs().max().item(), (output - call.output).abs().max().item())


def _induction_of(model: RealModel) -> tuple[tuple[float, ...], ...]:
    """Give the induction scores, which are the model's and no text's: measured once for each model that is loaded."""
    if model not in _induction:
        _induction[model] = induction_scores(model)
    return _induction[model]


def look_at_all(model: RealModel, text: str, second: str | None = None, sample: int = 0) -> tuple[LayerView, ...]:
    """Look at every head of a model on one sequence of a text.

    Args:
        model: the model. text: one sequence per line. second: what the decoder of a pair reads.
        sample: index of the sequence that is looked at.

    Raises:
        MhaError: the text has no token, or too many.
    """
    given = model.read(text, second)
    sites = {site.path: site for site in model.sites}
    induction = _induction_of(model)
    views: list[LayerView] = []

    def look(call: SiteCall) -> None:
        site = sites[call.path]
        views.append(_view(model, site, call, given, sample, induction[site.index]))

    model.run(given, look)
    return tuple(sorted(views, key=lambda view: view.site.index))


def _view(
    model: RealModel, site: Site, call: SiteCall, given: ModelInput, sample: int, induction: tuple[float, ...]
) -> LayerView:
    assert call.weights is not None  # the call is finished
    sizes, weights = sizes_at(site, given), call.weights[sample]  # (H, Sq, Sk)
    q_real, k_real = sizes.q_tokens.lengths[sample], sizes.k_tokens.lengths[sample]
    allowed = None if call.mask is None else call.mask[min(sample, len(call.mask) - 1)]
    pooled = pool_maps(weights, allowed, SMALL_SIDE, "max")
    counts = torch.full(weights.shape[:2], weights.shape[2]) if allowed is None else allowed.expand_as(weights).sum(-1)
    own_key = torch.arange(q_real) + (0 if site.kind == "cross" else k_real - q_real)
    stats = describe_heads(weights[:, :q_real], counts[:, :q_real], own_key)
    return LayerView(site, pooled.values, pooled.hidden, stats, induction, recompute(model, site, call))


def repeated_tokens(model: RealModel, seed: int = 0, length: int = REPEAT_LENGTH) -> list[int] | None:
    """Draw random tokens and say them twice; None for a model that does not read tokens."""
    if not isinstance(model.reader, TextReader):
        return None
    length = min(length, model.reader.longest // 2)
    size = getattr(model.config, "vocab_size", 0)
    first = min(1000, size // 10)  # the lowest numbers are special and unused tokens in most vocabularies
    rng = torch.Generator().manual_seed(seed)
    half = torch.randint(first, size, (length,), generator=rng).tolist()
    return half + half


def induction_scores(model: RealModel, seed: int = 0) -> tuple[tuple[float, ...], ...]:
    """Measure how much each head of each layer looks at the token that came after the previous time.

    Returns:
        Per layer and head, the mean weight from a token of the second half to the one after its first occurrence; NaN
        in cross-attention, and for a model that does not read tokens.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", the prefix-matching score.
    """
    ids = repeated_tokens(model, seed)
    scores = {site.path: (math.nan,) * site.config.num_heads for site in model.sites}
    if ids is None or not isinstance(model.reader, TextReader):
        return tuple(scores[site.path] for site in model.sites)
    half = len(ids) // 2
    crossing = {site.path for site in model.sites if site.kind == "cross"}

    def look(call: SiteCall) -> None:
        if call.path not in crossing and call.weights is not None:
            rows = torch.arange(half, 2 * half - 1)  # the last token has not been followed by anything yet
            scores[call.path] = tuple(call.weights[0, :, rows, rows - half + 1].mean(-1).tolist())

    model.run(model.reader.from_ids([ids]), look)
    return tuple(scores[site.path] for site in model.sites)
