"""Page Gradients: its presets, and the benches on depth and on single matrices, against numbers computed here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from mha_core import AttentionConfig, Experiment, InitSpec
from mha_core.experiment import give
from mha_core.lenses.depth import ARRANGEMENTS, Arrangement, profile
from tests.ui.page import decode, figures, fine, link, open_page, press, set_widget, shown, texts, whole
from ui import presets

GRADIENTS = "pages/3_Gradients.py"
SMALL = {"embed_dim": "26", "num_heads": "2", "text": "one two three four five"}


def finish(page: AppTest) -> AppTest:
    """Wait for the end of a job: each run of the page looks again."""
    for _ in range(400):
        page = fine(page.run())
        if not [button for button in page.button if button.label == "Cancel"]:
            return page
    raise AssertionError("the job did not end")


@pytest.mark.parametrize("preset", presets.GRADIENT_PRESETS, ids=lambda preset: preset.name)
def test_a_preset_sets_the_whole_experiment_and_says_what_to_look_at(preset: presets.Preset) -> None:
    page = open_page(GRADIENTS, seed="7", mask="causal", lab="own_model")
    page = whole(press(page, f"preset_{preset.name}"))
    wanted = Experiment.from_fields({name: value for name, value in preset.changes.items() if name != "lab"})
    assert shown(page) == wanted
    assert link(page).get("lab", "one_pass") == preset.changes["lab"]
    assert preset.look in texts(page).replace("\\", "")
    others = [other for other in presets.GRADIENT_PRESETS if other is not preset]
    assert not [other for other in others if other.look in texts(page).replace("\\", "")]


def test_the_sentence_goes_when_the_experiment_is_another() -> None:
    page = whole(press(open_page(GRADIENTS), "preset_Too large a gain"))
    assert page.info
    assert not whole(set_widget(page, "gain", 1.0)).info


def test_depth_draws_the_norms_of_the_stack() -> None:
    names = ("plain", "residual + pre-norm")
    page = open_page(GRADIENTS, lab="depth", depth_layers="5", depth_arrangements=",".join(names), **SMALL)
    (figure,) = figures(page)
    assert [trace["name"] for trace in figure["data"]] == list(names)
    for trace in figure["data"]:
        found = profile(shown(page), 5, ARRANGEMENTS[trace["name"]])
        assert np.allclose(trace["y"], [layer.input_gradient for layer in found])
        assert list(trace["x"]) == [0, 1, 2, 3, 4]
    (table,) = page.dataframe
    assert len(table.value) == 10
    page = whole(set_widget(page, "depth_quantity", "weight_gradient"))
    (figure,) = figures(page)
    plain = profile(shown(page), 5, Arrangement())
    assert np.allclose(figure["data"][0]["y"], [layer.weight_gradient for layer in plain])


def test_a_stack_that_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", "300000")
    page = open_page(GRADIENTS, lab="depth", depth_layers="64", **SMALL)
    assert "64 layers of width 26 need" in texts(page)


def test_the_phase_diagram_holds_the_gradient_of_every_stack() -> None:
    page = open_page(GRADIENTS, lab="depth", depth_layers="2", **SMALL)
    page = finish(press(page, "phase_start"))
    diagram = decode(figures(page)[1])
    cells = diagram["data"][0]
    gains, depths = [float(text) for text in cells["y"]], [int(text) for text in cells["x"]]
    row, column = gains.index(0.5), depths.index(4)
    experiment = replace(shown(page), init=InitSpec(gain=0.5))
    expected = np.log10(profile(experiment, 4, Arrangement())[0].input_gradient)
    assert cells["z"][row, column] == pytest.approx(expected, rel=1e-5)
    assert cells["text"][gains.index(0.25)][depths.index(32)] == "vanishing"
    assert cells["text"][gains.index(4.0)][depths.index(32)] == "exploding"
    page = whole(set_widget(page, "seed", 5))
    assert "have changed since this was computed" in texts(page)


def test_scale_bench_follows_the_weights() -> None:
    page = open_page(GRADIENTS, lab="matrices", embed_dim="48", num_heads="3", text="one two three four five")
    variance, entropy = figures(page)[:2]
    curves = {trace["name"]: trace["y"] for trace in variance["data"]}
    widths = variance["data"][0]["x"]
    assert list(widths) == [1, 2, 4, 8, 16]
    assert np.allclose(curves["no scale"], widths * curves["scale 1/√D"])
    given = give(Experiment(shown(page).source, AttentionConfig(48, 48)))
    x = given.inputs.query.double()
    q, k = (x @ matrix.weight.detach().double().T for matrix in (given.layer.wq, given.layer.wk))
    at_one = (q.transpose(1, 2)[..., None] * k.transpose(1, 2)[..., None, :]).var(correction=0)
    assert curves["no scale"][0] == pytest.approx(at_one.item(), rel=1e-5)
    assert all(0 <= value <= 1 + 1e-6 for trace in entropy["data"] for value in trace["y"])


def test_every_subset_of_the_matrices_has_its_verdicts() -> None:
    page = open_page(GRADIENTS, lab="matrices", embed_dim="26", num_heads="2", bias="false")
    table = page.dataframe[0].value.set_index("applied to")
    assert len(table) == 16
    assert list(table.loc["q, k, v, out", ["q", "k", "v", "out"]]) == ["dead"] * 4
    assert list(table.loc["out", ["q", "k", "v", "out"]]) == ["dead", "dead", "dead", "healthy"]
    assert table.loc["none", "norm q"] > 0
    assert "Zeros on which matrices" in texts(page)


def test_packed_bench_shows_the_root_of_two() -> None:
    page = open_page(GRADIENTS, lab="matrices", embed_dim="48", num_heads="3")
    table = page.dataframe[-1].value.set_index("drawn")
    assert table.loc["packed", "theory"] / table.loc["per block", "theory"] == pytest.approx(1 / np.sqrt(2))
    assert table.loc["packed", "std of q's weights"] == pytest.approx(table.loc["packed", "theory"], rel=0.05)
    assert "0.707" in texts(page)
