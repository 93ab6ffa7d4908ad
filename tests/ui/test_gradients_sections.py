"""Benches one_pass, schemes and own_model of page Gradients, against a plain layer and hand-made files."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from streamlit.testing.v1 import AppTest

from mha_core.init_schemes import INIT_SCHEMES
from tests.lenses.plain_layer import PlainPass, plain_pass
from tests.ui.page import figures, fine, grid, link, open_page, set_widget, shown, texts, whole

GRADIENTS = "pages/3_Gradients.py"
SMALL = {"embed_dim": "30", "num_heads": "5", "text": "one two three four five six seven"}
LABELS = {"q": "dL/dWq", "k": "dL/dWk", "v": "dL/dWv", "out": "dL/dWout", "v_bias": "dL/dbv"}


def bench(lab: str, **query: str) -> AppTest:
    return open_page(GRADIENTS, lab=lab, **SMALL | query)


def said(page: AppTest) -> str:
    """Everything the page says, its successes too, without Markdown's escapes."""
    return (texts(page) + "\n".join(element.value for element in page.success)).replace("\\", "")


def table(page: AppTest, name: str) -> pd.DataFrame:
    """The table of the page whose first column is so named."""
    return next(frame.value for frame in page.dataframe if frame.value.columns[0] == name).set_index(name)


def plain(page: AppTest) -> PlainPass:
    return plain_pass(shown(page), torch.sum)


def test_one_pass_shows_what_autograd_gives() -> None:
    page = bench("one_pass", mask="causal", dtype="float64")
    rows, exact = table(page, "gradient"), plain(page)
    for name, label in LABELS.items():
        value, gradient = exact.parameters[name]
        assert rows.loc[label, "norm"] == pytest.approx(gradient.norm().item(), rel=1e-8)
        assert rows.loc[label, "shape"] == " x ".join(map(str, value.shape))
        if value.norm():
            assert rows.loc[label, "ratio"] == pytest.approx((gradient.norm() / value.norm()).item(), rel=1e-8)
    for name in ("q", "scores", "weights", "context"):
        assert rows.loc[f"dL/d{name}", "norm"] == pytest.approx(exact.tensors[name][1].norm().item(), rel=1e-8)
    bars, heads = figures(page)
    drawn = {
        y: x for trace in bars["data"] if trace["type"] == "bar" for y, x in zip(trace["y"], trace["x"], strict=True)
    }
    assert set(drawn) == set(rows.index)
    assert all(drawn[name] == pytest.approx(rows.loc[name, "norm"]) for name in drawn)
    assert bars["layout"]["xaxis"]["type"] == "log"
    (heat,) = heads["data"]
    norms = np.array([g.norm().item() for g in exact.tensors["scores"][1].unbind(1)])
    row = heat["y"].index("dL/dscores")
    assert heat["customdata"][row] == pytest.approx(norms, rel=1e-8)
    assert heat["z"][row] == pytest.approx(norms / norms.mean(), rel=1e-8)
    assert "Every parameter learns. The key bias gets only rounding noise, and that is fine." in said(page)


def test_the_map_is_the_gradient_of_the_scores() -> None:
    page = bench("one_pass", mask="causal", text="one two three four\nfive six seven", sequence="1")
    message, exact = grid(page), plain(page).tensors["scores"][1][1].numpy()
    hidden = ~np.tril(np.ones((4, 4), dtype=bool))
    values = message.values()
    assert np.isnan(values[:, hidden]).all()
    assert np.abs(values[:, ~hidden] - exact[:, ~hidden]).max() <= message.tolerance().max() + 1e-5
    low, high = message.header["range"]
    assert low == -high == pytest.approx(-np.abs(exact).max(), rel=1e-5)
    assert message.exact == pytest.approx(exact[:, 0], abs=1e-5)
    page = set_widget(page, "sequence", 0)
    assert grid(page).header["q"] == ["one", "two", "three", "four"]


def test_dead_gradients_come_first_with_their_reason() -> None:
    page = bench("one_pass", init="zeros", init_targets="q,k,v", bias="false")
    words = said(page)
    assert "**q**: dead." in words
    assert "v is zero, so context is zero and out gets nothing" in words
    rows = table(page, "gradient")
    assert rows.loc[["dL/dWq", "dL/dWk", "dL/dWout"], "norm"].eq(0).all()
    assert rows.loc["dL/dWv", "verdict"] == "healthy"
    bars, heads = figures(page)
    lost = next(trace for trace in bars["data"] if trace["type"] == "scatter")
    assert set(lost["y"]) == {"dL/dWq", "dL/dWk", "dL/dWout", "dL/dweights", "dL/dscores", "dL/dq", "dL/dk"}
    assert all("dead" in text for text in lost["text"])
    assert np.isnan(heads["data"][0]["z"][0]).all()
    assert "No score gets any gradient." in words


