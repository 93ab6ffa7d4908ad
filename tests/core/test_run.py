"""The tensors of a run: shapes, rows that sum to 1, exact zeros where masked, an output recomputed with torch alone.

Every size is another prime where sizes may differ. The recomputation takes the run's inputs and the layer's weights and
uses nothing but matrix products, torch's softmax and slices.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mha_core import (
    AttentionConfig,
    AttentionWeights,
    Experiment,
    InitSpec,
    MaskSpec,
    MhaError,
    RandomSource,
    TextSource,
)
from mha_core.experiment import Run, build_layer, run
from mha_core.init_schemes import initial_weights
from tests.core.strategies import TOLERANCE, assert_near, reference_attention

PRIMES = Experiment(
    source=RandomSource(batch=3, q_len=11, k_len=13),
    attention=AttentionConfig(embed_dim=70, num_heads=10, num_kv_heads=5, kdim=17, vdim=19),  # D = 7
    init=InitSpec(bias="torch_default"),
    seed=23,
)
MASKED = {
    "none": MaskSpec(),
    "causal": MaskSpec(("causal",)),
    "local": MaskSpec(("local",), window=1, direction="back"),
    "top left": MaskSpec(("causal", "local"), alignment="top_left"),
    "custom": MaskSpec(("custom",), custom=("1" * 6 + "0" * 7,) * 10 + ("0" * 13,)),  # the last query sees no key
}
TENSORS = ("q", "k", "v", "scores", "weights", "context", "output")


def same(first: Run, second: Run) -> bool:
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in TENSORS)


def test_shapes() -> None:
    done = run(replace(PRIMES, mask=MaskSpec(("causal",))))
    shapes = {name: tuple(getattr(done, name).shape) for name in (*TENSORS, "mask", "masked_scores", "allowed")}
    full = (3, 10, 11, 13)
    assert shapes == {
        "q": (3, 10, 11, 7),
        "k": (3, 5, 13, 7),
        "v": (3, 5, 13, 7),
        "scores": full,
        "weights": full,
        "context": (3, 10, 11, 7),
        "output": (3, 11, 70),
        "mask": (1, 1, 11, 13),
        "masked_scores": full,
        "allowed": full,
    }
    inputs = done.inputs
    assert [tuple(t.shape) for t in (inputs.query, inputs.key, inputs.value)] == [(3, 11, 70), (3, 13, 17), (3, 13, 19)]
    assert (done.sizes.batch, done.sizes.q_len, done.sizes.k_len) == (3, 11, 13)
    assert done.forward_ms > 0
    assert run(PRIMES).mask is None


@pytest.mark.parametrize("kernel", ["explicit", "chunked", "sdpa"])
@pytest.mark.parametrize("mask", MASKED.values(), ids=MASKED)
def test_rows_sum_to_one_and_hidden_weights_are_exactly_zero(mask: MaskSpec, kernel: str) -> None:
    done = run(replace(PRIMES, mask=mask, attention=replace(PRIMES.attention, kernel=kernel)))
    sees_a_key = done.allowed.any(-1)
    torch.testing.assert_close(done.weights.sum(-1), sees_a_key.float())
    assert (done.weights[~done.allowed] == 0).all()
    assert (done.weights[done.allowed] > 0).all()
    assert done.allowed.all() == (mask.kinds == ())


@pytest.mark.parametrize("kernel", ["explicit", "chunked", "sdpa"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("theta", [None, 500.0])
@pytest.mark.parametrize("mask", MASKED.values(), ids=MASKED)
def test_everything_is_recomputed_from_the_inputs(mask: MaskSpec, theta: float | None, dtype: str, kernel: str) -> None:
    attention = AttentionConfig(40, 10, num_kv_heads=5, kdim=17, vdim=19, kernel=kernel, rope_theta=theta)
    experiment = replace(PRIMES, attention=attention, mask=mask, dtype=dtype)
    done, layer = run(experiment), build_layer(experiment)
    weights = AttentionWeights(
        layer.wq.weight, layer.wk.weight, layer.wv.weight, layer.fc_out.weight,
        layer.wq.bias, layer.wk.bias, layer.wv.bias, layer.fc_out.bias,
    ).map(torch.Tensor.detach)  # fmt: skip
    given = done.inputs
    output, maps = reference_attention(weights, attention, given.query, given.key, given.value, done.mask)
    assert_near(done.output, output)
    assert_near(done.weights, maps)
    k, v = (t.repeat_interleave(2, dim=1) for t in (done.k, done.v))  # ten query heads on five key heads
    assert_near(done.scores, done.q @ k.mT / math.sqrt(4))
    assert_near(done.context, maps.to(v.dtype) @ v)
    joined = torch.cat(list(done.context.unbind(1)), dim=-1)
    assert_near(done.output, joined @ weights.out.T + weights.out_bias)
    hidden = done.masked_scores[~done.allowed]
    assert (hidden == torch.finfo(done.scores.dtype).min).all()
    assert torch.equal(done.masked_scores[done.allowed], done.scores[done.allowed])


@pytest.mark.parametrize(("fill", "cell"), [("zero", 0.0), ("-inf", math.nan), ("-1e4", 1 / 13), ("min", 1 / 13)])
def test_the_chosen_fill_is_used_for_a_query_without_a_key(fill: str, cell: float) -> None:
    done = run(replace(PRIMES, mask=replace(MASKED["custom"], fill=fill)))
    torch.testing.assert_close(done.weights[:, :, -1], torch.full((3, 10, 13), cell), equal_nan=True)
    torch.testing.assert_close(done.weights[:, :, 0].sum(-1), torch.ones(3, 10))
    expected = {"zero": torch.finfo(torch.float32).min, "min": torch.finfo(torch.float32).min}.get(fill) or float(fill)
    assert (done.masked_scores[:, :, -1] == expected).all()


def test_weights_come_from_the_seed_and_init_of_the_experiment() -> None:
    layer = build_layer(PRIMES)
    expected = initial_weights(PRIMES.attention, PRIMES.init, 23)
    assert torch.equal(layer.wk.weight, expected.k)
    assert torch.equal(layer.fc_out.bias, expected.out_bias)
    zeros = run(replace(PRIMES, init=InitSpec("zeros", targets=("q",))))
    torch.testing.assert_close(zeros.weights, torch.full((3, 10, 11, 13), 1 / 13))


@pytest.mark.parametrize("kernel", ["explicit", "chunked", "sdpa"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "autocast"])
def test_runs_repeat_bit_for_bit_and_leave_the_global_generator_alone(dtype: str, kernel: str) -> None:
    experiment = replace(PRIMES, dtype=dtype, attention=replace(PRIMES.attention, kernel=kernel))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = run(experiment)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert same(first, run(experiment))
    assert not same(first, run(replace(experiment, seed=24)))


def test_runs_can_be_compared() -> None:
    """Equality leaves out the time, so it is meant to be asked."""
    first, second = run(PRIMES), run(PRIMES)
    assert first == first
    assert (first == second) in (True, False)


def test_dropout_repeats_and_acts() -> None:
    dropped = replace(PRIMES, attention=replace(PRIMES.attention, dropout=0.5))
    first = run(dropped)
    assert same(first, run(dropped))
    share = (first.weights == 0).double().mean().item()
    assert share == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(first.weights.numel()))
    plain = run(PRIMES)
    kept = first.weights != 0
    torch.testing.assert_close(first.weights[kept], 2 * plain.weights[kept])


@pytest.mark.parametrize("kv_heads", [None, 5, 1])
@pytest.mark.parametrize("layout", ["stacked", "interleaved"])
@pytest.mark.parametrize("split", ["view", "einops"])
def test_fused_and_separate_give_the_same_numbers(split: str, layout: str, kv_heads: int | None) -> None:
    attention = AttentionConfig(70, 10, num_kv_heads=kv_heads)
    separate = replace(PRIMES, attention=attention, source=RandomSource(batch=3, q_len=11))
    fused = replace(separate, attention=replace(attention, projection="fused", qkv_layout=layout, head_split=split))
    first, second = run(separate), run(fused)
    for name in TENSORS:
        torch.testing.assert_close(getattr(second, name), getattr(first, name), rtol=1e-5, atol=1e-5)


# --- texts ----------------------------------------------------------------------------------------------------------

LONG, SHORT = "one two three four five six seven", "the cat sat"


@pytest.mark.parametrize("kinds", ["padding", "padding,causal", "padding,local"])
@pytest.mark.parametrize("positions", ["none", "sinusoidal", "rotary"])
@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
def test_a_short_line_attends_in_a_batch_as_it_does_alone(kernel: str, positions: str, kinds: str) -> None:
    config = AttentionConfig(28, 2, kernel=kernel)
    mask = MaskSpec(tuple(kinds.split(",")), window=1)
    both, alone = (
        run(Experiment(TextSource(text), config, mask, positions=positions, seed=5))
        for text in (f"{LONG}\n{SHORT}", SHORT)
    )
    assert both.output.shape == (2, 7, 28)
    torch.testing.assert_close(both.output[1, :3], alone.output[0], **TOLERANCE[torch.float32])
    torch.testing.assert_close(both.weights[1, :, :3, :3], alone.weights[0], **TOLERANCE[torch.float32])
    assert (both.weights[1, :, :, 3:] == 0).all()
    unmasked = run(Experiment(TextSource(f"{LONG}\n{SHORT}"), config, MaskSpec(), positions=positions, seed=5))
    assert (unmasked.output[1, :3] - alone.output[0]).abs().max() > 1e-3, "without the mask the filler is read"


def test_padding_of_the_memory_is_hidden_in_cross_attention() -> None:
    config, mask = AttentionConfig(28, 2), MaskSpec(("padding",))
    both = run(Experiment(TextSource("a b\nc d", memory_text=f"{LONG}\n{SHORT}"), config, mask))
    alone = run(Experiment(TextSource("c d", memory_text=SHORT), config, mask))
    assert both.weights.shape == (2, 2, 2, 7)
    torch.testing.assert_close(both.output[1], alone.output[0], **TOLERANCE[torch.float32])


def test_labels_belong_to_the_axes() -> None:
    done = run(Experiment(TextSource("a b\nc", memory_text="u v w"), AttentionConfig(14, 2)))
    assert done.sizes.q_tokens.padded == (("a", "b"), ("c", "[pad]"))
    assert done.sizes.k_tokens.padded == (("u", "v", "w"),) * 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "autocast"])
@pytest.mark.parametrize("kernel", ["explicit", "chunked", "sdpa"])
def test_number_formats(kernel: str, dtype: str) -> None:
    experiment = replace(PRIMES, dtype=dtype, mask=MaskSpec(("causal",)))
    done = run(replace(experiment, attention=replace(PRIMES.attention, kernel=kernel)))
    exact = run(replace(experiment, dtype="float64"))
    expected = {"autocast": torch.bfloat16}.get(dtype) or getattr(torch, dtype)
    assert done.output.dtype == done.q.dtype == expected
    assert done.inputs.query.dtype == (torch.float32 if dtype == "autocast" else expected)
    close = {"float64": 1e-12, "float32": 1e-5, "float16": 0.01}.get(dtype, 0.08)
    assert (done.output.double() - exact.output).abs().max() < close
    assert (done.weights.double() - exact.weights).abs().max() < close


def test_what_cannot_run_says_so() -> None:
    with pytest.raises(MhaError, match="the custom mask is 11 x 13, but the scores are 11 x 11"):
        run(replace(PRIMES, source=RandomSource(q_len=11), mask=MASKED["custom"]))
    with pytest.raises(
        MhaError, match=r"fused kernel fills hidden scores by itself and cannot use min. Try kernel exp"
    ):
        Experiment(attention=AttentionConfig(kernel="sdpa"), mask=MaskSpec(fill="min"))
    with pytest.raises(MhaError, match=r"fused kernel draws dropout from the global generator.*or dropout 0.0"):
        Experiment(attention=AttentionConfig(kernel="sdpa", dropout=0.1))
    for choices, field in (({"seed": -1}, "seed"), ({"dtype": "int8"}, "dtype"), ({"positions": "x"}, "positions")):
        with pytest.raises(MhaError) as caught:
            Experiment(**choices)
        assert caught.value.field == field
