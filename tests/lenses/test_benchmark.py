"""The engines side by side: the reference is right, every variant agrees with it, and what cannot agree is named.

The reference of the benchmark is checked against `tests.core.strategies.reference_attention`, which works head by head
and knows neither the layer nor its kernels. Every size is a different prime where the layer allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mha_core import Experiment, MhaError, kernels
from mha_core.config import AttentionConfig
from mha_core.init_schemes import initial_weights
from mha_core.layouts import AttentionWeights
from mha_core.lenses import bench_reference, bench_timing, benchmark
from mha_core.lenses.bench_plan import ROUNDS, needed_bytes, sizes_at
from mha_core.lenses.bench_reference import cotangent_for, largest_difference, reference, relative_tolerance
from mha_core.lenses.bench_variants import Variant, build, torch_masks, variants
from mha_core.lenses.benchmark import Measurement, Plan, agreement, latest, material_for, measure
from tests.core.strategies import reference_attention

RANDOM = {"source": "random", "batch": 3, "q_len": 7, "seed": 11, "init_bias": "torch_default"}
CUSTOM = ("11111", "01100", "10101", "01010", "11111")
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "plain": RANDOM | {"embed_dim": 30, "num_heads": 5},
    "cross": RANDOM | {"embed_dim": 30, "num_heads": 5, "k_len": 11, "mask": ("causal",)},
    "widths": RANDOM | {"embed_dim": 30, "num_heads": 5, "k_len": 11, "kdim": 13, "vdim": 17},
    "grouped": RANDOM | {"embed_dim": 42, "num_heads": 6, "num_kv_heads": 2, "scale": 0.37},
    "rotary": RANDOM | {"embed_dim": 42, "num_heads": 3, "k_len": 5, "positions": "rotary"},
    "padding": {"text": "a b c\nd e f g h i j", "mask": ("padding",), "embed_dim": 33, "num_heads": 3},
    "both": {"text": "a b c\nd e f g h", "mask": ("padding", "local"), "window": 1, "embed_dim": 21, "num_heads": 3},
    "custom": {"text": "a b c d e", "mask": ("custom",), "custom_mask": CUSTOM, "embed_dim": 14, "num_heads": 2},
    "fill": RANDOM | {"embed_dim": 30, "num_heads": 5, "mask": ("causal",), "fill": "-1e4"},
    "interleaved": RANDOM | {"embed_dim": 30, "num_heads": 5, "projection": "fused", "qkv_layout": "interleaved"},
    "dropout": RANDOM | {"embed_dim": 30, "num_heads": 5, "dropout": 0.5, "bias": False},
    "untied": RANDOM | {"embed_dim": 13, "num_heads": 3, "head_size": 7, "mask": ("causal",)},
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of such small products wait for one another on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def experiment(name: str, **changes: Any) -> Experiment:
    return Experiment.from_fields(EXPERIMENTS[name] | changes)


def checked(name: str, dtypes: tuple[str, ...] = ("float32",), passes: tuple[str, ...] = ("forward",)) -> dict:
    """What one comparison gives, by variant and pass."""
    rows = latest(list(measure(agreement(experiment(name), dtypes, passes))))
    return {(row.variant, row.pass_): row for row in rows}


def parts(weights: AttentionWeights) -> Iterator[tuple[str, Tensor]]:
    for field in fields(weights):
        if getattr(weights, field.name) is not None:
            yield field.name, getattr(weights, field.name)


def plain_attention(
    w: AttentionWeights, config: AttentionConfig, inputs: tuple[Tensor, ...], mask: Tensor | None
) -> Tensor:
    """The output (B, Sq, E), head by head, differentiable: exp of what may be seen over its sum."""
    (query, key, value), depth = (x.double() for x in inputs), config.head_dim
    group, first = config.num_heads // config.kv_heads, key.shape[1] - query.shape[1]
    scale = 1 / math.sqrt(depth) if config.scale is None else config.scale
    lines = []
    for b in range(len(query)):
        heads = []
        for h in range(config.num_heads):
            own, shared = slice(h * depth, (h + 1) * depth), slice(h // group * depth, (h // group + 1) * depth)
            q, k, v = query[b] @ w.q[own].T, key[b] @ w.k[shared].T, value[b] @ w.v[shared].T
            if config.bias:
                q, k, v = q + w.q_bias[own], k + w.k_bias[shared], v + w.v_bias[shared]
            if config.rope_theta is not None:
                q, k = turned(q, config.rope_theta, first), turned(k, config.rope_theta, 0)
            scores = q @ k.T * scale
            seen = torch.ones_like(scores) if mask is None else mask.expand(len(query), -1, *scores.shape)[b, 0]
            powers = scores.exp() * seen
            heads.append(powers / powers.sum(-1, keepdim=True).clamp(min=1e-300) @ v)
        lines.append(torch.cat(heads, -1) @ w.out.T + (w.out_bias if config.bias else 0))
    return torch.stack(lines)


def turned(vectors: Tensor, theta: float, first: int) -> Tensor:
    """Rotary positions, one pair of channels (d, d + D/2) after another."""
    half = vectors.shape[1] // 2
    channels: dict[int, Tensor] = {}
    for d in range(half):
        angle = (first + torch.arange(len(vectors), dtype=torch.float64)) * theta ** (-d / half)
        left, right = vectors[:, d], vectors[:, d + half]
        channels[d], channels[d + half] = (
            left * angle.cos() - right * angle.sin(),
            left * angle.sin() + right * angle.cos(),
        )
    return torch.stack([channels[d] for d in range(2 * half)], -1)


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "fill"])
@pytest.mark.parametrize("block_bytes", [1, 2**26])
def test_the_reference_is_the_equation(name: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output, weights and gradients, in one block and with a block for every query."""
    monkeypatch.setattr(bench_reference, "BLOCK_BYTES", block_bytes)
    chosen = experiment(name)
    config, sizes = chosen.attention, sizes_at(chosen, None)
    material = material_for(chosen, sizes)
    cotangent = cotangent_for(material)
    got = reference(material, config, cotangent, keep_weights=True)
    drawn = initial_weights(config, chosen.init, chosen.seed)
    leaves = drawn.map(lambda tensor: tensor.double().requires_grad_())
    inputs = (material.inputs.query, material.inputs.key, material.inputs.value)
    _, maps = reference_attention(drawn, config, *inputs, material.mask)
    output = plain_attention(leaves, config, inputs, material.mask)
    (output * cotangent.double()).sum().backward()
    assert torch.allclose(got.output, output, rtol=1e-12, atol=1e-12)
    assert got.weights is not None
    assert torch.allclose(got.weights, maps, rtol=1e-12, atol=1e-12)
    assert got.gradients is not None
    for part, leaf in parts(leaves):
        assert torch.allclose(getattr(got.gradients, part), leaf.grad, rtol=1e-9, atol=1e-11), part


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_variant_agrees_forward_and_backward(name: str) -> None:
    rows = checked(name, ("float32", "bfloat16", "autocast", "float64"), benchmark.PASSES)
    ran = [row for row in rows.values() if not row.reason]
    assert len(ran) >= len(rows) / 4
    assert [(row.variant.name, row.variant.dtype, row.differences) for row in ran if not row.agrees] == []
    for row in ran:
        gives_weights = row.variant.kernel == "explicit"
        assert (row.differences.weights is not None) == gives_weights, row.variant
        assert (row.differences.gradients is not None) == (row.pass_ != "forward")


