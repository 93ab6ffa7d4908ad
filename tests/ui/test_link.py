"""The address of the page is its state: it seeds a session, follows every change, and never breaks the page.

Whatever stands in a link, the page opens: what can be used is used, what cannot is named on the page and replaced by
the default. Sessions know nothing of one another.
"""

from __future__ import annotations

import base64
import random
import zlib
from typing import Any

import pytest

from mha_core import Experiment, run
from mha_core.fields import FIELDS
from tests.ui.page import ATTENTION, grid, large_map, link, open_page, set_widget, shown, texts, whole

VIEW = ("stage", "colour", "pooling", "head", "sequence", "panel", "queries", "combine", "line_heads")


def packed(text: str) -> str:
    """A long text as the links carry it: "~" and base64 of deflated UTF-8, damaged characters included."""
    return "~" + base64.urlsafe_b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"))).decode().rstrip("=")


@pytest.mark.parametrize("script", [ATTENTION, "app.py"])
def test_a_link_seeds_the_page(script: str) -> None:
    fields: dict[str, Any] = {"text": "one two three\nfour", "num_heads": 4, "embed_dim": 24, "mask": ("padding",)}
    page = open_page(script, **{name: FIELDS[name].write(value) for name, value in fields.items()})
    assert shown(page) == Experiment.from_fields(fields)
    assert page.get_by_key("field_num_heads").value == 4
    assert page.get_by_key("field_embed_dim").value == 24
    assert page.get_by_key("field_text").value == fields["text"]
    assert page.get_by_key("field_mask").value == ["padding"]
    assert grid(page).header["heads"] == 4


def test_the_address_holds_what_differs_and_nothing_else() -> None:
    page = open_page()
    assert link(page) == {}
    set_widget(page, "num_heads", 4)
    assert link(page) == {"num_heads": "4"}
    set_widget(page, "stage", "scores")
    assert link(page) == {"num_heads": "4", "stage": "scores"}
    set_widget(page, "num_heads", 8)
    assert link(page) == {"stage": "scores"}


def test_a_copied_address_shows_the_same_page() -> None:
    first = open_page(num_heads="4", embed_dim="24", text=packed("a long text " * 30), panel="bars", queries="3,5")
    set_widget(first, "seed", 11)
    second = open_page(**link(first))
    assert link(second) == link(first)
    assert large_map(second).values.tobytes() == large_map(first).values.tobytes()
    assert grid(second).header == grid(first).header


def test_an_address_that_lags_behind_undoes_nothing() -> None:
    """A rerun carries the address the browser knew when it asked; an address that is typed starts a new session."""
    page = open_page(num_heads="4", mask="causal")
    page.query_params.clear()
    page.query_params["num_heads"] = "2"
    page.run()
    assert shown(page) == Experiment.from_fields({"num_heads": 4, "mask": ("causal",)})
    assert page.get_by_key("field_num_heads").value == 4


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"num_heads": "many"}, ("num_heads", "many")),
        ({"num_heads": "0"}, ("num_heads",)),
        ({"num_heads": "9" * 5000}, ("num_heads",)),
        ({"mask": "diagonal"}, ("mask", "diagonal")),
        ({"scale": "nan"}, ("scale",)),
        ({"gain": "-1"}, ("gain",)),
        ({"bias": "perhaps"}, ("bias",)),
        ({"custom_mask": "012"}, ("custom", "'2'")),
        ({"text": "~damaged"}, ("text",)),
        ({"stage": "fourth"}, ("stage",)),
        ({"head": "-1"}, ("head",)),
        ({"queries": "1,x"}, ("queries",)),
        ({"color": "red"}, ("'color'",)),
    ],
    ids=lambda value: "".join(value)[:20],
)
def test_what_cannot_be_used_is_named(query: dict[str, str], words: tuple[str, ...]) -> None:
    page = open_page(**query, seed="3")
    said = texts(page).replace("\\", "")
    assert "could not be used" in said
    assert [word for word in words if word not in said] == []
    assert shown(page) == Experiment.from_fields({"seed": 3})
    assert not set(query) & set(link(page))


def test_the_problems_may_be_dismissed() -> None:
    page = open_page(num_heads="many")
    (button,) = [button for button in page.button if button.label == "Understood"]
    button.click()
    page.run()
    assert not page.exception
    assert "could not be used" not in texts(page)


def test_many_problems_are_not_all_listed() -> None:
    page = open_page(**{f"unknown{number}": "1" for number in range(40)})
    named = sum(f"unknown{number}'" in texts(page) for number in range(40))
    assert 0 < named < 40
    assert f"{40 - named} more" in texts(page)


@pytest.mark.parametrize("field", ["text", "memory_text"])
def test_half_a_character_in_a_link(field: str) -> None:
    """A packed text may hold lone surrogates, which no browser and no message can carry."""
    open_page(**{field: packed("a \ud800 b")})


def test_sessions_do_not_share_state() -> None:
    first, second = open_page(), open_page()
    set_widget(first, "num_heads", 4)
    set_widget(first, "stage", "scores")
    set_widget(first, "num_heads", 7)
    second.run()
    assert link(second) == {}
    assert not second.error
    assert grid(second).header["heads"] == 8
    assert grid(whole(first)).header["heads"] == 4
    third = open_page()
    assert link(third) == {}
    assert large_map(third).values.tobytes() == run(Experiment()).weights[0, 0].numpy().tobytes()


NUMBERS = (
    "0",
    "1",
    "2",
    "3",
    "7",
    "8",
    "12",
    "64",
    "-1",
    "1e3",
    "0.5",
    "nan",
    "inf",
    "none",
    "",
    " 4 ",
    "٣",
    "1_0",
    "99999",
)
STRANGE = (
    "",
    "none",
    "~",
    "~AAAA",
    "\x00",
    "<b>x</b>",
    "/",
    "1/0",
    "10/01",
    "a\nb",
    "👩‍👩‍👧",
    "%7E",
    "true",
    "\u202e",
    "~~",
)
WORDS = (*dict.fromkeys(word for field in FIELDS.values() for word in field.choices), "log", "scores", "similarity")
TEXTS = ("one two three", "a", "x\ny z\n\n w", "![i](http://e/x.png) $a$ :red[b]", "word " * 200, "\t", "[pad] [pad]")


def strange_query(seed: int) -> dict[str, str]:
    """A few settings with likely, unlikely and impossible values."""
    draw = random.Random(seed)
    names = draw.sample([*FIELDS, *VIEW, "unknown"], draw.randint(1, 12))
    query = {}
    for name in names:
        field = FIELDS.get(name)
        fitting = field.choices if field and field.choices else NUMBERS
        if name in ("text", "memory_text"):
            fitting = (*TEXTS, packed(draw.choice(TEXTS)))
        query[name] = draw.choice(fitting if draw.random() < 0.75 else draw.choice((NUMBERS, STRANGE, WORDS, TEXTS)))
    return query


@pytest.mark.parametrize("group", range(12))
def test_no_link_breaks_the_page(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that a strange link opens, and four more strange links to it."""
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", str(32 * 2**20))
    page = open_page(**strange_query(5 * group))
    for seed in range(5):
        query = strange_query(5 * group + seed)
        page.query_params.clear()
        for name, value in query.items():
            page.query_params[name] = value
        page.run()
        assert not page.exception, query
        assert len(page.get("bidi_component")) == 2, query
