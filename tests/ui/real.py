"""Page Real models in the tests: its head grids, and second copies of its models with transformers' own attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from streamlit.testing.v1 import AppTest
from torch import Tensor, nn

from mha_core.sources.models import loading as model_loading
from mha_core.sources.models.weight_packages import find_folder
from tests.core.small_models import eager
from tests.ui.page import (
    GridMessage,
    read_message,
    texts,
)

REAL = "pages/6_Real_models.py"
LINES = "The animal was tired\nStocks fell on Monday, said the bank\nA dog slept"


def grids(page: AppTest) -> dict[str, GridMessage]:
    """The head grids of a page by their keys."""
    found = [element.proto for element in page.get("bidi_component")]
    return {
        proto.id.split("-", 2)[2]: read_message(bytes(proto.bytes))
        for proto in found
        if proto.component_name == "mha_lab_head_grid"
    }


def check_maps(message: GridMessage, wanted: Tensor) -> None:
    """The maps of a message are these weights, (heads, rows, columns), as near as its levels are; hidden ones are 0."""
    off = np.abs(np.nan_to_num(message.values()) - wanted.numpy())
    assert message.levels.shape == tuple(wanted.shape)
    assert (off <= message.tolerance()).all()
    assert (wanted.numpy()[message.levels == 0] < 1e-12).all()


def said(page: AppTest) -> str:
    """What a page says, without Markdown's escapes."""
    return texts(page).replace("\\", "")


@torch.no_grad()
def answers(module: nn.Module, **given: Any) -> Any:
    """What a model of transformers answers, attention maps included."""
    return module(**given, output_attentions=True)


class MiniLM:
    """A second copy of MiniLM with the tokenizer of transformers."""

    def __init__(self) -> None:
        folder = find_folder("minilm")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.module = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()

    def read(self, text: str) -> dict[str, Tensor]:
        """A batch, one line per sequence."""
        return dict(self.tokenizer(text.splitlines(), return_tensors="pt", padding=True))

    def maps(self, text: str, sample: int = 0) -> Tensor:
        """All maps of one sequence, (layers, heads, S, S)."""
        return torch.stack(answers(self.module, **self.read(text)).attentions)[:, sample]

    def cosines(self, text: str) -> Tensor:
        """How alike the sentences are, (B, B): means over their tokens."""
        given = self.read(text)
        keep = given["attention_mask"].unsqueeze(-1)
        mean = (answers(self.module, **given).last_hidden_state * keep).sum(1) / keep.sum(1)
        return torch.nn.functional.cosine_similarity(mean[:, None], mean[None], dim=-1)


def copy_of(folder: str) -> tuple[nn.Module, Any]:
    """A second copy of a small model, and its tokenizer."""
    module = eager(folder, model_loading.load(folder).module)
    return module, transformers.AutoTokenizer.from_pretrained(folder)