def test_the_numbers_of_the_table_are_those_of_torch() -> None:
    """The difference of nn.MultiheadAttention, computed here without the benchmark."""
    chosen = experiment("plain")
    drawn = initial_weights(chosen.attention, chosen.init, chosen.seed)
    x = material_for(chosen, sizes_at(chosen, None)).inputs.query
    peer = torch.nn.MultiheadAttention(30, 5, batch_first=True).eval()
    state = {"in_proj_weight": torch.cat([drawn.q, drawn.k, drawn.v]), "out_proj.weight": drawn.out}
    state |= {"in_proj_bias": torch.cat([drawn.q_bias, drawn.k_bias, drawn.v_bias]), "out_proj.bias": drawn.out_bias}
    peer.load_state_dict(state)
    with torch.no_grad():
        output, maps = peer(x, x, x, average_attn_weights=False)
    truth, true_maps = reference_attention(drawn, chosen.attention, x, x, x, None)
    row = checked("plain")[Variant("nn.MultiheadAttention", "fused"), "forward"]
    assert row.differences.output == pytest.approx((output.double() - truth).abs().max().item(), rel=1e-6, abs=1e-12)
    assert row.differences.weights == pytest.approx((maps.double() - true_maps).abs().max().item(), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "variant", "reason"),
    [
        ("grouped", Variant("nn.MultiheadAttention", "fused"), "no grouped key/value heads"),
        ("grouped", Variant(one_head=True), "smaller k and v matrices"),
        ("rotary", Variant("nn.MultiheadAttention", "fused"), "no rotary positions"),
        ("rotary", Variant("raw SDPA", kernel="sdpa", need_weights=False), "no rotary positions"),
        ("widths", Variant(projection="fused"), "kdim = vdim = embed_dim"),
        ("fill", Variant(kernel="sdpa", need_weights=False), "not with -1e4"),
        ("fill", Variant("nn.MultiheadAttention", "fused"), "not with -1e4"),
        ("untied", Variant("nn.MultiheadAttention", "fused"), "its heads are always embed_dim / num_heads wide"),
    ],
)
def test_what_a_variant_cannot_express_is_named(name: str, variant: Variant, reason: str) -> None:
    row = checked(name)[variant, "forward"]
    assert reason in row.reason
    assert row.agrees is None
    assert row.differences is None


