"""The page of a report: complete, readable without a network, and with no text of foreign code taken as markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from mha_core.doctor.html_report import to_html
from mha_core.doctor.report import CheckResult, Place, Report

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
VOID = {"meta", "br", "img"}


class Reader(HTMLParser):
    """Reads tags in balance, and the text a person sees."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def hostile() -> Report:
    evidence = {ATTACK: ATTACK, "nested": {ATTACK: [ATTACK, [1, ATTACK]]}}
    place = Place(f"{ATTACK}.py", 7, f"q = {ATTACK}")
    checks = [
        CheckResult("reach", "fail", f"reason {ATTACK}", evidence, f"cause {ATTACK}", place),
        CheckResult("scale", "not_applicable", f"not asked {ATTACK}"),
    ]
    return Report(f"Module {ATTACK}", {f"call {ATTACK}": ATTACK}, tuple(checks))


def test_foreign_text_is_never_markup() -> None:
    page = to_html(hostile())
    reader = Reader(page)
    assert reader.open == []
    assert not {"script", "img"} & set(reader.tags)
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert "<script" not in page.lower()
    for part in (f"Module {ATTACK}", f"reason {ATTACK}", f"cause {ATTACK}", f"q = {ATTACK}", f"call {ATTACK}"):
        assert part in reader.text
    assert len(re.findall(re.escape(ATTACK), reader.text)) >= 11  # the title and the heading, and each place once


def test_it_stands_alone() -> None:
    page = to_html(hostile())
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|https?:", page.replace("src=x", ""))
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert page.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("status", "sentence"), [("fail", "Something is wrong"), ("by_design", "Nothing wrong was found")]
)
def test_what_a_reader_finds(status: str, sentence: str) -> None:
    checks = (
        CheckResult("padding", "pass", "fine", {"worst": 0.123456789, "ok": True, "rows": [3, 5], "none": None}),
        CheckResult("reach", status, "odd", {}, "a transpose is missing", Place("a.py", 23, "q = q.view(B, H, S, d)")),  # type: ignore[arg-type]
        CheckResult("gqa", "not_applicable", "not asked: why"),
        CheckResult("decode", "not_applicable", "not asked: why"),
    )
    text = Reader(to_html(Report("Attention (a.py)", {"embed_dim": 24}, checks))).text
    assert sentence in text
    assert "4 checks" in text
    assert "0.1235" in text
    assert "yes" in text
    assert "3, 5" in text
    assert "a.py:23 q = q.view(B, H, S, d)" in text
    assert "embed dim 24" in text
    assert text.count("not asked: why") == 1
    assert text.index("odd") < text.index("fine")  # what matters most comes first


def test_a_report_without_checks() -> None:
    assert "No check was asked for" in Reader(to_html(Report("A", {}, ()))).text
