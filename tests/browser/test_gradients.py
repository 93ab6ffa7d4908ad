"""Page Gradients in the browser: its numbers against autograd of a plain torch layer, and a dropped file."""

import json
from functools import partial

import numpy as np
import torch
from playwright.sync_api import expect

from mha_core import Experiment
from tests.browser import parts
from tests.lenses.plain_layer import plain_pass

READY = partial(parts.wait_for_heading, title="Gradients")
LINK = "embed_dim=42&num_heads=3&mask=causal&text=one+two+three+four+five"
MATRICES = {"dL/dWq": "q", "dL/dWk": "k", "dL/dWv": "v", "dL/dWout": "out"}


def exact(query):
    experiment, problems = Experiment.from_query(query)
    assert problems == []
    return plain_pass(experiment, torch.sum)


def plot(page, key):
    """One figure of the page."""
    return page.locator(f".st-key-{key} .js-plotly-plot")


def test_norms_and_map_are_those_of_a_plain_layer(visit):
    page = visit(f"/Gradients?{LINK}", ready=READY)
    expect(page.get_by_text("Every parameter learns.")).to_be_visible()
    truth = exact(LINK)
    rows = {row["gradient"]: row for row in json.loads(parts.download(page, "gradients_json"))}
    for label, name in MATRICES.items():
        wanted = truth.parameters[name][1].norm().item()
        assert abs(rows[label]["norm"] - wanted) <= 1e-4 * wanted
        assert rows[label]["verdict"] == "healthy"
    assert rows["dL/dbk"]["verdict"] == "by design"
    expect(plot(page, "gradient_norms").locator(".bars .point")).to_have_count(15)
    healthy = plot(page, "gradient_norms").evaluate(
        "plot => { const t = plot._fullData.find(t => t.name === 'healthy'); return [[...t.y], [...t.x]]; }"
    )
    drawn = dict(zip(*healthy, strict=True))
    assert np.allclose([drawn[label] for label in MATRICES], [rows[label]["norm"] for label in MATRICES])
    expect(plot(page, "gradient_norms").get_by_text("by design")).to_be_visible()
    parts.wait_until_painted(page)
    gradient = truth.tensors["scores"][1][0, :, 0].numpy()
    parts.maps(page).nth(1).hover(position={"x": 2, "y": 2})
    expect(parts.readout(page)).to_contain_text("query “one” (0) → key “one” (0): dL/dscore")
    assert np.allclose([float(text) for text in parts.values(page)], gradient[:, 0], atol=1e-4)
    lines = parts.download(page, "gradients_csv").splitlines()
    assert len(lines) == 16
    assert lines[0].startswith("gradient,shape,verdict,norm,RMS,")


def test_another_loss_and_a_dead_matrix(visit):
    page = visit(f"/Gradients?{LINK}&init=zeros&init_targets=out", ready=READY)
    expect(page.get_by_text("out is zero, so dL/dcontext").first).to_be_visible()
    expect(plot(page, "gradient_norms").get_by_text("0 dead").first).to_be_visible()
    parts.wait_until_idle(page)
    parts.choose(page, "Loss", "next token")
    expect(page.get_by_text("cross-entropy of the next token")).to_be_visible()
    expect(page.get_by_text("out is zero, so dL/dcontext").first).to_be_visible()
    assert parts.query(page)["grad_loss"] == "next_token"


def test_schemes_have_words_and_numbers(visit):
    page = visit(f"/Gradients?{LINK}&lab=schemes", ready=READY)
    picture = plot(page, "scheme_picture")
    expect(picture.get_by_text("dead").first).to_be_visible()
    expect(picture.get_by_text("healthy").first).to_be_visible()
    rows = {row["scheme"]: row for row in json.loads(parts.download(page, "schemes_json"))}
    assert len(rows) == 12
    truth = exact(f"{LINK}&init=orthogonal")
    for name in ("q", "k", "v", "out"):
        wanted = truth.parameters[name][1].norm().item()
        assert abs(rows["orthogonal"][f"norm {name}"] - wanted) <= 1e-4 * wanted
    assert rows["zeros"]["verdict out"] == "dead"


def test_a_dropped_file_gets_verdicts(visit):
    page = visit("/Gradients?lab=own_model", ready=READY)
    file = {"attn.wq": 0.0, "attn.wk": 0.7, "attn.wv": 0.9, "attn.fc_out": "Infinity", "<b>bold</b>": 1e5}
    page.locator('input[type="file"]').last.set_input_files(
        {"name": "norms.json", "mimeType": "application/json", "buffer": json.dumps(file).encode()}
    )
    expect(page.get_by_text("5 norms · 1 dead · 2 healthy · 2 exploding")).to_be_visible()
    rows = {row["name"]: row for row in json.loads(parts.download(page, "own_model_json"))}
    assert rows["attn.wq"]["reason"].startswith("Exactly 0. Only q gets nothing: k is zero")
    assert abs(rows["<b>bold</b>"]["over the median"] - 1e5 / 0.9) < 1
    assert rows["attn.fc_out"]["verdict"] == "exploding"
