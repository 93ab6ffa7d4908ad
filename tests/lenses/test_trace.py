"""The trace: shapes in letters are the shapes there are, values those of a second computation, failures torch's own.

Over generated experiments of every engine: a symbolic shape, evaluated with the letters, equals the actual one; each
step follows from its inputs by the operation it names.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from einops import rearrange
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mha_core import AttentionConfig, Experiment, MaskSpec, RandomSource, TextSource, run
from mha_core.lenses.broken_trace import trace_fields
from mha_core.lenses.trace import Step, Trace, describe, trace


def size(symbol: str, letters: dict[str, int]) -> int:
    """Evaluate one axis written in letters, as "(H+2·Hkv)·D"."""
    return int(eval(symbol.replace("·", "*"), {"__builtins__": {}}, dict(letters)))


def experiments() -> st.SearchStrategy[Experiment]:
    """Experiments of every engine, with prime sizes where the rules allow it."""

    @st.composite
    def build(draw: st.DrawFn) -> Experiment:
        kv_heads, groups, head_dim = draw(st.sampled_from([(1, 3, 2), (3, 1, 10), (5, 2, 14), (2, 3, 22)]))
        width = kv_heads * groups * head_dim
        fused = draw(st.booleans())
        cross = draw(st.booleans())
        config = AttentionConfig(
            width,
            kv_heads * groups,
            num_kv_heads=kv_heads,
            head_size=draw(st.sampled_from([None, None, 26])),
            bias=draw(st.booleans()),
            kdim=None if fused else draw(st.sampled_from([None, 17, width])),
            vdim=None if fused else draw(st.sampled_from([None, 19])),
            dropout=0.0,
            projection="fused" if fused else "separate",
            qkv_layout=draw(st.sampled_from(["stacked", "interleaved"])),
            head_split=draw(st.sampled_from(["view", "einops"])),
            kernel=draw(st.sampled_from(["explicit", "chunked", "sdpa"])),
            rope_theta=draw(st.sampled_from([None, 100.0])),
        )
        q_len = draw(st.sampled_from([1, 7, 263]))
        source = RandomSource(draw(st.sampled_from([1, 5])), q_len, 11 if cross else None)
        return Experiment(source, config, MaskSpec(draw(st.sampled_from([(), ("causal",), ("padding", "local")]))))

    return build()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(experiments())
def test_every_step_has_the_shape_its_letters_say(experiment: Experiment) -> None:
    found = trace(experiment)
    assert found.failure is None
    for step in found.steps:
        assert tuple(size(symbol, dict(found.letters)) for symbol in step.symbolic) == step.shape, step
        values = found.values(step.name)
        assert values is not None
        assert tuple(values.shape) == step.shape
        assert step.size_bytes == math.prod(step.shape) * (1 if step.name == "mask" else 4)
        assert set(step.inputs) <= {other.name for other in found.steps}
        assert bool(step.inputs) != (step.name in ("query", "key", "value", "mask"))
    assert found.steps[-1].name == "output"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(experiments())
def test_every_step_follows_from_its_inputs(experiment: Experiment) -> None:
    found, config = trace(experiment), experiment.attention
    checked = [name for step in found.steps if (name := follow(found, step, config)) is not None]
    assert {"q_heads", "context", "joined", "output"} <= {*checked}


def follow(found: Trace, step: Step, config: AttentionConfig) -> str | None:
    """Do one step again from the values of its inputs, written another way."""
    inputs = [found.values(name) for name in step.inputs]
    expected: Any = None
    if step.inputs == ("qkv_groups",):
        groups = config.num_heads // config.kv_heads
        columns = {"q": range(groups), "k": [groups], "v": [groups + 1]}[step.name[0]]
        expected = torch.stack([inputs[0][:, :, n, g] for n in range(config.kv_heads) for g in columns], dim=1)
    elif step.name.endswith("_heads"):
        source = inputs[0].reshape(*inputs[0].shape[:2], -1)
        expected = torch.stack(source.split(config.head_dim, dim=-1), dim=1)
    elif step.name.endswith("_shared"):
        groups = config.num_heads // config.kv_heads
        expected = torch.stack([inputs[0][:, head // groups] for head in range(config.num_heads)], dim=1)
    elif step.name == "scores":
        rows = inputs[0][..., : step.shape[-2], :]
        expected = torch.einsum("bhid,bhjd->bhij", rows, inputs[1]) / math.sqrt(config.head_dim)
    elif step.name == "masked":
        allowed = inputs[1].expand(step.shape[0], 1, -1, step.shape[-1])[:, :, : step.shape[-2]]
        expected = torch.where(allowed, inputs[0], torch.finfo(torch.float32).min)
    elif step.name == "weights":
        expected = inputs[0].exp() / inputs[0].exp().sum(-1, keepdim=True) if inputs[0].min() > -50 else None
    elif step.name == "context" and config.kernel == "explicit":
        expected = torch.einsum("bhij,bhjd->bhid", inputs[0], inputs[1])
    elif step.name == "joined":
        last = inputs[0] if config.head_split == "einops" else inputs[0].permute(0, 2, 1, 3)
        expected = torch.cat(list(last.unbind(1)), dim=-1)
    else:
        return step.name if step.name in ("output", "context") else None
    if expected is not None:
        torch.testing.assert_close(found.values(step.name), expected, atol=2e-5, rtol=2e-5)
    return step.name


def test_the_values_are_those_of_a_run() -> None:
    experiment = Experiment(
        TextSource("one two three\nfour five"), AttentionConfig(42, 3), MaskSpec(("padding", "causal"))
    )
    found, result = trace(experiment), run(experiment)
    for name, tensor in {
        "q_heads": result.q,
        "scores": result.scores,
        "masked": result.masked_scores,
        "weights": result.weights,
        "output": result.output,
    }.items():
        assert torch.equal(found.values(name), tensor), name


def test_overwritten_tensors_are_said_to_be_and_still_shown_as_they_were() -> None:
    found = trace(Experiment(attention=AttentionConfig(42, 3), mask=MaskSpec(("causal",))))
    assert [found.step(name).memory for name in ("scores", "masked", "weights")] == ["new", "in place", "in place"]
    scores, weights = found.values("scores"), found.values("weights")
    assert scores.min() < 0 <= weights.min()
    assert found.step("q_view").memory == "view"
    assert found.step("q_heads").memory == "view"
    assert not found.step("q_heads").is_contiguous
    assert found.step("joined").memory == "new"


def test_einops_on_one_head_copies_nothing_and_strides_are_torchs() -> None:
    step = trace(Experiment(attention=AttentionConfig(26, 2, head_split="einops"))).step("q_heads")
    twin = rearrange(torch.zeros(step.shape[0], step.shape[2], 26), "b s (h d) -> b h s d", h=2)
    assert step.strides == twin.stride()
    assert step.is_contiguous == twin.is_contiguous()


def test_chunks_are_counted() -> None:
    config = AttentionConfig(22, 2, kernel="chunked")
    found = trace(Experiment(RandomSource(1, 523), config))
    assert found.step("scores").times == 3  # 256 + 256 + 11 rows
    assert found.step("scores").shape == (1, 2, 256, 523)
    assert found.step("context").times == 1
    assert torch.equal(found.values("weights"), run(Experiment(RandomSource(1, 523), config)).weights[:, :, :256])


@pytest.mark.parametrize(("dtype", "name"), [("bfloat16", "bfloat16"), ("float64", "float64"), ("float16", "float16")])
def test_number_formats_are_named(dtype: Any, name: str) -> None:
    found = trace(Experiment(attention=AttentionConfig(26, 2), dtype=dtype))
    assert {step.dtype for step in found.steps} == {name}


def test_autocast_shows_where_the_format_changes() -> None:
    found = trace(Experiment(attention=AttentionConfig(26, 2), dtype="autocast"))
    assert found.step("query").dtype == "float32"
    assert found.step("q_proj").dtype == "bfloat16"


def test_statistics_by_hand() -> None:
    known = describe(torch.tensor([1.0, 3.0, math.nan, math.inf, -math.inf, 8.0]))
    assert (known.mean, known.minimum, known.maximum) == (4.0, 1.0, 8.0)
    assert known.std == pytest.approx(math.sqrt((9 + 1 + 16) / 3))
    assert (known.nan_count, known.inf_count) == (1, 2)
    assert math.isnan(describe(torch.tensor([math.nan])).mean)
    assert describe(torch.tensor([True, False, False, False])).mean == 0.25


def test_a_fill_of_minus_infinity_is_counted() -> None:
    found = trace(Experiment(mask=MaskSpec(("causal",), fill="-inf")))
    length = found.letters["S"]
    assert found.statistics("masked").inf_count == 8 * length * (length - 1) // 2
    assert found.statistics("weights").nan_count == 0


FAILURES = [
    ({"num_heads": 7}, "q_view", "q_proj", r"shape '\[1, 11, 7, 73\]' is invalid for input of size 5632"),
    ({"num_heads": 7, "head_split": "einops"}, "q_heads", "q_proj", "can't divide axis of length 512 in chunks of 7"),
    ({"num_kv_heads": 3}, "scores", "v_shared", r"size of tensor a \(8\) must match the size of tensor b \(6\)"),
    ({"num_kv_heads": 11}, "scores", "v_shared", r"size of tensor a \(8\) must match the size of tensor b \(0\)"),
    ({"embed_dim": 56, "positions": "rotary"}, "q_rotated", "v_heads", r"tensor a \(3\) must match .* tensor b \(4\)"),
    ({"projection": "fused", "kdim": 23}, "k_proj", "q_heads", r"cannot be multiplied \(11x23 and 512x512\)"),
    ({"mask": ("custom",), "custom_mask": ("101", "111")}, "masked", "scores", r"tensor a \(2|3\) must match"),
]


@pytest.mark.parametrize(("fields", "failing", "last", "said"), FAILURES, ids=lambda value: str(value)[:30])
def test_a_broken_configuration_keeps_its_trace_and_torchs_words(
    fields: dict[str, Any], failing: str, last: str, said: str
) -> None:
    found = trace_fields(fields)
    assert found.failure is not None
    assert found.failure.step == failing
    assert found.steps[-1].name == last
    assert found.failure.torch_error is not None
    with pytest.raises(RuntimeError, match=said):
        raise RuntimeError(found.failure.torch_error)
    assert found.failure.error.try_, "no choice that works is offered"
    for suggestion in found.failure.error.try_:
        assert trace_fields(fields | dict(suggestion.changes)).failure is None
    for step in found.steps:
        assert found.statistics(step.name) is not None


def test_the_commonly_written_layer_fails_in_the_same_words() -> None:
    """The seed article's layer, written out here, is what the trace claims to follow."""
    query = torch.zeros(1, 11, 512)
    with pytest.raises(RuntimeError) as caught:
        torch.nn.Linear(512, 512)(query).view(1, 11, 7, 512 // 7).permute(0, 2, 1, 3)
    failure = trace_fields({"num_heads": 7}).failure
    assert failure is not None
    assert failure.torch_error == str(caught.value)


@pytest.mark.parametrize(
    ("fields", "failing"),
    [
        ({"kernel": "sdpa", "fill": "-1e9", "mask": ("causal",)}, "context"),
        ({"kernel": "sdpa", "dropout": 0.3}, "context"),
        ({"init_packed": True}, "q_proj"),
        ({"text": " "}, "query"),
    ],
)
def test_where_torch_would_not_complain_only_our_words_are_there(fields: dict[str, Any], failing: str) -> None:
    failure = trace_fields(fields).failure
    assert failure is not None
    assert (failure.step, failure.torch_error) == (failing, None)


def test_what_does_not_fit_in_memory_is_followed_by_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", str(4 * 2**20))
    fields = {"source": "random", "batch": 1, "q_len": 1031, "embed_dim": 26, "num_heads": 2}
    found = trace_fields(fields)
    assert found.failure is not None
    assert found.failure.step == "scores"  # 2 x 1031 x 1031 x 4 bytes is the first to pass 4 MiB
    assert found.step("q_heads").shape == (1, 2, 1031, 13)
    assert found.values("q_heads") is None
    assert found.statistics("q_heads") is None


def test_a_whole_configuration_is_traced_whole() -> None:
    fields = replace(Experiment(), seed=3).to_fields()
    assert [step.name for step in trace_fields(fields).steps] == [step.name for step in trace(Experiment()).steps]