def test_a_scale_or_an_empty_row_is_not_torchs() -> None:
    scaled = Experiment.from_fields(EXPERIMENTS["plain"] | {"scale": 0.37})
    same = Experiment.from_fields(EXPERIMENTS["plain"] | {"scale": 1 / math.sqrt(6)})
    empty = experiment("custom", custom_mask=("11111", "00000", "10101", "01010", "11111"))
    peer = Variant("nn.MultiheadAttention", "fused")
    found = {}
    for name, chosen in (("scaled", scaled), ("same", same), ("empty", empty)):
        rows = {row.variant: row for row in measure(agreement(chosen, ("float32",)))}
        found[name] = rows[peer].reason
        assert rows[Variant(kernel="sdpa", need_weights=False)].agrees
    assert "1/sqrt(head_dim)" in found["scaled"]
    assert found["same"] == ""
    assert "no allowed key" in found["empty"]


def test_a_wrong_kernel_is_found_and_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.KERNELS["chunked"]

    def wrong(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: kernels.KernelCall) -> Any:
        return right(q, k, v, mask, replace(call, scale=call.scale * 1.01))

    monkeypatch.setitem(kernels.KERNELS, "chunked", wrong)
    rows = checked("plain", passes=benchmark.PASSES)
    assert {row.variant.kernel for row in rows.values() if row.agrees is False} == {"chunked"}
    assert all(row.agrees is False for row in rows.values() if row.variant.kernel == "chunked")


