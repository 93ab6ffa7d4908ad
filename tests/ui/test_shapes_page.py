"""Page Shapes: its table, flow, pictures and index map against tensors computed here."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest

from mha_core import run
from tests.ui.page import figures, fine, grid, link, open_page, press, set_widget, shown, texts, whole

SHAPES = "pages/2_Shapes.py"


def table(page: AppTest) -> Any:
    """The trace as the page shows it, by step."""
    (frame,) = page.dataframe
    return frame.value.set_index("step")


def flow(page: AppTest) -> str:
    """The flow in DOT."""
    (chart,) = page.get("graphviz_chart")
    return str(chart.proto.spec)


def test_the_table_says_what_the_tensors_are() -> None:
    page = open_page(SHAPES, text="one two three\nfour five", embed_dim="42", num_heads="3", mask="padding,causal")
    steps, result = table(page), run(shown(page))
    for name, tensor in {
        "q_heads": result.q,
        "scores": result.scores,
        "weights": result.weights,
        "output": result.output,
    }.items():
        row = steps.loc[name]
        assert row["shape"] == " x ".join(map(str, tensor.shape))
        assert row["strides"] == str(tuple(tensor.stride()))
        assert row["in order"] == tensor.is_contiguous()
        assert row["bytes"] == tensor.numel() * 4
        exact = tensor.double().numpy()
        assert row[["mean", "std", "min", "max"]].to_numpy(float) == pytest.approx(
            [exact.mean(), exact.std(), exact.min(), exact.max()], rel=1e-5, abs=1e-6
        )
    assert steps.loc["scores", "letters"] == "(B, H, S, S)"
    assert list(steps.index)[:3] == ["query", "mask", "q_proj"]
    assert list(steps.index)[-1] == "output"


def test_the_flow_has_a_box_per_step_and_a_shape_on_every_arrow() -> None:
    page = open_page(SHAPES, embed_dim="84", num_heads="6", num_kv_heads="2", positions="rotary", head_split="einops")
    graph = flow(page)
    for name in table(page).index:
        assert f'"{name}" [label="{name}' in graph
    arrows = re.findall(r'"(\w+)" -> "(\w+)" \[label=" ([^"]*)"', graph)
    assert ("k_rotated", "k_shared") in {(source, target) for source, target, _ in arrows}
    assert ("weights", "context") in {(source, target) for source, target, _ in arrows}
    assert {source: label for source, _, label in arrows}["k_heads"] == "(B, Hkv, S, D)\\n 1 x 2 x 11 x 14"


def test_a_step_is_chosen_and_its_values_are_shown_per_head() -> None:
    page = open_page(SHAPES, embed_dim="42", num_heads="3", mask="causal")
    page = whole(set_widget(page, "step", "q_heads"))
    message, result = grid(page), run(shown(page))
    assert message.header["names"] == ["head 0", "head 1", "head 2"]
    assert message.header["nouns"] == ["token", "channel"]
    wanted = result.q[0].numpy()
    assert np.abs(message.values() - wanted).max() <= message.tolerance().max()
    assert "Only strides change" in texts(page)
    assert link(page)["step"] == "q_heads"


def test_hidden_pairs_are_not_values() -> None:
    page = open_page(SHAPES, embed_dim="42", num_heads="3", mask="causal", step="masked")
    message, result = grid(page), run(shown(page))
    values = message.values()
    hidden = ~result.allowed[0].numpy()
    assert np.isnan(values[hidden]).all()
    assert np.abs(values - result.scores[0].numpy())[~hidden].max() <= message.tolerance().max()


def test_a_tensor_without_heads_is_one_map() -> None:
    page = open_page(SHAPES, embed_dim="42", num_heads="3", step="output")
    message = grid(page)
    assert message.header["names"] == ["output"]
    assert np.abs(message.values()[0] - run(shown(page)).output[0].numpy()).max() <= message.tolerance().max()


def test_long_axes_are_pooled_by_their_mean() -> None:
    page = open_page(SHAPES, source="random", batch="1", q_len="257", embed_dim="22", num_heads="2", step="scores")
    message, scores = grid(page), run(shown(page)).scores[0]
    block = 257 // message.header["rows"] + 1
    first = scores[:, :block, :block].mean((1, 2)).numpy()
    assert np.abs(message.values()[:, 0, 0] - first).max() <= message.tolerance().max()
    assert f"A cell is the mean of {block} x {block} values" in texts(page)


def test_a_configuration_that_cannot_run_keeps_its_trace_and_both_errors() -> None:
    page = open_page(SHAPES, num_heads="7")
    assert list(table(page).index) == ["query", "q_proj"]
    (said,) = page.code
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(1, 11, 512).view(1, 11, 7, 73)
    assert said.value == str(caught.value)
    assert "fails here" in flow(page)
    shown_texts = texts(page).replace("\\", "")
    assert "It stops at q_view" in shown_texts
    assert "512 = 7 x 73 + 1" in shown_texts
    assert "its steps, up to the one that fails" in shown_texts
    page = whole(press(page, "try_1"))
    assert not page.code
    assert list(table(page).index)[-1] == "output"


def test_another_kind_of_mistake_stops_elsewhere() -> None:
    page = open_page(SHAPES, num_kv_heads="3")
    assert list(table(page).index)[-1] == "v_shared"
    assert "size of tensor a (8) must match the size of tensor b (6)" in page.code[0].value


def test_what_torch_would_not_refuse_is_said_so() -> None:
    page = open_page(SHAPES, kernel="sdpa", fill="-1e9", mask="causal")
    assert page.code[0].value == "nothing: torch would not complain here"


def test_an_empty_text_has_no_steps_and_no_traceback() -> None:
    page = open_page(SHAPES, text=" ")
    assert not page.dataframe
    assert "no token" in texts(page)


def test_the_index_map_follows_an_element() -> None:
    page = open_page(SHAPES, source="random", batch="2", q_len="7", embed_dim="15", num_heads="3", index_b="1")
    numbered = torch.arange(2 * 7 * 15).view(2, 7, 15)
    right, tempting = numbered.view(2, 7, 3, 5).permute(0, 2, 1, 3), numbered.view(2, 3, 7, 5)
    for token, channel in ((3, 14), (6, 2)):
        set_widget(page, "index_s", token)
        page = whole(set_widget(whole(page), "index_e", channel))
        element = numbered[1, token, channel]
        for which in (right, tempting):
            landed = tuple(int(axis) for axis in (which == element).nonzero()[0])
            assert f"(1, {token}, {channel}) lands at (b, h, s, d) = **{landed}**" in texts(page)
    for figure, which in zip(figures(page), (right, tempting), strict=True):
        heads = np.empty(7 * 15)
        for head in range(3):
            heads[which[0, head].flatten().numpy()] = head
        assert (figure["data"][0]["z"] == heads.reshape(7, 15)).all()


def test_one_head_cannot_be_scrambled() -> None:
    assert "both are the same" in texts(open_page(SHAPES, embed_dim="22", num_heads="1"))


@pytest.mark.parametrize(
    "query",
    [
        {"kernel": "chunked", "source": "random", "q_len": "300", "step": "weights"},
        {"kernel": "sdpa", "step": "scores"},
        {"projection": "fused", "qkv_layout": "interleaved", "num_kv_heads": "2", "step": "qkv_groups"},
        {"memory_text": "a b c", "kdim": "24", "vdim": "40", "step": "k_heads"},
        {"dtype": "bfloat16", "mask": "padding,local", "step": "mask"},
        {"positions": "rotary", "dtype": "float16", "dropout": "0.3", "step": "dropped"},
    ],
)
def test_every_engine_is_shown(query: dict[str, str]) -> None:
    page = fine(open_page(SHAPES, **query))
    assert list(table(page).index)[-1] == "output"
    assert grid(page).header["heads"] >= 1
