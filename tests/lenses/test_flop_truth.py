"""Other counts: the seed article's own function, the counter on real tensors, and what each is said to miss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mha_core import Experiment, MultiHeadAttention
from mha_core.lenses.cost import cost
from mha_core.lenses.flop_truth import Count, seed_estimate, truth

SEED_ARTICLE = """
def count_flops(batch_size, seq_len, embed_dim, num_heads):
    total = 2 * batch_size * seq_len * (embed_dim**2) * 3
    total += 2 * batch_size * num_heads * (seq_len**2) * (embed_dim//num_heads)
    total += 2 * batch_size * seq_len * (embed_dim**2)
    return total
"""  # as printed there, comments left out
PLAIN = {"batch": 3, "q_len": 7, "embed_dim": 44, "num_heads": 4}


def counts(with_input: bool = True, **fields: Any) -> dict[str, Count]:
    found = cost(Experiment.from_fields({"source": "random"} | fields), input_gradient=with_input)
    return {count.name: count for count in truth(found)}


def on_real_tensors(fields: dict[str, Any], **layer: Any) -> tuple[int, int]:
    """What the counter says of our layer, computed in earnest."""
    built = MultiHeadAttention(fields["embed_dim"], fields["num_heads"], **layer)
    query = torch.randn(fields["batch"], fields["q_len"], fields["embed_dim"], requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        output, _ = built(query)
        forward = counter.get_total_flops()
        output.sum().backward()
    return forward, counter.get_total_flops() - forward


def test_the_seed_estimate_is_the_articles() -> None:
    article: dict[str, Any] = {}
    exec(SEED_ARTICLE, article)
    for sizes in ((1, 10, 512, 8), (3, 7, 44, 4), (2, 1, 6, 6)):
        assert seed_estimate(*sizes) == article["count_flops"](*sizes)


@pytest.mark.parametrize(("batch", "length", "embed", "heads"), [(3, 7, 44, 4), (1, 13, 35, 5), (2, 1, 6, 1)])
def test_the_seed_estimate_lacks_weights_times_v(batch: int, length: int, embed: int, heads: int) -> None:
    found = counts(batch=batch, q_len=length, embed_dim=embed, num_heads=heads)
    missing = found["closed form"].forward - found["seed article, count_flops"].forward
    assert missing == 2 * batch * heads * length**2 * (embed // heads)
    assert "weights·V" in found["seed article, count_flops"].why


def test_kaplan_counts_half_the_square() -> None:
    found = counts(**PLAIN)["Kaplan et al. 2020, table 1"]
    assert found.forward == 3 * 7 * (2 * 44 * 3 * 44 + 2 * 44 * 44 + 2 * 7 * 44)
    assert found.backward == 2 * found.forward


@pytest.mark.parametrize("with_input", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        PLAIN,
        PLAIN | {"kernel": "sdpa", "mask": ("causal",)},
        PLAIN | {"embed_dim": 40, "num_kv_heads": 2, "positions": "rotary", "projection": "fused"},
        PLAIN | {"k_len": 11, "kdim": 13, "vdim": 17, "bias": False},
        PLAIN | {"embed_dim": 43, "head_size": 13, "projection": "fused"},
        {"batch": 1, "q_len": 16_384, "embed_dim": 512, "num_heads": 8},
    ],
    ids=str,
)
def test_the_counter_on_the_explicit_kernel_agrees_at_any_size(fields: dict[str, Any], with_input: bool) -> None:
    found = counts(with_input, **fields)
    assert found["counter, explicit kernel"].agrees
    assert found["counter, explicit kernel"].backward == found["closed form"].backward


def test_fake_tensors_are_counted_as_real_ones() -> None:
    found = counts(**PLAIN)
    explicit, fused = found["counter, explicit kernel"], found["counter, fused kernel (SDPA)"]
    assert (explicit.forward, explicit.backward) == on_real_tensors(PLAIN)
    assert (explicit.forward, explicit.backward) == on_real_tensors(PLAIN, kernel="chunked")
    assert (fused.forward, fused.backward) == on_real_tensors(PLAIN, kernel="sdpa")


@pytest.mark.parametrize("need_weights", [True, False])
def test_torchs_module_is_counted_as_on_real_tensors(need_weights: bool) -> None:
    module, tokens = nn.MultiheadAttention(44, 4, batch_first=True), torch.randn(3, 7, 44, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        output = module(tokens, tokens, tokens, need_weights=need_weights)[0]
        forward = counter.get_total_flops()
        output.sum().backward()
    found = counts(**PLAIN)[f"counter, nn.MultiheadAttention, need_weights={need_weights}"]
    assert (found.forward, found.backward) == (forward, counter.get_total_flops() - forward)
    assert found.agrees is need_weights


def test_what_the_counter_misses_on_cpu() -> None:
    """0 for the fused kernel, 0 for the whole module on its fast path; the math backend shows it."""
    found = counts(**PLAIN)
    attention = 2 * (2 * 3 * 7 * 7 * 44)
    for name in ("counter, fused kernel (SDPA)", "counter, nn.MultiheadAttention, need_weights=False"):
        assert found["closed form"].forward - found[name].forward == attention
        assert not found[name].agrees
    assert found["counter, nn.MultiheadAttention, eval and no_grad"].forward == 0
    heads = torch.randn(3, 4, 7, 11)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        F.scaled_dot_product_attention(heads, heads, heads)
    assert counter.get_total_flops() == attention


def test_an_odd_number_of_heads_takes_no_fast_path() -> None:
    name = "counter, nn.MultiheadAttention, eval and no_grad"
    found = counts(batch=1, q_len=7, embed_dim=35, num_heads=5)[name]
    assert found.forward == 2 * 4 * 7 * 35 * 35
    assert "even number of heads" in found.why


def test_what_cannot_speak_of_the_layer_says_so() -> None:
    found = counts(**PLAIN, num_kv_heads=2)
    for name in ("seed article, count_flops", "Kaplan et al. 2020, table 1", "counter, nn.MultiheadAttention"):
        assert found[name].forward is None
        assert not found[name].agrees
        assert "shared" in found[name].why


def test_untied_heads_are_not_everybodys() -> None:
    """H·D = 52 is not E = 44: Kaplan's table has d_attn for it, the article and torch's module have nothing."""
    found = counts(**PLAIN, head_size=13)
    for name in ("seed article, count_flops", "counter, nn.MultiheadAttention"):
        assert found[name].forward is None
        assert not found[name].agrees
        assert "E / H channels" in found[name].why
    kaplan = found["Kaplan et al. 2020, table 1"]
    assert (kaplan.forward, kaplan.backward) == (3 * 7 * (2 * 44 * 4 * 52 + 2 * 7 * 52), 2 * kaplan.forward)
    assert counts(**PLAIN, head_size=11) == counts(**PLAIN)


def test_shared_state_is_left_as_it_was() -> None:
    """Neither the global generator nor the fake tensors' cache keeps a trace."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = torch.random.get_rng_state()
    counts(**PLAIN)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not FakeTensorMode.cache