def test_an_output_that_is_wrong_in_training_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.KERNELS["sdpa"]

    def wrong(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: kernels.KernelCall) -> Any:
        context, _ = right(q, k, v, mask, call)
        return context + (0.01 if torch.is_grad_enabled() else 0.0), None

    monkeypatch.setitem(kernels.KERNELS, "sdpa", wrong)
    row = checked("plain", passes=("forward+backward",))[Variant(kernel="sdpa", need_weights=False), "forward+backward"]
    assert row.differences.output > row.differences.output_allowed


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is right, but no gradient reaches k."""
    right = kernels.KERNELS["sdpa"]
    monkeypatch.setitem(kernels.KERNELS, "sdpa", lambda q, k, v, mask, call: right(q, k.detach(), v, mask, call))
    monkeypatch.setattr(
        torch.autograd, "grad", lambda out, wanted, g, _grad=torch.autograd.grad: _fill(_grad, out, wanted, g)
    )
    rows = checked("plain", passes=benchmark.PASSES)
    engine = Variant(kernel="sdpa", need_weights=False)
    assert rows[engine, "forward"].agrees
    assert rows[engine, "forward+backward"].agrees is False
    assert rows[Variant(), "forward+backward"].agrees


def _fill(grad: Any, out: Tensor, wanted: list[Tensor], cotangent: Tensor) -> tuple[Tensor, ...]:
    found = grad(out, wanted, cotangent, allow_unused=True)
    return tuple(torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True))


def test_nan_agrees_with_nan_alone() -> None:
    nan = math.nan
    expected = torch.tensor([1.0, nan, 3.0], dtype=torch.float64)
    assert largest_difference(torch.tensor([1.5, nan, 3.0]), expected) == 0.5
    assert largest_difference(torch.tensor([1.0, 2.0, 3.0]), expected) == math.inf
    assert largest_difference(torch.tensor([nan, nan, 3.0]), expected) == math.inf


def test_the_tolerance_is_the_stated_one() -> None:
    roundoff32, roundoff16 = 2.0**-24, 2.0**-8
    assert relative_tolerance("float32", 3.0, 49) == pytest.approx(4 * roundoff32 * (1 + 2 * 3 + 7))
    for dtype in ("bfloat16", "autocast"):
        assert relative_tolerance(dtype, 3.0, 49) == pytest.approx(4 * (roundoff16 * 7 + roundoff32 * 7))


def test_masks_are_inverted_for_torch() -> None:
    by_key = torch.tensor([[True, True, False], [True, False, False]])[:, None, None, :]
    assert torch.equal(torch_masks(by_key, 2, 5)["key_padding_mask"], ~by_key[:, 0, 0])
    causal = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
    assert torch.equal(torch_masks(causal, 2, 5)["attn_mask"], torch.ones(3, 3, dtype=torch.bool).triu(1))
    full = torch_masks(by_key & causal, 2, 5)["attn_mask"]
    assert full.shape == (10, 3, 3)
    for row in range(10):
        assert torch.equal(full[row], ~(by_key & causal)[row // 5, 0])


def test_the_list_of_variants_is_complete() -> None:
    listed = variants(("float32", "bfloat16"))
    assert len(listed) == len(set(listed)) == 2 * (2 * 2 * 3 + 3) + 1
    engines = {(v.projection, v.head_split, v.kernel) for v in listed if v.kind == "engine"}
    assert len(engines) == 12
    assert [v.dtype for v in listed if v.one_head] == ["float32"]


def test_contenders_share_one_set_of_weights() -> None:
    material = material_for(experiment("plain"), sizes_at(experiment("plain"), None))
    built = [build(variant, material) for variant in variants(("float32", "autocast"))]
    assert len({p.data_ptr() for contender in built for p in contender.module.parameters()}) == 8 + 4 + 4


def test_longer_inputs_keep_their_kind() -> None:
    sizes = sizes_at(experiment("padding"), 21)  # lines of 3 and 7 tokens
    assert sizes.q_tokens.lengths == (9, 21)
    assert sizes.q_tokens.sequences[0] == ("a", "b", "c") * 3
    cross = sizes_at(experiment("cross"), 14)
    assert (cross.q_len, cross.k_len) == (14, 22)
    assert sizes_at(experiment("plain"), 3).q_len == 3


def test_variants_take_turns_and_every_step_is_counted() -> None:
    plan = Plan(experiment("plain"), (5, 13), ("forward", "forward+backward"), ("float32",), 0.05)
    results = list(measure(plan))
    assert len(results) == plan.total == 2 * 2 * 16 * (1 + ROUNDS)
    first = results[: 16 * (1 + ROUNDS)]
    assert [result.variant for result in first] == list(plan.contenders) * (1 + ROUNDS)
    assert {(result.q_len, result.pass_) for result in first} == {(5, "forward")}
    assert all(result.timing is None for result in first[:16])
    rows = latest(results)
    assert len(rows) == 64
    for row in rows:
        assert row.timing is not None
        assert row.timing.runs >= 1
        assert 0 < row.timing.low_ms <= row.timing.median_ms <= row.timing.high_ms
        assert row.peak_extra_bytes > 0


def test_time_is_bounded_and_overtime_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves 1 s at every look: 1 s is used up at once, and overtime before the fifth round."""
    now = iter(range(10**9))
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(bench_timing.time, "perf_counter", lambda: next(now))
    plan = Plan(experiment("plain"), seconds=1.0)
    assert all(row.timing.runs == 1 for row in latest(list(measure(plan))))


