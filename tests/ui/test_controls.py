"""Every control of the sidebar, moved through its widget.

The experiment becomes exactly the one with that field changed, and both pictures become that experiment's numbers, in
the same answer of the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mha_core import Experiment, run
from mha_core.fields import FIELDS
from tests.core.small_models import MAKERS, save
from tests.lenses.checkpoints import bert, write
from tests.ui.page import grid, large_map, open_page, press, set_widget, shown, whole

BASE: dict[str, Any] = {"text": "one two three four", "embed_dim": 24, "num_heads": 4}
RANDOM: dict[str, Any] = {"source": "random", "embed_dim": 24, "num_heads": 4}
FUSED = {"projection": "fused"}
CROSS = {"memory_text": "eins zwei drei vier fünf sechs"}
MOVES: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("source", "random", {}),
    ("text", "red green\nblue yellow pink", {}),
    ("memory_text", "rot grün", CROSS),
    ("tokenizer", "char", {}),
    ("tokenizer", "wordpiece", {"text": "unbelievable tokens"}),
    ("tokenizer", "bpe", {"text": "unbelievable tokens"}),
    ("embeddings", "minilm", {"tokenizer": "wordpiece", "embed_dim": 384}),
    ("embeddings", "smollm2", {"tokenizer": "bpe", "embed_dim": 576, "kdim": 576}),
    ("batch", 3, RANDOM),
    ("q_len", 7, RANDOM),
    ("k_len", 5, RANDOM),
    ("distribution", "uniform", RANDOM),
    ("positions", "sinusoidal", {}),
    ("positions", "rotary", {}),
    ("num_heads", 2, {}),
    ("embed_dim", 40, {}),
    ("num_kv_heads", 2, {}),
    ("head_size", 7, {}),
    ("kdim", 11, {}),
    ("vdim", 13, {}),
    ("bias", False, {"init_bias": "torch_default"}),
    ("dropout", 0.5, {}),
    ("scale", 1.5, {}),
    ("rope_theta", 50.0, {"positions": "rotary"}),
    ("mask", ("padding", "causal"), {"text": "one two three\nfour five"}),
    ("window", 1, {"mask": ("local",)}),
    ("direction", "back", {"mask": ("local",)}),
    ("alignment", "top_left", {"mask": ("causal",)} | CROSS),
    ("fill", "-1e4", {"mask": ("causal",)}),
    ("custom_mask", ("1111", "0110", "0001", "1000"), {"mask": ("custom",), "custom_mask": ("1111",) * 4}),
    ("init", "orthogonal", {}),
    ("gain", 3.0, {}),
    ("init_std", 0.5, {"init": "normal"}),
    ("init_targets", ("q", "out"), {"init": "constant"}),
    ("init_bias", "torch_default", {}),
    ("init_packed", True, FUSED),
    ("projection", "fused", {}),
    ("qkv_layout", "interleaved", FUSED),
    ("head_split", "einops", {}),
    ("kernel", "chunked", {}),
    ("kernel", "sdpa", {}),
    ("dtype", "bfloat16", {}),
    ("seed", 1234, {}),
)


GIVEN: dict[str, Any] = {"source": "pretrained", "text": "the cat sat on the mat"}
LAYER_MOVES: dict[str, tuple[Any, dict[str, Any]]] = {
    "model": ("minilm", GIVEN),
    "layer": (1, GIVEN),
    "own_mask": (False, GIVEN),
    "replaced": (("q", "v"), GIVEN | {"init": "orthogonal"}),
    "muted": (("0.1", "1.2"), GIVEN | {"layer": 1}),
    "reach": ("all", GIVEN | {"scale": 0.1, "layer": 1}),
    "checkpoint_layer": (1, {"source": "checkpoint"}),
}


def opened(**fields: Any) -> Any:
    return open_page(**{name: FIELDS[name].write(value) for name, value in fields.items()})


def check(page: Any, expected: Experiment) -> None:
    """The address, the large map and the grid are those of an experiment."""
    assert shown(page) == expected
    result = run(expected)
    allowed = result.allowed[0].numpy()
    weights = np.where(allowed, result.weights[0].float().numpy(), np.nan)
    assert np.array_equal(large_map(page).values, weights[0], equal_nan=True)
    message = grid(page)
    assert np.array_equal(message.levels == 0, ~allowed)
    off = np.abs(message.values() - weights)
    assert np.all(np.isnan(off) | (off <= message.tolerance()))


def test_every_field_has_its_control() -> None:
    assert {name for name, _, _ in MOVES} | set(LAYER_MOVES) | {"checkpoint"} == set(FIELDS)


@pytest.mark.parametrize("name", LAYER_MOVES)
def test_moving_a_control_of_a_given_layer(name: str, tmp_path: Path) -> None:
    """Those that only a layer of a trained model or of a checkpoint has; a checkpoint itself is uploaded."""
    value, first = LAYER_MOVES[name]
    if first["source"] == "checkpoint":
        first = first | {"checkpoint": str(write(tmp_path, bert())), "num_heads": 5}
    else:
        first = {"model": str(save(MAKERS["gpt2"], tmp_path / "first", with_tokenizer=True))} | first
    page = opened(**first)
    check(page, Experiment.from_fields(first))
    set_widget(page, name, list(value) if isinstance(value, tuple) else value)
    check(page, Experiment.from_fields(first | {name: value}))


@pytest.mark.parametrize(("name", "value", "first"), MOVES, ids=[f"{name}={value}" for name, value, _ in MOVES])
def test_moving_a_control_changes_the_experiment(name: str, value: Any, first: dict[str, Any]) -> None:
    before = (RANDOM if first is RANDOM else BASE) | first
    page = opened(**before)
    check(page, Experiment.from_fields(before))
    typed = "\n".join(value) if name == "custom_mask" else list(value) if isinstance(value, tuple) else value
    set_widget(page, name, typed)
    check(page, Experiment.from_fields(before | {name: value}))


@pytest.mark.parametrize("name", ["num_kv_heads", "head_size", "kdim", "vdim", "scale"])
def test_an_optional_number_may_be_emptied(name: str) -> None:
    given = {"num_kv_heads": 2, "head_size": 7, "kdim": 11, "vdim": 13, "scale": 2.0}[name]
    page = opened(**BASE, **{name: given})
    assert shown(page) == Experiment.from_fields(BASE | {name: given})
    set_widget(page, name, None)
    check(page, Experiment.from_fields(BASE))


def test_flags_in_any_order_are_the_same_experiment() -> None:
    page = opened(**BASE)
    set_widget(page, "mask", ["causal", "padding"])
    check(page, Experiment.from_fields(BASE | {"mask": ("padding", "causal")}))
    set_widget(page, "mask", [])
    check(page, Experiment.from_fields(BASE))


def test_the_second_text_comes_and_goes() -> None:
    page = opened(**BASE)
    set_widget(page, "second_text", True)
    given = whole(page).get_by_key("field_memory_text").value
    assert given.strip()
    check(page, Experiment.from_fields(BASE | {"memory_text": given}))
    set_widget(page, "second_text", False)
    check(whole(page), Experiment.from_fields(BASE))


def test_controls_appear_with_what_they_belong_to() -> None:
    def names(**fields: Any) -> set[str]:
        page = opened(**BASE | fields)
        kinds = (page.number_input, page.slider, page.text_area, page.selectbox, page.toggle, page.button_group)
        return {str(widget.key).removeprefix("field_") for group in kinds for widget in group}

    always = names()
    assert {"text", "num_heads", "embed_dim", "mask", "init", "projection", "kernel", "seed"} <= always
    conditions: dict[str, dict[str, Any]] = {
        "window": {"mask": ("local",)},
        "direction": {"mask": ("local",)},
        "custom_mask": {"mask": ("custom",), "custom_mask": ("1111",) * 4},
        "rope_theta": {"positions": "rotary"},
        "init_std": {"init": "trunc_normal"},
        "init_packed": FUSED,
        "qkv_layout": FUSED,
        "q_len": {"source": "random"},
        "memory_text": CROSS,
    }
    for name, fields in conditions.items():
        assert name not in always
        assert name in names(**fields)


@pytest.mark.parametrize(
    ("name", "value", "appears"),
    [
        ("source", "random", "q_len"),
        ("positions", "rotary", "rope_theta"),
        ("mask", ["local"], "window"),
        ("init", "normal", "init_std"),
        ("projection", "fused", "qkv_layout"),
        ("second_text", True, "memory_text"),
    ],
)
def test_what_a_control_brings_is_there_at_once(name: str, value: Any, appears: str) -> None:
    """In the same answer: a fragment's answer alone would leave the sidebar as it was."""
    page = set_widget(opened(**BASE), name, value)
    assert page.get_by_key(f"field_{appears}").value is not None or appears == "rope_theta"


