"""Initial values against the formulas of the papers, at sizes where a standard deviation is known to about 0.3 %.

Each matrix has another fan-in and fan-out, so that a formula with the two swapped fails. Uniform and normal draws are
told apart by their kurtosis (9/5 and 3).
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from mha_core import INIT_SCHEMES, AttentionConfig, InitSpec, MhaError, MultiHeadAttention
from mha_core.init_schemes import TARGETS, generator_for, initial_weights

WIDE = AttentionConfig(896, 7, num_kv_heads=1, kdim=640, vdim=1280)  # D = 128
FANS = {"q": (896, 896), "k": (640, 128), "v": (1280, 128), "out": (896, 896)}  # (fan_in, fan_out)
SMALL = AttentionConfig(24, 4, num_kv_heads=2)
DRAWN = ("xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal", "normal", "trunc_normal")
DRAWN += ("orthogonal", "torch_default")
TRUNCATED_AT_2 = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))  # 0.8796


def matrix(name: str, spec: InitSpec, config: AttentionConfig = WIDE, seed: int = 3) -> Tensor:
    return getattr(initial_weights(config, spec, seed), name)


FORMULAS = {
    # scheme: (std, bound or None, kurtosis) of (fan_in, fan_out) and the given std 0.05
    "xavier_uniform": (lambda i, o: math.sqrt(2 / (i + o)), lambda i, o: math.sqrt(6 / (i + o)), 1.8),
    "xavier_normal": (lambda i, o: math.sqrt(2 / (i + o)), None, 3),
    "kaiming_uniform": (lambda i, o: math.sqrt(2 / i), lambda i, o: math.sqrt(6 / i), 1.8),
    "kaiming_normal": (lambda i, o: math.sqrt(2 / i), None, 3),
    "normal": (lambda i, o: 0.05, None, 3),
    "trunc_normal": (lambda i, o: 0.05 * TRUNCATED_AT_2, lambda i, o: 0.1, None),
    "torch_default": (lambda i, o: 1 / math.sqrt(3 * i), lambda i, o: 1 / math.sqrt(i), 1.8),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("scheme", FORMULAS)
def test_drawn_schemes_have_the_papers_spread(scheme: str, name: str) -> None:
    std, bound, kurtosis = FORMULAS[scheme]
    drawn = matrix(name, InitSpec(scheme, std=0.05)).double()
    fan_in, fan_out = FANS[name]
    assert drawn.shape == (fan_out, fan_in)
    expected = std(fan_in, fan_out)
    assert drawn.std().item() == pytest.approx(expected, rel=0.02)
    assert abs(drawn.mean().item()) < 5 * expected / math.sqrt(drawn.numel())
    if bound is not None:
        assert 0.99 * bound(fan_in, fan_out) < drawn.abs().max().item() <= bound(fan_in, fan_out) * (1 + 1e-6)
    if kurtosis is not None:
        assert (drawn**4).mean().item() / drawn.var().item() ** 2 == pytest.approx(kurtosis, rel=0.05)


def test_every_scheme_is_tested() -> None:
    assert set(INIT_SCHEMES) == set(FORMULAS) | {"orthogonal", "identity", "ones", "constant", "zeros"}
    assert set(DRAWN) == set(FORMULAS) | {"orthogonal"}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("scheme", "value"), [("zeros", 0.0), ("ones", 1.0), ("constant", 0.375)])
def test_constant_schemes_are_exact(scheme: str, value: float, name: str) -> None:
    assert (matrix(name, InitSpec(scheme, std=0.375), SMALL) == value).all()
    assert (matrix(name, InitSpec(scheme, std=0.375, gain=3.0), SMALL) == 3 * value).all()


@pytest.mark.parametrize("name", TARGETS)
def test_identity_and_orthogonal(name: str) -> None:
    identity = matrix(name, InitSpec("identity"), SMALL)
    assert identity.tolist() == [[float(i == j) for j in range(24)] for i in range(identity.shape[0])]
    drawn = matrix(name, InitSpec("orthogonal", gain=2.0), SMALL).double()  # k and v have fewer rows than columns
    torch.testing.assert_close(drawn @ drawn.T, 4 * torch.eye(drawn.shape[0]).double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("scheme", DRAWN)
def test_gain_is_a_factor_on_the_same_draw(scheme: str) -> None:
    plain, scaled = matrix("v", InitSpec(scheme), SMALL), matrix("v", InitSpec(scheme, gain=2.5), SMALL)
    assert plain.abs().max() > 0
    torch.testing.assert_close(scaled, 2.5 * plain)
    assert (matrix("v", InitSpec(scheme, gain=0.0), SMALL) == 0).all()


@pytest.mark.parametrize("targets", [t for n in range(5) for t in itertools.combinations(TARGETS, n)])
def test_targets_leave_the_other_matrices_at_the_base_scheme(targets: tuple[str, ...]) -> None:
    base = initial_weights(SMALL, InitSpec(), 5)
    everywhere = initial_weights(SMALL, InitSpec("kaiming_normal", gain=3.0), 5)
    some = initial_weights(SMALL, InitSpec("kaiming_normal", gain=3.0, targets=targets), 5)
    for name in TARGETS:
        expected = everywhere if name in targets else base
        assert torch.equal(getattr(some, name), getattr(expected, name)), name
        assert not torch.equal(getattr(base, name), getattr(everywhere, name))


@pytest.mark.parametrize("scheme", DRAWN)
def test_fused_and_separate_start_from_the_same_numbers(scheme: str) -> None:
    layers = [
        MultiHeadAttention(24, 4, num_kv_heads=2, projection=projection, qkv_layout=layout)
        for projection, layout in (("separate", "stacked"), ("fused", "stacked"), ("fused", "interleaved"))
    ]
    for layer in layers:
        layer.reset_parameters(InitSpec(scheme, bias="torch_default"), seed=7)
    for name in [*TARGETS, *(f"{name}_bias" for name in TARGETS)]:
        first, *others = (getattr(layer.weights(), name) for layer in layers)
        assert first.abs().max() > 0
        assert all(torch.equal(first, other) for other in others), name


@pytest.mark.parametrize("scheme", ["xavier_uniform", "xavier_normal"])
@pytest.mark.parametrize("layout", ["stacked", "interleaved"])
def test_packed_xavier_is_smaller_by_root_two_as_in_torch(scheme: str, layout: str) -> None:
    config = AttentionConfig(448, 7, projection="fused", qkv_layout=layout)
    per_block = initial_weights(config, InitSpec(scheme), 1)
    packed = initial_weights(config, InitSpec(scheme, packed=True), 1)
    for name in "qkv":
        assert getattr(per_block, name).std().item() == pytest.approx(math.sqrt(1 / 448), rel=0.02)
        ratio = getattr(packed, name).std() / getattr(per_block, name).std()
        assert ratio.item() == pytest.approx(1 / math.sqrt(2), rel=0.02)
    assert torch.equal(packed.out, per_block.out)
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(448, 7).in_proj_weight
    assert packed.k.std().item() == pytest.approx(theirs.std().item(), rel=0.02)


def test_packed_draws_only_the_targets_and_needs_a_fused_projection() -> None:
    fused = AttentionConfig(24, 4, projection="fused")
    some = initial_weights(fused, InitSpec("normal", packed=True, targets=("k",)), 2)
    base = initial_weights(fused, InitSpec(), 2)
    assert torch.equal(some.q, base.q)
    assert torch.equal(some.v, base.v)
    assert not torch.equal(some.k, base.k)
    with pytest.raises(MhaError, match="init_packed draws q, k and v as one matrix, but the projections are separate"):
        initial_weights(SMALL, InitSpec(packed=True))


def test_seeds_repeat_and_differ() -> None:
    first, again, other = (initial_weights(SMALL, InitSpec(), seed) for seed in (0, 0, 1))
    for name in TARGETS:
        assert torch.equal(getattr(first, name), getattr(again, name))
        assert not torch.equal(getattr(first, name), getattr(other, name))
    assert not torch.equal(first.k, first.v), "each matrix has a stream of its own"


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = initial_weights(SMALL, InitSpec(bias="torch_default"), 4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    again = initial_weights(SMALL, InitSpec(bias="torch_default"), 4)
    assert torch.equal(first.q, again.q)
    assert torch.equal(first.q_bias, again.q_bias)


def test_seeds_mean_the_same_in_another_process() -> None:
    program = (
        "import torch; from mha_core.init_schemes import generator_for as g;"
        "print(torch.randint(2**40, (3,), generator=g(13, 'a', 'é')).tolist())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "5", "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert answer.stdout.strip() == str(torch.randint(2**40, (3,), generator=generator_for(13, "a", "é")).tolist())


@pytest.mark.parametrize("name", TARGETS)
def test_biases(name: str) -> None:
    zeros, drawn = (initial_weights(WIDE, InitSpec(bias=bias), 6) for bias in ("zeros", "torch_default"))
    fan_in, fan_out = FANS[name]
    assert torch.equal(getattr(zeros, f"{name}_bias"), torch.zeros(fan_out))
    bias = getattr(drawn, f"{name}_bias")
    assert 0.9 / math.sqrt(fan_in) < bias.abs().max().item() <= 1 / math.sqrt(fan_in)
    assert bias.std().item() == pytest.approx(1 / math.sqrt(3 * fan_in), rel=0.2)
    without = initial_weights(AttentionConfig(24, 4, bias=False), InitSpec(bias="torch_default"))
    assert getattr(without, f"{name}_bias") is None


@pytest.mark.parametrize(
    ("choices", "field"),
    [
        ({"scheme": "he"}, "init"),
        ({"gain": -1.0}, "gain"),
        ({"gain": math.nan}, "gain"),
        ({"gain": math.inf}, "gain"),
        ({"std": -0.1}, "init_std"),
        ({"targets": ("q", "x")}, "init_targets"),
        ({"targets": 5}, "init_targets"),
        ({"bias": "ones"}, "init_bias"),
        ({"packed": 1}, "init_packed"),
    ],
)
def test_specifications_are_checked(choices: dict[str, object], field: str) -> None:
    with pytest.raises(MhaError) as caught:
        InitSpec(**choices)
    assert caught.value.field == field


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "0"])
def test_seeds_out_of_range_are_refused(seed: object) -> None:
    with pytest.raises(MhaError, match=r"seed is .*; it must be a whole number from 0 to 9223372036854775807"):
        initial_weights(SMALL, seed=seed)
