"""Gradients, empty rows, dropout and half precision: the same for every kernel, finite, and checked by torch itself.

The references are torch.autograd.gradcheck, the float64 result for half precision, and the arithmetic of a Bernoulli
mean for dropout. That the forward numbers are right is in test_attention_agreement.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mha_core import AttentionConfig, MhaError, MultiHeadAttention
from mha_core.kernels import attention_weights, drop_weights
from tests.core.strategies import KERNELS, build, build_engines, random_weights, reference_attention, rng

EMPTY_ROWS = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]).bool()  # Sq = 3, Sk = 5; row 1 is empty


def gradients(layer: MultiHeadAttention, query: Tensor, memory: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """Gradients of a weighted sum of the output: of each parameter as a neutral matrix, and of both inputs."""
    layer.zero_grad()
    query, memory = query.clone().requires_grad_(), memory.clone().requires_grad_()
    output, _ = layer(query, memory, mask=mask)
    (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)).sum().backward()
    found = {"query": query.grad, "memory": memory.grad}
    weights = layer.weights()
    if layer.config.projection == "separate":
        found |= {"q": layer.wq.weight.grad, "k": layer.wk.weight.grad, "v": layer.wv.weight.grad}
    else:  # read the fused gradient the way the fused weights are read
        fused = layer.qkv_proj
        held, fused.weight.data = fused.weight.data, fused.weight.grad
        weights = layer.weights()
        found |= {"q": weights.q.clone(), "k": weights.k.clone(), "v": weights.v.clone()}
        fused.weight.data = held
    return found | {"out": layer.fc_out.weight.grad}


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_gradients_are_equal_in_every_engine(kv_heads: int | None) -> None:
    config = AttentionConfig(24, 4, num_kv_heads=kv_heads, rope_theta=10_000.0)
    w, generator = random_weights(config, 1), rng(2)
    query = torch.randn(2, 3, 24, generator=generator, dtype=torch.float64)
    memory = torch.randn(2, 5, 24, generator=generator, dtype=torch.float64)
    expected = None
    for engine, layer in build_engines(config, w):
        found = gradients(layer, query, memory, EMPTY_ROWS)
        found = {name: grad.clone() for name, grad in found.items()}
        if expected is None:
            expected = found
            assert min(grad.abs().max().item() for grad in found.values()) > 1e-3, "nothing to compare"
        for name, grad in found.items():
            torch.testing.assert_close(grad, expected[name], rtol=1e-9, atol=1e-12, msg=f"{engine}, gradient of {name}")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mask", [None, EMPTY_ROWS], ids=["no mask", "empty row"])
def test_gradcheck_in_float64(kernel: str, mask: Tensor | None) -> None:
    config = AttentionConfig(8, 4, num_kv_heads=2, rope_theta=10_000.0, kernel=kernel)
    layer, generator = build(config, random_weights(config, 3)), rng(4)
    inputs = [torch.randn(1, length, 8, generator=generator, dtype=torch.float64) for length in (3, 5)]
    assert torch.autograd.gradcheck(lambda q, k: layer(q, k, mask=mask)[0], [t.requires_grad_() for t in inputs])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_empty_rows_are_zero_forward_and_finite_backward(dtype: torch.dtype) -> None:
    config = AttentionConfig(14, 2, bias=False)
    query, memory = torch.randn(2, 3, 14, generator=rng(5)), torch.randn(2, 5, 14, generator=rng(6))
    for engine, layer in build_engines(config, random_weights(config, 7, dtype)):
        for mask in (EMPTY_ROWS, torch.zeros(1, 5).bool()):  # one empty row, and nothing but empty rows
            output, weights = layer(query.to(dtype), memory.to(dtype), mask=mask)
            empty = ~mask.any(-1).expand(3)
            assert (output[:, empty] == 0).all(), engine  # without bias, a head that reads nothing writes nothing
            assert empty.all() or (output[:, ~empty] != 0).any()
            assert weights is None or (weights[:, :, empty] == 0).all()
            found = gradients(layer, query.to(dtype), memory.to(dtype), mask)
            assert all(grad.isfinite().all() for grad in found.values()), engine
            assert (found["query"][:, empty] == 0).all(), "a query that sees nothing moves nothing"


@pytest.mark.parametrize("kernel", KERNELS)
def test_in_place_path_equals_the_gradient_path(kernel: str) -> None:
    config = AttentionConfig(21, 3, kernel=kernel)
    layer, query = build(config, random_weights(config, 8, torch.float32)), torch.randn(2, 5, 21, generator=rng(9))
    mask = torch.ones(5, 5).tril().bool()
    with_grad = layer(query, mask=mask)
    assert with_grad[0].requires_grad
    with torch.no_grad():
        without_grad = layer(query, mask=mask)
    torch.testing.assert_close(without_grad[0], with_grad[0].detach(), rtol=1e-6, atol=1e-6)
    if kernel != "sdpa":
        torch.testing.assert_close(without_grad[1], with_grad[1].detach(), rtol=0, atol=0)


def test_scores_are_overwritten_only_on_request() -> None:
    scores = torch.randn(2, 3, 5, 7, generator=rng(10))
    before, mask = scores.clone(), torch.rand(5, 7, generator=rng(11)) < 0.5
    kept = attention_weights(scores, mask)
    assert torch.equal(scores, before)
    assert torch.equal(attention_weights(scores, mask, overwrite=True), kept)
    assert torch.equal(scores[..., mask.any(-1), :], kept[..., mask.any(-1), :])


@pytest.mark.parametrize("kernel", ["explicit", "chunked"])
def test_dropout_keeps_the_mean_and_repeats_with_its_generator(kernel: str) -> None:
    config = AttentionConfig(10, 2, dropout=0.3, kernel=kernel)
    layer = build(config, random_weights(config, 12, torch.float32)).train()
    query = torch.randn(1, 3, 10, generator=rng(13)).expand(2000, -1, -1)

    def draw(seed: int) -> tuple[Tensor, Tensor]:
        layer.generator = rng(seed)
        with torch.no_grad():
            return layer(query)

    output, weights = draw(1)
    assert torch.equal(output, draw(1)[0])
    assert not torch.equal(output, draw(2)[0])
    with torch.no_grad():
        undropped_output, undropped = layer.eval()(query[:1])
    dropped = weights == 0
    share_sigma = math.sqrt(0.3 * 0.7 / dropped.numel())
    assert abs(dropped.double().mean().item() - 0.3) < 5 * share_sigma
    torch.testing.assert_close(weights[~dropped], (undropped.expand_as(weights) / 0.7)[~dropped])
    mean_sigma = undropped * math.sqrt(0.3 / 0.7 / 2000)  # std of Bernoulli(0.7) / 0.7 is sqrt(0.3 / 0.7)
    assert ((weights.mean(0) - undropped[0]).abs() < 5 * mean_sigma[0]).all()
    assert (output.mean(0) - undropped_output[0]).abs().max() < 0.1


def test_dropout_of_nothing_and_of_the_fused_kernel() -> None:
    ones = torch.ones(3, 5)
    assert drop_weights(ones, 0.0) is ones
    layer = MultiHeadAttention(10, 2, dropout=0.5, kernel="sdpa").train()
    query = torch.randn(2, 3, 10, generator=rng(14))
    assert not torch.equal(layer(query)[0], layer.eval()(query)[0]), "dropout acts in training"
    layer.generator = rng(15)
    layer.train()
    with pytest.raises(MhaError, match="fused kernel draws dropout from the global generator"):
        layer(query)
    assert layer.eval()(query)[0].isfinite().all()


# Unit roundoff is 2^-8 (bfloat16) and 2^-11 (float16); outputs are of size 1 after a handful of roundings.
@pytest.mark.parametrize(("dtype", "close"), [(torch.bfloat16, 0.06), (torch.float16, 0.008)])
@pytest.mark.parametrize("masked", [False, True])
def test_half_precision_is_close_to_float64(dtype: torch.dtype, close: float, masked: bool) -> None:
    config = AttentionConfig(44, 4, num_kv_heads=2)
    w, query = random_weights(config, 16, torch.float32), torch.randn(2, 13, 44, generator=rng(17))
    mask = torch.ones(13, 13).tril(-1).bool() if masked else None  # its first row is empty
    expected, _ = reference_attention(w, config, query, query, query, mask)
    for engine, layer in build_engines(config, w):
        got, weights = layer.to(dtype)(query.to(dtype), mask=mask)
        assert got.dtype == dtype
        assert (got.double() - expected).abs().max() < close, engine
        assert weights is None or weights.dtype == dtype


@pytest.mark.parametrize("masked", [False, True])
def test_autocast_is_close_to_float64(masked: bool) -> None:
    config = AttentionConfig(40, 4, rope_theta=10_000.0)
    w, query = random_weights(config, 18, torch.float32), torch.randn(2, 13, 40, generator=rng(19))
    mask = torch.ones(13, 13).tril(-1).bool() if masked else None
    expected, _ = reference_attention(w, config, query, query, query, mask)
    for engine, layer in build_engines(config, w):
        with torch.amp.autocast("cpu", dtype=torch.bfloat16):
            got, _ = layer(query, mask=mask)
        got.float().sum().backward()
        assert (got.double() - expected).abs().max() < 0.08, engine
        assert all(p.grad.isfinite().all() for p in layer.parameters()), engine


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("masked", [False, True])
def test_float16_scales_before_the_product(kernel: str, masked: bool) -> None:
    """q = k = 40 with D = 64: the raw product is 102,400 > 65,504; scaled by 1/8 first it is 12,800."""
    layer = MultiHeadAttention(64, 1, kernel=kernel).half()
    q, v = torch.full((1, 1, 5, 64), 40.0).half(), torch.arange(5.0)[:, None].expand(1, 1, 5, 64).half()
    mask = torch.ones(5, 5).tril().bool() if masked else None
    context, weights = layer.attend(q, q, v, mask)
    means = [0.0, 0.5, 1.0, 1.5, 2.0] if masked else [2.0] * 5  # equal scores: the mean of the values seen
    torch.testing.assert_close(context[0, 0, :, 0].float(), torch.tensor(means), rtol=0, atol=2e-3)
    assert weights is None or weights.isfinite().all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_large_scores_of_either_sign_stay_finite(kernel: str) -> None:
    config = AttentionConfig(8, 1, kernel=kernel)
    layer = build(config, random_weights(config, 20, torch.float32))
    query = 1e4 * torch.randn(2, 7, 8, generator=rng(21))
    output, weights = layer(query, mask=torch.ones(7, 7).tril().bool())
    assert output.isfinite().all()
    if weights is not None:
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 7))
        assert (weights.triu(1) == 0).all()
