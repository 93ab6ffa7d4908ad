"""What a layer must do, each property a question to the outcome of one side, answered with numbers made here.

The reference is the plain float64 layer of tests/lenses; the clinic contributes nothing but what is to be judged.
Axes: B batch, H heads, Sq queries, Sk keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mha_core import Experiment, run
from mha_core.clinic.compare import Comparison
from mha_core.clinic.outcome import Outcome
from tests.lenses.plain_layer import PlainPass, plain_pass

CLOSE = {"rtol": 1e-4, "atol": 2e-5}


@dataclass(frozen=True, eq=False)
class Asked:
    """One side, and the experiment it ran on."""

    side: Outcome
    experiment: Experiment
    compared: Comparison

    @property
    def maps(self) -> Tensor:
        assert self.side.maps is not None
        return self.side.maps

    def number(self, name: str) -> float:
        found = self.side.number(name)
        assert found is not None, name
        return found


Property = Callable[[Asked], bool]


@cache
def _plain(fields: str) -> PlainPass:
    return plain_pass(Experiment.from_json(fields), torch.sum)


def plain(experiment: Experiment) -> PlainPass:
    """The plain layer on an experiment, its dropout left out."""
    undropped = replace(experiment, attention=replace(experiment.attention, dropout=0.0))
    return _plain(undropped.to_json())


def runs(asked: Asked) -> bool:
    """It raises nothing."""
    return asked.side.failure is None


def is_the_plain_layer(asked: Asked) -> bool:
    """Its output is that of the plain layer; a query with no key is not asked."""
    if asked.side.output is None:
        return False
    return torch.allclose(asked.side.output.double(), plain(asked.experiment).tensors["output"][0], **CLOSE)


def runs_and_is_plain(asked: Asked) -> bool:
    return runs(asked) and is_the_plain_layer(asked)


def shows_the_weights(asked: Asked) -> bool:
    """What is shown are the weights of the plain layer, head by head."""
    wanted = plain(asked.experiment).tensors["weights"][0]
    return asked.maps.shape == wanted.shape and torch.allclose(asked.maps.double(), wanted, **CLOSE)


def _hidden_pairs(asked: Asked) -> Tensor:
    """Pairs of a causal and padded experiment that must not be looked at, (B, 1, Sq, Sk), built from lengths."""
    sizes = asked.compared.sizes
    queries, keys = torch.arange(sizes.q_len) + sizes.k_len - sizes.q_len, torch.arange(sizes.k_len)
    hidden = torch.zeros(sizes.batch, 1, sizes.q_len, sizes.k_len, dtype=torch.bool)
    if "causal" in asked.experiment.mask.kinds:
        hidden |= keys > queries[:, None]
    if "padding" in asked.experiment.mask.kinds:
        hidden |= (keys >= torch.tensor(sizes.k_tokens.lengths)[:, None])[:, None, None]
    return hidden


def hides(asked: Asked) -> bool:
    """No weight lies on a hidden pair."""
    maps = asked.maps
    return bool(maps.isfinite().all()) and not (maps * _hidden_pairs(asked)).any()


def rows_sum_to_one(asked: Asked) -> bool:
    sums = asked.maps.sum(-1)[(~_hidden_pairs(asked)).any(-1).expand(asked.maps.shape[:3])]
    return torch.allclose(sums, torch.ones_like(sums), atol=1e-5)


def learns_everywhere(asked: Asked) -> bool:
    """Every matrix gets a gradient, finite and not 0."""
    norms = asked.side.gradients.values()
    return len(norms) == 4 and all(math.isfinite(norm) and norm > 0 for norm in norms)


def is_finite(asked: Asked) -> bool:
    """Output and gradients are numbers."""
    numbers = [*asked.side.gradients.values()]
    return (
        asked.side.output is not None and bool(asked.side.output.isfinite().all()) and all(map(math.isfinite, numbers))
    )


def query_learns(asked: Asked) -> bool:
    return asked.side.gradients["q"] > 0


def wakes_up(asked: Asked) -> bool:
    """After three steps every matrix learns."""
    return all(asked.number(f"gradient of {name} after 3 steps") > 0 for name in ("q", "k", "v", "out"))


def repeats(asked: Asked) -> bool:
    """Evaluating twice gives the same, and that is the layer without dropout."""
    return float(asked.side.moved["again"].max()) == 0 and is_the_plain_layer(asked)


def keeps_scaled_up(asked: Asked) -> bool:
    """In training a weight is either dropped or the plain one divided by 1 - p."""
    wanted = plain(asked.experiment).tensors["weights"][0] / (1 - asked.experiment.attention.dropout)
    kept = asked.maps > 0
    some = bool((kept != (wanted > 0)).any())
    return some and torch.allclose(asked.maps.double()[kept], wanted[kept], **CLOSE)


def heads_differ(asked: Asked) -> bool:
    return all(
        not torch.allclose(asked.maps[:, 0], asked.maps[:, head], atol=1e-6) for head in range(1, asked.maps.shape[1])
    )


def fills_each_block(asked: Asked) -> bool:
    """Wq spreads as Xavier wants it for its own sizes, within 12 %."""
    config = asked.experiment.attention
    wanted = math.sqrt(2 / (config.embed_dim + config.num_heads * config.head_dim))
    return abs(asked.number("spread (std) of Wq") / wanted - 1) < 0.12


def has_four_square_matrices(asked: Asked) -> bool:
    width = asked.experiment.attention.embed_dim
    return asked.number("weights in the four matrices") == 4 * width**2 and is_the_plain_layer(asked)


def _counted(asked: Asked, *, projections: bool) -> int:
    """Let torch count the products of the layer, dense."""
    config, sizes = asked.experiment.attention, asked.compared.sizes
    width, joined, shared = config.embed_dim, config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    q, k = (torch.zeros(sizes.batch * config.num_heads, s, config.head_dim) for s in (sizes.q_len, sizes.k_len))
    counter = FlopCounterMode(display=False)
    with counter:
        torch.bmm(torch.bmm(q, k.transpose(1, 2)), k)
        if projections:
            queries, keys = (torch.zeros(sizes.batch * s, width) for s in (sizes.q_len, sizes.k_len))
            (queries @ torch.zeros(width, joined)) @ torch.zeros(joined, width)
            keys @ torch.zeros(width, shared), keys @ torch.zeros(width, shared)
    return int(counter.get_total_flops())


def counts_the_layer(asked: Asked) -> bool:
    return asked.number("work of one forward pass") == _counted(asked, projections=True)


def counts_the_products(asked: Asked) -> bool:
    return asked.number("work of the two products") == _counted(asked, projections=False)


def knows_its_scores(asked: Asked) -> bool:
    weights = run(asked.experiment).weights
    return asked.number("memory") == weights.numel() * weights.itemsize


def stays_small(asked: Asked) -> bool:
    return asked.number("memory") <= asked.compared.sizes.batch * asked.compared.sizes.k_len


def slopes_begin_at_one(asked: Asked) -> bool:
    """Weights with ALiBi: scores less 2^(-8(h + 1)/H) for each step of distance."""
    done, heads = run(asked.experiment), asked.experiment.attention.num_heads
    scores = done.scores.double().clone()
    first = scores.shape[3] - scores.shape[2]
    for head in range(heads):
        for query in range(scores.shape[2]):
            for key in range(scores.shape[3]):
                scores[:, head, query, key] -= abs(query + first - key) * 2 ** (-8 * (head + 1) / heads)
    wanted = scores.masked_fill(~done.allowed, -1e30).softmax(-1)
    return torch.allclose(asked.maps.double(), wanted, **CLOSE)


# Every mistake: what its right side does and its wrong side does not.
PROPERTIES: dict[str, Property] = {
    "view_after_transpose": runs_and_is_plain,
    "shared_small_projection": has_four_square_matrices,
    "fill_beyond_half": runs,
    "softmax_left_in_float32": runs,
    "double_mask": runs,
    "padding_on_heads": hides,
    "mask_repeated_head_major": hides,
    "mask_polarity": hides,
    "key_padding_polarity": hides,
    "anti_causal": hides,
    "mask_added_as_numbers": hides,
    "fill_typo": hides,
    "weak_fill": hides,
    "scores_times_mask": hides,
    "fill_thrown_away": hides,
    "one_token_ahead": hides,
    "causal_only_when_fused": hides,
    "mask_after_softmax": rows_sum_to_one,
    "softmax_over_queries": rows_sum_to_one,
    "softmax_over_heads": rows_sum_to_one,
    "softmax_over_batch": rows_sum_to_one,
    "minus_infinity_everywhere": is_finite,
    "nan_cleaned_afterwards": is_finite,
    "scaled_after_product": is_finite,
    "dropout_in_eval": repeats,
    "dropped_unscaled": keeps_scaled_up,
    "dropout_on_scores": keeps_scaled_up,
    "detached_weights": learns_everywhere,
    "two_zero_layers": wakes_up,
    "zero_queries_and_keys": query_learns,
    "equal_heads": heads_differ,
    "xavier_on_packed": fills_each_block,
    "slopes_from_zero": slopes_begin_at_one,
    "second_softmax": shows_the_weights,
    "average_of_heads": shows_the_weights,
    "heads_before_batch": shows_the_weights,
    "batch_second": shows_the_weights,
    "only_one_product_counted": counts_the_layer,
    "multiply_adds_as_flops": counts_the_products,
    "memory_of_one_head": knows_its_scores,
    "mask_spread_out": stays_small,
}
# The right side of these is the plain layer as well, and the wrong side is not.
WHOLE = runs_and_is_plain
NOT_PLAIN = {  # their right side is another layer than the experiment's, or it is not float32
    *("fill_beyond_half", "softmax_left_in_float32", "minus_infinity_everywhere"),
    *("nan_cleaned_afterwards", "scaled_after_product", "weak_fill", "dropped_unscaled", "dropout_on_scores"),
    *("two_zero_layers", "zero_queries_and_keys", "equal_heads", "xavier_on_packed", "slopes_from_zero"),
}
# The output of their wrong side is right: something else is broken.
RIGHT_OUTPUT = {
    *("detached_weights", "second_softmax", "average_of_heads", "heads_before_batch"),
    *("only_one_product_counted", "multiply_adds_as_flops", "memory_of_one_head", "mask_spread_out"),
}