@pytest.mark.parametrize(("name", "value"), [("num_heads", 24), ("seed", 2**53 - 1), ("window", 40), ("head", 3)])
def test_numbers_beyond_a_widget_come_through_the_link(name: str, value: int) -> None:
    """A link may hold more than the slider offers; another control must not pull the number back."""
    page = open_page(text="one two three four", embed_dim="48", mask="local", **{"num_heads": "4", name: str(value)})
    before = shown(page)
    set_widget(page, "gain", 2.0)
    found = shown(whole(page))
    assert found.init.gain == 2
    assert (found.attention, found.mask, found.seed) == (before.attention, before.mask, before.seed)


def test_the_largest_seed_survives_another_control() -> None:
    page = open_page(seed=str(2**63 - 1))
    set_widget(page, "gain", 2.0)
    assert shown(whole(page)).seed == 2**63 - 1


def test_reset_returns_to_the_default() -> None:
    page = opened(**BASE | {"mask": ("causal",), "seed": 5, "gain": 2.0})
    (button,) = [button for button in page.button if "Reset" in button.label]
    button.click()
    page.run()
    assert not page.exception
    check(whole(page), Experiment())
    assert whole(page).get_by_key("field_seed").value == 0


def test_an_uploaded_mask_is_used() -> None:
    page = opened(**BASE | {"mask": ("custom",), "custom_mask": ("1111",) * 4})
    page.file_uploader[0].upload("mask.csv", b"1,0,0,0\n1,1,0,0\n1,1,1,0\n1,1,1,1\n")
    page.run()
    assert not page.exception
    rows = ("1000", "1100", "1110", "1111")
    check(page, Experiment.from_fields(BASE | {"mask": ("custom",), "custom_mask": rows}))


def test_a_lesson_and_its_repair_through_the_slider() -> None:
    page = opened(**BASE)
    set_widget(page, "num_heads", 7)
    assert page.error
    assert grid(page).header["heads"] == 4  # the last experiment that worked
    press(page, next(str(b.key) for b in page.button if b.label.endswith("heads 8")))
    assert page.get_by_key("field_num_heads").value == 8  # the sidebar follows in the same answer
    check(page, Experiment.from_fields(BASE | {"num_heads": 8}))
