"""What trained models add to a layer: a bias on the scores, rotary tables, muted heads. Softmax and angles by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mha_core.attention import MultiHeadAttention
from mha_core.config import AttentionConfig
from mha_core.kernels import CHUNK_ROWS, KERNELS, KernelCall
from mha_core.rotary import rotate_positions, turn_pairs
from tests.core.strategies import build, build_engines, random_weights, rng

F64 = torch.float64
KERNEL_NAMES = sorted(KERNELS)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=rng(seed))


def by_hand(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """One row at a time: exp of the allowed scores, divided by their sum; nothing where no key is allowed."""
    batch, heads, q_len, _ = q.shape
    allowed, bias = (t.expand(batch, heads, q_len, k.shape[2]) for t in (allowed, bias))
    weights = torch.zeros(batch, heads, q_len, k.shape[2], dtype=F64)
    for b in range(batch):
        for h in range(heads):
            powers = (k[b, h] @ q[b, h].T).T * scale + bias[b, h]
            powers = (powers - powers.max()).exp() * allowed[b, h]
            weights[b, h] = powers / powers.sum(-1, keepdim=True).clamp(min=1e-300)
    return weights, torch.einsum("bhqk,bhkd->bhqd", weights, v)


# --- a bias on the scores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
@pytest.mark.parametrize("masked", ["no mask", "mask", "a row without a key"])
@pytest.mark.parametrize("shape", [(2, 3, 7, 11), (1, 3, 7, 11), (1, 1, 7, 11), (2, 3, 1, 11)], ids=str)
def test_a_bias_is_added_to_the_scaled_scores(kernel: str, masked: str, shape: tuple[int, ...]) -> None:
    q, k, v, bias = draw(2, 3, 7, 5), draw(2, 3, 11, 5, seed=1), draw(2, 3, 11, 5, seed=2), draw(*shape, seed=3)
    allowed = torch.rand(2, 1, 7, 11, generator=rng(4)) < 0.6
    allowed[..., 0] = True
    if masked == "a row without a key":
        allowed[1, 0, 4] = False
    expected, context = by_hand(q, k, v, allowed if masked != "no mask" else torch.tensor(True), bias, 0.37)
    mask = None if masked == "no mask" else allowed
    found, weights = KERNELS[kernel](q, k, v, mask, KernelCall(scale=0.37, score_bias=bias))
    torch.testing.assert_close(found, context, rtol=1e-12, atol=1e-12)
    if weights is not None:
        torch.testing.assert_close(weights, expected, rtol=1e-12, atol=1e-12)
    assert (weights is None) == (kernel == "sdpa")


@pytest.mark.parametrize("rows", [1, CHUNK_ROWS + 13], ids=["one row for all", "a row each"])
@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_a_bias_crosses_the_borders_of_chunks(kernel: str, rows: int) -> None:
    length = CHUNK_ROWS + 13
    q, k, v = draw(1, 2, length, 3), draw(1, 2, 17, 3, seed=1), draw(1, 2, 17, 3, seed=2)
    bias, allowed = draw(1, 2, rows, 17, seed=3), torch.rand(1, 2, length, 17, generator=rng(4)) < 0.7
    _, context = by_hand(q, k, v, allowed, bias, 0.5)
    found, _ = KERNELS[kernel](q, k, v, allowed, KernelCall(scale=0.5, score_bias=bias))
    torch.testing.assert_close(found, context, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_a_constant_bias_per_row_changes_nothing_and_a_large_one_chooses_its_key(kernel: str) -> None:
    config = AttentionConfig(15, 3, kernel=kernel)
    layer, query = build(config, random_weights(config, 5)), draw(2, 7, 15)
    plain, _ = layer(query)
    layer.score_bias = draw(2, 3, 7, 1, seed=6)
    torch.testing.assert_close(layer(query)[0], plain, rtol=1e-12, atol=1e-12)
    layer.score_bias = torch.zeros(1, 1, 1, 7, dtype=F64)
    layer.score_bias[..., 4] = 1e6
    weights = layer.weights()
    value = query[:, 4] @ weights.v.T + weights.v_bias  # every query reads token 4 alone
    expected = (value @ weights.out.T + weights.out_bias)[:, None].expand(2, 7, 15)
    torch.testing.assert_close(layer(query)[0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_gradients_flow_through_a_bias(kernel: str) -> None:
    config = AttentionConfig(6, 3, kernel=kernel)
    layer, query = build(config, random_weights(config, 7)), draw(1, 5, 6)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    bias = draw(1, 3, 5, 5, seed=8).requires_grad_()

    def answer(bias: Tensor) -> Tensor:
        layer.score_bias = bias
        return layer(query, mask=mask)[0]

    assert torch.autograd.gradcheck(answer, (bias,))
    answer(bias).square().sum().backward()
    assert bias.grad is not None
    assert (bias.grad[..., ~mask] == 0).all()
    assert (bias.grad[..., mask] != 0).any()
    assert all(parameter.grad is not None for parameter in layer.parameters())


# --- rotary tables --------------------------------------------------------------------------------------------------


def tables(length: int, pairs: int, base: float) -> tuple[Tensor, Tensor]:
    angles = torch.tensor([[p * base ** (-d / pairs) for d in range(pairs)] for p in range(length)], dtype=F64)
    return angles.cos(), angles.sin()


def test_tables_of_the_usual_angles_are_rotary_positions() -> None:
    tensor = draw(2, 3, 7, 10)
    torch.testing.assert_close(turn_pairs(tensor, *tables(7, 5, 97.0)), rotate_positions(tensor, 97.0))
    given, own = (AttentionConfig(30, 3, rope_theta=theta) for theta in (None, 97.0))
    weights, query = random_weights(given, 1), draw(2, 7, 30, seed=1)
    layer = build(given, weights)
    layer.rotary = tables(7, 5, 97.0)
    torch.testing.assert_close(layer(query), build(own, weights)(query), rtol=1e-12, atol=1e-12)


def test_tables_take_the_place_of_the_angles_of_the_base() -> None:
    config = AttentionConfig(30, 3, rope_theta=97.0)
    weights, query = random_weights(config, 2), draw(2, 7, 30)
    layer = build(config, weights)
    layer.rotary = (torch.ones(7, 5, dtype=F64), torch.zeros(7, 5, dtype=F64))  # no turn at all
    plain = build(AttentionConfig(30, 3), weights)
    torch.testing.assert_close(layer(query), plain(query), rtol=1e-12, atol=1e-12)


def test_a_partial_turn_leaves_the_other_channels() -> None:
    tensor, (cos, sin) = draw(2, 3, 7, 11), tables(7, 2, 13.0)
    turned = turn_pairs(tensor, cos, sin)
    assert torch.equal(turned[..., 4:], tensor[..., 4:])
    as_complex = torch.complex(tensor[..., :2], tensor[..., 2:4]) * torch.complex(cos, sin)
    torch.testing.assert_close(turned[..., :2], as_complex.real)
    torch.testing.assert_close(turned[..., 2:4], as_complex.imag)


def test_scores_under_a_partial_turn_depend_on_distance_alone() -> None:
    q, k = draw(1, 1, 1, 7).expand(1, 1, 9, 7), draw(1, 1, 1, 7, seed=1).expand(1, 1, 9, 7)
    scores = turn_pairs(q, *tables(9, 3, 5.0)) @ turn_pairs(k, *tables(9, 3, 5.0)).transpose(-1, -2)
    for distance in range(-8, 9):
        diagonal = scores[0, 0].diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert scores[0, 0, 0].std() > 0.01


def test_tables_may_differ_between_sequences_and_scale_lengths() -> None:
    tensor, (cos, sin) = draw(2, 3, 5, 6), tables(5, 3, 11.0)
    both_cos, both_sin = torch.stack([cos, 2 * cos])[:, None], torch.stack([sin, 2 * sin])[:, None]  # (B, 1, S, R/2)
    turned = turn_pairs(tensor, both_cos, both_sin)
    torch.testing.assert_close(turned[0], turn_pairs(tensor[0], cos, sin))
    torch.testing.assert_close(turned[1], 2 * turn_pairs(tensor[1], cos, sin))
    torch.testing.assert_close(turned[1].norm(dim=-1), 2 * tensor[1].norm(dim=-1))


def test_tables_of_another_format_are_taken() -> None:
    layer = MultiHeadAttention(12, 3).to(torch.bfloat16).eval()
    layer.rotary = tables(5, 2, 10.0)
    output, weights = layer(draw(2, 5, 12).to(torch.bfloat16))
    assert output.dtype == weights.dtype == torch.bfloat16


@pytest.mark.parametrize("kv_heads", [6, 3, 1])
def test_every_engine_gives_the_same_with_all_three(kv_heads: int) -> None:
    config = AttentionConfig(42, 6, num_kv_heads=kv_heads)
    weights, query = random_weights(config, 3), draw(2, 5, 42)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    answers = {}
    for name, layer in build_engines(config, weights):
        layer.rotary, layer.score_bias, layer.muted_heads = tables(5, 2, 7.0), draw(1, 6, 5, 5, seed=4), (1, 5)
        answers[name] = layer(query, mask=mask)[0]
    first = next(iter(answers.values()))
    assert len(answers) == 18
    for name, answer in answers.items():
        torch.testing.assert_close(answer, first, rtol=1e-11, atol=1e-11, msg=name)


# --- muted heads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("muted", [(), (0,), (2,), (0, 3), (0, 1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_a_muted_head_is_a_head_whose_columns_of_the_output_matrix_are_zero(
    kernel: str, muted: tuple[int, ...]
) -> None:
    config = AttentionConfig(13, 5, head_size=7, kernel=kernel)
    weights, query = random_weights(config, 9), draw(2, 11, 13)
    layer, other = build(config, weights), build(config, weights)
    layer.muted_heads = muted
    with torch.no_grad():
        for head in muted:
            other.fc_out.weight[:, 7 * head : 7 * head + 7] = 0
    output, maps = layer(query)
    expected, expected_maps = other(query)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    assert kernel == "sdpa" or torch.equal(maps, expected_maps), "a muted head still looks, it says nothing"
    if len(muted) == 5:
        torch.testing.assert_close(output, weights.out_bias.expand_as(output))


def test_a_muted_head_learns_nothing() -> None:
    config = AttentionConfig(15, 3)
    layer = build(config, random_weights(config, 10))
    layer.muted_heads = (1,)
    layer(draw(2, 7, 15))[0].square().sum().backward()
    own = slice(5, 10)
    assert (layer.fc_out.weight.grad[:, own] == 0).all()
    for matrix in (layer.wq, layer.wk, layer.wv):
        assert (matrix.weight.grad[own] == 0).all()
        assert (matrix.weight.grad[:5] != 0).any()
        assert (matrix.weight.grad[10:] != 0).any()


def test_defaults_add_nothing() -> None:
    layer = MultiHeadAttention(14, 7)
    assert (layer.score_bias, layer.rotary, layer.muted_heads) == (None, None, ())
    query = torch.randn(1, 3, 14, generator=rng(11))
    plain = layer(query)[0]
    layer.score_bias = torch.zeros(1, 1, 3, 3)
    torch.testing.assert_close(layer(query)[0], plain, rtol=0, atol=1e-6)
    assert math.isclose(layer.config.softmax_scale, 2**-0.5)
