"""A trace writes down what happened and changes nothing; tensors written in place keep what they held before."""

from __future__ import annotations

import inspect
import threading

import einops
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.doctor.traces.tracing import Trace, traced

HERE = __file__


def names(trace: Trace) -> list[str]:
    return [step.name for step in trace.steps]


def line_of(mark: str) -> int:
    with open(HERE, encoding="utf-8") as file:
        lines = file.read().splitlines()
    return next(i for i, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


def test_operators_methods_and_functions_have_the_names_of_torch() -> None:
    a, b = torch.randn(3, 5), torch.randn(5, 3)
    with traced([HERE]) as trace:
        _ = a @ b
        _ = 2 - a
        _ = 2 / a
        _ = a.mT
        _ = F.softmax(a, -1)
        _ = a[0]
        _ = torch.einsum("ij,jk->ik", a, b)
        _ = einops.rearrange(a, "i (j k) -> i j k", j=1)
    assert names(trace) == ["matmul", "sub", "div", "mT", "softmax", "__getitem__", "einsum", "reshape"]
    assert trace.steps[1].args[0] == 2
    assert trace.steps[1].args[1] is a
    assert trace.steps[2].args == (2, a)


def test_a_step_knows_the_line_of_the_person_and_not_that_of_a_library() -> None:
    layer, x = nn.Linear(3, 5), torch.randn(2, 3)
    with traced([HERE]) as trace:
        y = layer(x)  # the linear
        einops.rearrange(y, "a b -> b a")  # the rearrangement
    assert [step.place.line for step in trace.steps if step.place] == [
        line_of("the linear"),
        line_of("the rearrangement"),
    ]
    assert "layer(x)" in str(trace.steps[0].place)
    assert trace.paths[trace.steps[0].place.file] == HERE  # type: ignore[union-attr]


def test_the_innermost_of_the_persons_frames_counts() -> None:
    def inner(x: Tensor) -> Tensor:
        return x.exp()  # inside

    with traced([HERE]) as trace:
        inner(torch.zeros(2))
    assert trace.steps[-1].place is not None
    assert trace.steps[-1].place.line == line_of("inside")
    with traced(["/nowhere/else.py"]) as other:
        inner(torch.zeros(2))
    assert other.steps[-1].place is None


def test_made_and_used_follow_identities() -> None:
    x = torch.randn(2, 6)
    with traced([HERE]) as trace:
        parts = x.chunk(3, -1)
        total = parts[0] + parts[2]
        same = total.contiguous()
    assert trace.made(x) is None
    made = trace.made(parts[2])
    assert made is not None
    assert made.name == "chunk"
    assert [step.name for step in trace.used_by(parts[0])] == ["add"]
    assert trace.used_by(parts[1]) == ()
    assert same is total
    assert trace.made(total) is trace.steps[1]  # a function that gives back what it got made nothing


def test_a_tensor_changed_in_place_keeps_its_history() -> None:
    with traced([HERE]) as trace, torch.no_grad():
        scores = torch.arange(6.0).view(2, 3)
        scores *= 2
        scores[0, 1] = -9.0
        scores.masked_fill_(torch.tensor([[True, False, False]] * 2), 7.0)
        weights = torch.softmax(scores, -1, out=scores)
    assert weights is scores
    assert names(trace)[-1] == "softmax"
    by_name = {step.name: step.index for step in trace.steps}
    assert trace.value(scores, by_name["mul_"]).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert trace.value(scores, by_name["__setitem__"]).tolist() == [[0, 2, 4], [6, 8, 10]]
    assert trace.value(scores, by_name["softmax"]).tolist() == [[7, -9, 4], [7, 8, 10]]
    assert torch.allclose(trace.value(scores, len(trace.steps)).sum(-1), torch.ones(2))
    assert trace.made(scores) is trace.steps[by_name["softmax"]]
    before = trace.value(scores, by_name["softmax"])
    made = trace.made(before)
    assert made is not None
    assert made.name == "masked_fill_"
    assert [step.name for step in trace.used_by(before)] == ["softmax"]


def test_a_view_that_is_written_changes_its_base() -> None:
    with traced([HERE]) as trace:
        base = torch.zeros(2, 5)
        part = base[:, 1:3]
        part.copy_(torch.ones(2, 2))
    made = trace.made(base)
    assert made is not None
    assert made.name == "copy_"
    assert made.changed is part
    assert trace.value(base, made.index).sum() == 0
    assert trace.value(base, made.index + 1).sum() == 4


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_multi_head_attention_is_seen_through(weights: bool, gradients: bool, training: bool) -> None:
    layer = nn.MultiheadAttention(12, 3, dropout=0.2, batch_first=True).train(training)
    x = torch.randn(2, 5, 12)
    with torch.set_grad_enabled(gradients):
        torch.manual_seed(7)
        plain, plain_weights = layer(x, x, x, need_weights=weights)
        torch.manual_seed(7)
        with traced([HERE]) as trace:
            seen, seen_weights = layer(x, x, x, need_weights=weights)
    assert torch.allclose(plain, seen, atol=1e-6)
    assert (plain_weights is None) == (seen_weights is None)
    assert "multi_head_attention_forward" not in names(trace)
    assert names(trace).count("linear") == 2
    assert ("softmax" if weights else "scaled_dot_product_attention") in names(trace)


def test_the_fused_encoder_layer_shows_its_steps() -> None:
    layer = nn.TransformerEncoderLayer(12, 3, 17, batch_first=True).eval()
    x = torch.randn(2, 5, 12)
    with torch.no_grad():
        plain = layer(x)
        with traced([HERE]) as trace:
            seen = layer(x)
    assert torch.allclose(plain, seen, atol=1e-5)
    assert names(trace).count("linear") == 4


def test_gradients_and_random_numbers_are_those_of_an_untraced_pass() -> None:
    def run(watched: bool) -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        layer, x = nn.Linear(5, 7), torch.randn(2, 5)
        if watched:
            with traced([HERE]):
                out = F.dropout(layer(x), 0.5).pow(2).sum()
        else:
            out = F.dropout(layer(x), 0.5).pow(2).sum()
        out.backward()  # type: ignore[no-untyped-call]
        assert layer.weight.grad is not None
        return out.detach(), layer.weight.grad

    assert all(torch.equal(a, b) for a, b in zip(run(False), run(True), strict=True))


def test_an_error_of_the_module_comes_through_and_leaves_the_steps_before_it() -> None:
    with pytest.raises(RuntimeError, match="invalid for input of size"), traced([HERE]) as trace:
        torch.ones(2, 3).exp().view(4, 2)
    assert names(trace) == ["ones", "exp"]


def test_nothing_is_recorded_after_the_block_or_on_other_threads() -> None:
    with traced([HERE]) as trace:
        other = threading.Thread(target=lambda: torch.ones(3).exp())
        other.start()
        other.join()
        torch.ones(2).sin()
    torch.ones(2).cos()
    assert names(trace) == ["ones", "sin"]
    assert "has_torch_function" in inspect.getsource(F.multi_head_attention_forward)  # torch itself is as it was
    assert F.has_torch_function is torch.overrides.has_torch_function
