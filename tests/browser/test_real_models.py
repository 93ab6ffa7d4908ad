"""Page Real models with MiniLM: its heads without a click, a head picked, an edit, and checkpoint files given to it."""

from __future__ import annotations

import functools
import json
import re

import numpy as np
import pytest
import torch
from playwright.sync_api import expect
from safetensors.torch import save_file

from tests.browser import parts

ALL_HEADS = ".head-grid.many"
ONE_LAYER = ".head-grid:not(.many)"
wait = functools.partial(parts.wait_for_heading, title="Real models")


def drop(page, name: str, content: bytes) -> None:
    """Give the inspector a checkpoint."""
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    page.get_by_test_id("stFileUploader").filter(has_text="Checkpoint").locator("input").set_input_files(file)


@pytest.fixture
def checkpoint(tmp_path):
    """A layer of torch with E = 30, and its matrices."""
    torch.manual_seed(3)
    layer = torch.nn.MultiheadAttention(30, 5, batch_first=True)
    save_file({f"attn.{name}": value.contiguous() for name, value in layer.state_dict().items()}, tmp_path / "m")
    return (tmp_path / "m").read_bytes()


def test_real_heads_without_a_click_and_one_of_them_picked(visit):
    page = visit("/Real_models", ready=wait)
    small = page.locator(f"{ALL_HEADS} .tile")
    expect(small).to_have_count(72)
    expect(page.locator(f"{ALL_HEADS} .tile.chosen")).to_have_text("0.0")
    painted = page.locator(f"{ALL_HEADS} canvas")
    expect(painted).to_have_count(72)
    expect(page.locator(f"{ONE_LAYER} canvas")).to_have_count(12)
    assert parts.query(page) == {}
    small.nth(2 * 12 + 8).locator(".map").click()
    expect(page.get_by_role("heading", name="Layer 2, head 8")).to_be_visible()
    expect(page.get_by_role("slider", name="Layer")).to_have_value("2")
    expect(page.locator(f"{ALL_HEADS} .tile.chosen")).to_have_text("2.8")
    expect(parts.large_title(page)).to_contain_text("Head 8: weights,")
    parts.expect_query(page, layer="2", head="8")
    parts.wait_until_idle(page)
    small_map, large_map = parts.read_canvases(painted.nth(2 * 12 + 8))[0], parts.large_pixels(page)[0]
    assert small_map.shape == large_map.shape == (15, 15, 4)
    assert np.abs(small_map.astype(int) - large_map).max() <= 6  # the small one has 254 colours
    assert np.abs(large_map.astype(int) - parts.read_canvases(painted.nth(0))[0]).max() > 60


def test_an_edit_shows_its_effect_and_is_undone(visit):
    page = visit("/Real_models?real_view=effects&text=The+cat+slept%0AStocks+fell", ready=wait)
    expect(page.get_by_text("Nothing is edited yet")).to_be_visible()
    page.get_by_role("button", name="Fresh q and k here").click()
    expect(page.get_by_text("Edited: q, k drawn anew (xavier_uniform) in layer 0.")).to_be_visible()
    expect(page.locator(f"{ONE_LAYER} canvas")).to_have_count(12)
    expect(page.get_by_text("After: how alike the lines are")).to_be_visible()
    parts.wait_until_idle(page)
    page.get_by_role("button", name="Undo all edits").click()
    expect(page.get_by_text("Nothing is edited yet")).to_be_visible()
    expect(page.locator(ONE_LAYER)).to_have_count(0)


def test_a_dropped_layer_runs_on_page_attention(visit, checkpoint):
    page = visit("/Real_models?real_view=checkpoint&embed_dim=60", ready=wait)
    drop(page, "small.safetensors", checkpoint)
    expect(page.get_by_text("small.safetensors · 4 tensors")).to_be_visible()
    run_it = page.get_by_role("button", name="Run this layer on page Attention")
    expect(run_it).to_be_disabled()
    page.get_by_test_id("stSelectbox").filter(has_text="Heads H").get_by_role("combobox").click()
    page.get_by_role("option", name="5 heads of 6").click()
    expect(run_it).to_be_enabled()
    parts.wait_until_idle(page)
    run_it.click()
    expect(page.get_by_role("heading", name="Attention —")).to_be_visible()
    expect(page.locator(f"{ONE_LAYER} canvas")).to_have_count(5)
    expect(page).to_have_url(re.compile("checkpoint=[0-9a-f]{16}"))
    parts.wait_until_idle(page)
    query = parts.query(page)
    assert (query["source"], query["num_heads"], query["embed_dim"]) == ("checkpoint", "5", "60")
    expect(page.get_by_test_id("stAlertContentError")).to_have_count(0)


@pytest.mark.parametrize(
    "content",
    [b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.", (10 * 2**30).to_bytes(8, "little") + b"{}"],
    ids=["pickle", "length"],
)
def test_a_hostile_file_is_one_sentence(visit, content):
    page = visit("/Real_models?real_view=checkpoint", ready=wait)
    drop(page, "evil.safetensors", content)
    error = page.get_by_test_id("stAlertContentError")
    expect(error).to_have_count(1)
    expect(error).to_contain_text("evil.safetensors")
    assert "\n" not in error.inner_text()
    parts.choose(page, "Look at", "all heads, one layer")
    expect(page.locator(f"{ALL_HEADS} canvas")).to_have_count(72)


@pytest.mark.parametrize("view", ["heads", "effects", "checkpoint"])
def test_nothing_is_cut_off_on_a_phone(visit, view):
    size = {"width": 390, "height": 844}
    page = visit(f"/Real_models?real_view={view}&muted=0.1&scale=0.05", ready=wait, viewport=size)
    shown = {
        "heads": f"{ALL_HEADS} canvas",
        "effects": f"{ONE_LAYER} canvas",
        "checkpoint": "[data-testid=stFileUploader]",
    }
    expect(page.locator(shown[view]).first).to_be_visible()
    parts.wait_until_idle(page)
    widths = page.evaluate(
        """() => [document.documentElement, document.querySelector('[data-testid="stMain"]')]
        .map(element => [element.scrollWidth, element.clientWidth])"""
    )
    assert all(needed <= there for needed, there in widths), json.dumps(widths)
