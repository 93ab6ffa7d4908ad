"""Real q, k, v and output matrices for the tests: the layers of the two installed models, read without our readers."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from mha_core.errors import MhaError
from mha_core.sources.models.gguf_file import open_gguf
from mha_core.sources.models.weight_packages import find_weights

Layer = dict[str, Tensor]


@cache
def minilm() -> tuple[Layer, ...]:
    """The 6 layers of all-MiniLM-L6-v2, 12 heads of 32, each q, k, v, out (384, 384) and q_bias, k_bias, v_bias."""
    names = {"q": "self.query", "k": "self.key", "v": "self.value", "out": "output.dense"}
    try:
        path = find_weights("minilm")
    except MhaError:
        pytest.skip("the model's package is not installed")
    with safe_open(path, "pt") as file:
        return tuple(
            {role: file.get_tensor(f"encoder.layer.{n}.attention.{name}.weight") for role, name in names.items()}
            for n in range(6)
        )


@cache
def smollm2(*numbers: int) -> tuple[Layer, ...]:
    """Some layers of SmolLM2-135M, 9 heads of 64 with 3 key/value heads, 4-bit weights as float32."""
    pytest.importorskip("gguf")
    try:
        file = open_gguf(find_weights("smollm2"))
    except MhaError:
        pytest.skip("the model's package is not installed")

    def read(number: int, word: str) -> Tensor:
        name = f"blk.{number}.attn_{word}.weight"
        return torch.from_numpy(file.rows(name, range(file.tensors[name].shape[0])))

    words = {"q": "q", "k": "k", "v": "v", "out": "output"}
    return tuple({role: read(number, word) for role, word in words.items()} for number in numbers)
