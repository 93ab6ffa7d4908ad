"""That the yardstick itself is straight: every report is there or excused, and every good module is right by
properties that need no doctor (what reaches what, order, padding, repeatability).
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from mha_core.doctor.report import CHECK_IDS
from tests.doctor.specimens import Specimen, all_of

NUMBERS = {
    "AM": (1, 3, 5),
    "BF": (2,),
    "CA": (2, 4, 6, 8),
    "CD": (1, 3, 5, 8),
    "DR": (1, 3, 5),
    "DV": (1, 3, 5),
    "FL": (1, 3, 4, 7, 9),
    "FM": (2, 4, 6),
    "GQ": (2, 4),
    "GR": (2, 4),
    "HS": (1, 3, 5, 7, 9),
    "IN": (1, 3, 5),
    "MD": (2, 4, 6),
    "ME": (2,),
    "MP": (1, 3, 5),
    "MS": (1, 3, 5, 7),
    "MV": (2, 4, 6, 8, 10),
    "PO": (2, 4),
    "QL": (2, 4, 6, 8),
    "SC": (1, 3, 5, 7),
    "SD": (2,),
    "WR": (2, 4, 6),
}
REPORTS = {f"{kind}-{number:02}" for kind, numbers in NUMBERS.items() for number in numbers}
RIGHT = {  # the report is of something right: there is a good module for it
    "DV-05": "untied_head_dim",
    "DR-05": "output_dropout",
    "FM-04": "pair_mask_square",
    "MD-04": "float_causal_bool_padding",
    "SC-05": "root_taken_twice",
    "WR-04": "fairseq_multihead",
}
NO_MODULE = {
    "CD-03": "query and key of different batch sizes: a mistake of the caller",
    "FL-01": "counting of operations",
    "FL-03": "counting of operations",
    "FL-04": "counting of operations",
    "FL-07": "counting of operations",
    "FL-09": "counting of operations",
    "ME-02": "memory arithmetic",
    "GR-04": "an initialisation loop outside the module",
    "IN-01": "the spread of torch's own initial values",
    "IN-05": "a constructor's meaning of bias=False, mended since",
    "PO-04": "slopes that only a published checkpoint can contradict",
    "QL-02": "the order of rows in a checkpoint",
    "QL-04": "the orientation of a checkpoint's matrices",
    "QL-06": "the names in a checkpoint",
    "QL-08": "the order of rows in a checkpoint",
    "SC-07": "T5's weights under a scale: nothing but the checkpoint tells",
}
GOOD, BAD = all_of("good"), all_of("bad")
BATCH, TOKENS, SOURCE, FEW = 3, 7, 5, 2
WIDTHS = ("embed_dim", "d_model", "dim", "n_embd", "hidden_size", "embed_size", "num_hiddens", "hidden_dim", "n_state")
WIDTHS += ("features", "channels", "width", "hidden", "d")


def test_every_report_has_a_module_or_a_reason() -> None:
    assert len(REPORTS) == 68
    assert {bad.header["case"] for bad in BAD} - {"own"} == REPORTS - set(RIGHT) - set(NO_MODULE)
    assert set(RIGHT.values()) <= {good.name for good in GOOD}
    assert sum(bad.header["case"] == "own" for bad in BAD) >= 25
    assert len(GOOD) >= 40


@pytest.mark.parametrize("specimen", BAD, ids=[bad.name for bad in BAD])
def test_a_bad_header_is_whole(specimen: Specimen) -> None:
    assert specimen.words("expect") <= set(CHECK_IDS)
    assert specimen.words("expect")
    assert specimen.wrong
    assert not specimen.fixes or len(specimen.fixes) == len(specimen.wrong)


class Probe:
    """A good module, called as its header says."""

    def __init__(self, specimen: Specimen) -> None:
        torch.manual_seed(0)
        self.header = specimen.header
        self.module = specimen.build()
        self.names = dict(vars(sys.modules[type(self.module).__module__]), m=self.module, torch=torch)
        self.heads = eval(self.header["heads"]) if "heads" in self.header else None
        self.cross = int(self.header["cross"]) if "cross" in self.header else None
        self.tokens = int(self.header.get("sizes", TOKENS))
        self.masked = "keep" in self.header["probe"]
        self.context = self.draw(2, SOURCE, self.cross) if self.cross else None
        self.call(self.draw(1), self.keeps())  # lazy layers take their width
        self.module.eval()
        for parameter in self.module.parameters() if "trivial" in self.header else ():
            torch.nn.init.normal_(parameter, std=0.2)

    @property
    def width(self) -> int:
        kwargs = eval(self.header["kwargs"], dict(self.names))
        sizes: Any = kwargs if "config" not in kwargs else vars(kwargs["config"])
        return int(self.header.get("embed") or next(sizes[name] for name in WIDTHS if name in sizes))

    def draw(self, seed: int, tokens: int | None = None, width: int | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (BATCH, tokens or self.tokens, width or (self.heads[0] * self.heads[1] if self.heads else self.width))
        return torch.randn(shape, generator=generator)

    def keeps(self) -> Tensor:
        return torch.ones(BATCH, SOURCE if self.cross else self.tokens, dtype=torch.bool)

    def call(self, x: Tensor, keep: Tensor, context: Tensor | None = None) -> Tensor:
        given = x.unflatten(-1, self.heads).transpose(1, 2) if self.heads else x
        self.names.update(x=given, keep=keep, y=self.context if context is None else context)
        output = eval(self.header["probe"], self.names)
        while isinstance(output, tuple):
            output = output[0]
        return output.transpose(1, 2).flatten(2) if self.heads else output

    def expected_reach(self) -> Tensor:
        """(S, S) bool: which token may move which output."""
        row, column = torch.arange(self.tokens)[:, None], torch.arange(self.tokens)[None, :]
        reach = torch.ones(self.tokens, self.tokens, dtype=torch.bool)
        if "causal" in self.header:
            reach &= column <= row
        return reach & ((row - column).abs() < int(self.header.get("window", self.tokens)))


@pytest.mark.parametrize("specimen", GOOD, ids=[good.name for good in GOOD])
def test_a_good_module_is_right(specimen: Specimen) -> None:
    probe = Probe(specimen)
    x, keep = probe.draw(1), probe.keeps()
    output = probe.call(x, keep)
    assert output.shape[:2] == (BATCH, probe.tokens)
    torch.testing.assert_close(output, probe.call(x, keep), atol=0.0, rtol=0.0)
    others(probe, x, keep)
    if probe.masked:
        padding(probe, x, keep)
    if not {"causal", "window", "positions", "no_permutation", "cross"} & set(probe.header):
        order = torch.randperm(probe.tokens)
        torch.testing.assert_close(probe.call(x[:, order], keep), output[:, order], atol=1e-5, rtol=1e-4)


def others(probe: Probe, x: Tensor, keep: Tensor) -> None:
    """Every output depends on the tokens that it may see, and on nothing else."""
    source = (x if probe.context is None else probe.context).requires_grad_()
    output = probe.call(x, keep)
    rows = [torch.autograd.grad(output[1, i].square().sum(), source, retain_graph=True)[0] for i in range(probe.tokens)]
    moved = torch.stack(rows).abs().sum(-1)  # (S, B, tokens of the source)
    assert not moved[:, [0, 2]].any()
    wanted = torch.ones(moved.shape[0], moved.shape[2]).bool() if probe.cross else probe.expected_reach()
    assert torch.equal(moved[:, 1] > 1e-12, wanted)
    source.requires_grad_(False)


def padding(probe: Probe, x: Tensor, keep: Tensor) -> None:
    """What a hidden token holds changes no other token's output, and hiding is the same as not being there."""
    keep = keep.clone()
    keep[1, -FEW:] = False
    source = x if probe.context is None else probe.context
    filled = source.clone()
    filled[1, -FEW:] = 5.0
    short = source[1:2, :-FEW]
    if probe.context is None:
        shown = keep
        hidden, other, alone = probe.call(x, keep), probe.call(filled, keep), probe.call(short, keep[1:2, :-FEW])
    else:
        shown = torch.ones(x.shape[:2], dtype=torch.bool)
        hidden, other = probe.call(x, keep), probe.call(x, keep, filled)
        alone = probe.call(x[1:2], keep[1:2, :-FEW], short)
    assert not torch.equal(probe.call(x, torch.ones_like(keep)), hidden)
    torch.testing.assert_close(other[shown], hidden[shown], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(alone, hidden[1:2, : alone.shape[1]], atol=1e-5, rtol=1e-4)
