"""Page Doctor: an error text explained, a module checked up, a report read, and no code run that is not allowed."""

from __future__ import annotations

import json
import time

import pytest
from streamlit.testing.v1 import AppTest

from mha_core.doctor.report import CHECK_IDS, CheckResult, Place, Report
from mha_core.errors import MhaError
from tests.ui.page import fine, link, open_page, press, texts
from ui import doctor_module

DOCTOR = "pages/8_Doctor.py"
PATIENCE_S = 120
BROKEN = '''
import torch
from torch import nn

class Attention(nn.Module):
    """<b>bold</b> attention over x (B, S, E)."""
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.H = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)

    def forward(self, x):
        B, S, E = x.shape
        q, k, v = (t.view(B, S, self.H, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = (q @ k.transpose(-2, -1) / E**0.5).softmax(0)
        return (weights @ v).transpose(1, 2).reshape(B, S, E)
'''


def plain(page: AppTest) -> str:
    return texts(page).replace("\\", "")


def done(page: AppTest) -> AppTest:
    """The page when its check-up is over."""
    end = time.monotonic() + PATIENCE_S
    while any(button.key == "cancel_checkup" for button in fine(page.run()).button):
        assert time.monotonic() < end, "the check-up did not end"
        time.sleep(0.2)
    return page


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHA_LAB_ALLOW_CODE", "1")


def own_code(**filled: str) -> AppTest:
    """The page with code of one's own and what is said about it."""
    page = open_page(DOCTOR, doctor_view="module")
    page.segmented_control[1].set_value("own").run()
    page.text_area(key="doctor_code").set_value(BROKEN)
    for key, value in filled.items():
        page.text_input(key=f"doctor_{key}").set_value(value)
    return fine(page.run())


def test_it_opens_with_an_explained_example_and_no_controls_of_the_experiment():
    page = open_page(DOCTOR)
    assert "7 x 73 = 511" in plain(page)
    assert not page.sidebar.text_area
    assert "num_heads" not in link(page)


def test_a_pasted_text_is_explained_with_the_sizes_given_and_stays_out_of_the_link():
    page = open_page(DOCTOR)
    page.text_area[0].set_value("shape '[3, 14, 5, 20]' is invalid for input of size 4326").run()
    assert "5 x 20 = 100" in plain(page), "4326 = 3 x 14 x 103"
    assert "103" in plain(page)
    assert "4326" not in str(link(page))


def test_an_unknown_text_is_called_unknown_and_its_markup_is_shown_as_it_is():
    page = open_page(DOCTOR)
    page.text_area[0].set_value("KeyError: '**bold** <script>alert(1)</script>'").run()
    assert "not known" in plain(page)
    assert "**bold**" not in texts(page), "only with its stars escaped"


def test_without_permission_the_page_says_what_to_run_and_offers_no_box(monkeypatch):
    monkeypatch.delenv("MHA_LAB_ALLOW_CODE", raising=False)
    page = open_page(DOCTOR, doctor_view="module")
    page.segmented_control[1].set_value("own").run()
    assert any("python -m mha_core doctor" in code.value for code in page.code)
    assert not page.text_area
    assert all(button.key != "doctor_begin" for button in page.button)


@pytest.mark.usefixtures("allowed")
def test_pasted_code_is_checked_up_in_a_process_of_its_own():
    page = own_code(kwargs='{"embed_dim": 35, "num_heads": 5}')
    page = done(press(page, "doctor_begin"))
    said = plain(page)
    assert "verdict: fail" in said
    assert "softmax" in said
    assert any("softmax(0)" in code.value for code in page.code), "the wrong line is shown"
    assert "embed_dim 35" in said, "the arguments reached the constructor"


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("filled", "said"),
    [
        ({"kwargs": "[1"}, "object of JSON"),
        ({"kwargs": '{"embed_dim": 35, "num_heads": 5}', "target": "Nothing"}, "Nothing"),
    ],
)
def test_what_cannot_be_run_is_a_sentence(filled, said):
    page = done(press(own_code(**filled), "doctor_begin"))
    assert len(page.error) == 1
    assert said in plain(page)


def test_a_report_of_the_command_becomes_cards():
    checks = [CheckResult(name, "pass", "fine") for name in CHECK_IDS]
    checks[2] = CheckResult(
        "causality", "fail", "token 3 moves output 1", {"leak": 0.25}, "no *mask*", Place("a.py", 7)
    )
    report = Report("Mine", {"embed_dim": 13}, tuple(checks))

    raw = json.dumps(report.as_dict())
    assert doctor_module.read(raw.encode()) == report

    def draw(raw: str) -> None:
        from ui import doctor_cards, doctor_module

        doctor_cards.draw(doctor_module.read(raw.encode()), "report")

    page = fine(AppTest.from_function(draw, args=(raw,)).run())
    assert page.expander[0].label == "Passed: " + ", ".join(
        name.replace("_", " ") for name in CHECK_IDS if name != "causality"
    )
    assert "Token 3 moves output 1" in plain(page)
    assert "no *mask*" in plain(page)
    assert "no *mask*" not in texts(page), "only with its stars escaped"
    assert "a.py, line 7" in plain(page)


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"module": "a", "assumed": {}, "checks": [{"id": "x"}]}', b"\xff"]
)
def test_what_is_no_report_is_refused(raw):
    with pytest.raises(MhaError, match="no report of the doctor"):
        doctor_module.read(raw)