def test_what_does_not_fit_is_refused_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Experiment.from_fields({"source": "random", "batch": 1, "q_len": 1531, "embed_dim": 22, "num_heads": 11})
    sizes, limit = sizes_at(chosen, None), 2 * 11 * 1531 * 1531 * 4
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", str(limit))
    plan = Plan(chosen, (1531,), seconds=0.0)
    need = {variant: needed_bytes(variant, chosen, sizes, "forward") for variant in plan.contenders}
    refused = [variant for variant, size_bytes in need.items() if size_bytes > limit]
    assert {v.kernel for v in refused if v.kind == "engine"} == {"explicit"}
    assert {v.need_weights for v in refused if v.kind == "nn.MultiheadAttention"} == {True, False}
    wanted = (refused[0], Variant(kernel="chunked", need_weights=False), Variant(kernel="sdpa", need_weights=False))
    object.__setattr__(plan, "contenders", wanted)
    rows = {row.variant.kernel: row for row in measure(plan)}
    assert f"it would take {need[refused[0]]:,} bytes" in rows["explicit"].reason
    assert rows["chunked"].agrees
    assert rows["sdpa"].agrees


@pytest.mark.parametrize("pass_", benchmark.PASSES)
def test_no_more_is_taken_than_was_asked_for(pass_: str) -> None:
    """What is refused is decided by an estimate: it must not be below what is measured."""
    chosen = Experiment.from_fields({"source": "random", "batch": 1, "q_len": 307, "embed_dim": 42, "num_heads": 7})
    sizes = sizes_at(chosen, None)
    for row in latest(list(measure(Plan(chosen, passes=(pass_,), dtypes=("float32", "autocast"), seconds=1e-9)))):
        assert 0 < row.peak_extra_bytes <= needed_bytes(row.variant, chosen, sizes, row.pass_), row.variant


def test_nothing_global_is_changed() -> None:
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    list(measure(Plan(experiment("dropout"), seconds=0.05)))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()


def test_a_custom_mask_of_another_size_is_a_reason() -> None:
    rows = latest(list(measure(Plan(experiment("custom"), (7,), seconds=0.0))))
    assert all("the custom mask is 5 x 5, but the scores are 7 x 7" in row.reason for row in rows)


def test_long_experiments_are_compared_at_a_quick_length() -> None:
    long = Experiment.from_fields({"source": "random", "batch": 2, "q_len": 4096, "embed_dim": 64, "num_heads": 8})
    (length,) = agreement(long, ("float32",)).lengths
    assert 250 <= length <= 256  # 2 x 8 x 256 x 256 is 2**20
    assert agreement(experiment("plain"), ("float32",)).lengths == (None,)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lengths": (0,)}, "lengths"),
        ({"lengths": ()}, "lengths"),
        ({"passes": ("sideways",)}, "passes"),
        ({"dtypes": ()}, "dtypes"),
        ({"dtypes": ("int8",)}, "dtypes"),
        ({"seconds": -1.0}, "seconds"),
        ({"seconds": math.nan}, "seconds"),
    ],
)
def test_plans_that_cannot_be(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(MhaError) as caught:
        Plan(experiment("plain"), **changes)
    assert caught.value.field == field


def test_slow_number_formats_and_threads_are_found_by_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 calls are made slow here: the warning names the ratio, and float32 has none."""
    right = bench_timing.Stopwatch._sample
    learnt: dict[int, float] = {}

    def sample(watch: bench_timing.Stopwatch) -> float:
        right(watch)
        is_slow = watch.call.__self__.dtype == "bfloat16"
        return learnt.setdefault(id(watch), 0.003 if is_slow else 0.001)

    monkeypatch.setattr(bench_timing.Stopwatch, "_sample", sample)
    monkeypatch.setattr(benchmark.os, "cpu_count", lambda: torch.get_num_threads() + 3)
    rows = latest(list(measure(Plan(experiment("plain"), dtypes=("float32", "bfloat16"), seconds=0.05))))
    for row in rows:
        kinds = {warning.kind: warning.sentence for warning in row.warnings}
        assert ("slow_format" in kinds) == (row.variant.dtype == "bfloat16")
        assert "3.0 times" in kinds.get("slow_format", "3.0 times")
        assert f"{torch.get_num_threads()} of {torch.get_num_threads() + 3} cores" in kinds["threads"]


def test_rows_are_plain_data() -> None:
    row = checked("plain")[Variant(), "forward"].as_row()
    assert (row["batch"], row["q_len"], row["k_len"], row["pass"]) == (3, 7, 7, "forward")
    assert row["agrees"] is True
    assert row["median_ms"] is None
    refused = Measurement(Variant(), 3, 7, 7, "forward", reason="it is too large").as_row()
    assert refused["not_measured_because"] == "it is too large"
    assert refused["agrees"] is None