def test_the_loss_is_chosen_and_travels_in_the_link() -> None:
    page = whole(set_widget(bench("one_pass"), "grad_loss", "next_token"))
    assert link(page)["grad_loss"] == "next_token"
    assert "cross-entropy of the next token" in said(page)
    page = bench("one_pass", grad_loss="next_token", memory_text="un deux")
    assert "queries and keys are two sequences" in said(page)
    assert not page.dataframe


def test_the_fused_kernel_says_what_it_hides() -> None:
    page = bench("one_pass", kernel="sdpa")
    assert "never shows scores or weights" in said(page)
    assert "dL/dscores" not in table(page, "gradient").index
    assert not page.get("bidi_component")


def test_grouped_heads_share_their_column() -> None:
    page = bench("one_pass", embed_dim="42", num_heads="6", num_kv_heads="2", init="constant")
    heat = figures(page)[1]["data"][0]
    shared = heat["customdata"][heat["y"].index("dL/dWv")]
    assert shared[:3] == pytest.approx([shared[0]] * 3)
    assert shared[3:] == pytest.approx([shared[3]] * 3)
    assert "6 heads do the work of one" in said(page)


def test_schemes_side_by_side() -> None:
    page = bench("schemes", dtype="float64")
    rows = table(page, "scheme")
    assert list(rows.index) == list(INIT_SCHEMES)
    exact = plain(page)
    for name in ("q", "out"):
        assert rows.loc["xavier_uniform", f"norm {name}"] == pytest.approx(
            exact.parameters[name][1].norm().item(), rel=1e-8
        )
    assert rows.loc["xavier_uniform", "std scores"] == pytest.approx(
        exact.tensors["scores"][0].std(correction=0).item(), rel=1e-8
    )
    (picture,) = figures(page)
    heat, bare = picture["data"]
    place = heat["y"].index("zeros")
    assert np.isnan(heat["z"][place]).all()
    assert list(heat["text"][place]) == [""] * 4
    assert [text for y, text in zip(bare["y"], bare["text"], strict=True) if y == "zeros"] == ["dead"] * 4
    place = heat["y"].index("normal")
    wanted = rows.loc["normal", "norm v"] / rows.loc["xavier_uniform", "norm v"]
    assert heat["z"][place][2] == pytest.approx(math.log10(wanted), rel=1e-6)
    assert "5 heads do the work of one" in said(page)
    reasons = next(frame.value for frame in page.dataframe if "reason" in frame.value)
    zeros = reasons[(reasons["scheme"] == "zeros") & (reasons["parameter"] == "q")].iloc[0]
    assert "k is zero, so the gradient of q is zero" in zeros["reason"]


def test_schemes_that_cannot_be_run_say_why() -> None:
    page = bench("schemes", grad_loss="next_token", text="alone")
    assert "every sequence is one token long" in said(page)


def drop(content: Any) -> AppTest:
    """Give the page a file."""
    page = bench("own_model")
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    page.get("file_uploader")[0].set_value(("norms.json", raw, "application/json"))
    return fine(page.run())


def test_a_dropped_file_gets_the_verdict_table() -> None:
    page = drop({"a.wq": 0, "a.wk": 1.5, "a.wv": "NaN", "a.fc_out": 2, "a.ffn": 9000})
    rows = table(page, "name")
    assert list(rows["verdict"]) == ["dead", "healthy", "exploding", "healthy", "exploding"]
    assert "k is zero, so the gradient of q is zero" in rows.loc["a.wq", "reason"]
    assert rows.loc["a.ffn", "over the median"] == pytest.approx(9000 / 2)
    assert "5 norms · 1 dead · 2 healthy · 2 exploding" in said(page)
    assert "- **a.wq**: dead. Exactly 0. Only q gets nothing" in said(page)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"\x80\x04pickle", "this is not JSON"), ({"![x](http://x)": "large"}, "a norm is a number"), ([], "no norm")],
)
def test_a_bad_file_is_refused_in_a_sentence(content: Any, words: str) -> None:
    page = drop(content)
    assert words in said(page)
    assert "![x](" not in texts(page)
    assert not page.dataframe
