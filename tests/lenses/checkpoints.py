"""Small checkpoint files for the tests of the inspector, written by torch and safetensors themselves."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.lenses.trained_layers import minilm

NAMES = {"q": "self.query", "k": "self.key", "v": "self.value", "out": "output.dense"}
StateDict = dict[str, Tensor]


def bert(layers: int = 2, width: int = 35, seed: int = 0) -> StateDict:
    """A fresh BERT-like state dict, normal with std 0.02, without biases."""
    generator = torch.Generator().manual_seed(seed)
    return {
        f"encoder.layer.{layer}.attention.{name}.weight": torch.randn(width, width, generator=generator) * 0.02
        for layer in range(layers)
        for name in NAMES.values()
    }


def trained_bert(layers: int = 2) -> StateDict:
    """The attention matrices of MiniLM's first layers under BERT's names."""
    return {
        f"encoder.layer.{layer}.attention.{NAMES[role]}.weight": matrix.clone()
        for layer, matrices in enumerate(minilm()[:layers])
        for role, matrix in matrices.items()
    }


def torch_layer(width: int = 60, heads: int = 5) -> StateDict:
    """A fresh nn.MultiheadAttention, seeded, named as a part of an encoder."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layer = nn.MultiheadAttention(width, heads)
    return {f"enc.0.self_attn.{name}": value.detach() for name, value in layer.state_dict().items()}


def write(folder: Path, state: StateDict, name: str = "model.safetensors") -> Path:
    """Write a state dict; the ending says how."""
    path = folder / name
    if path.suffix == ".safetensors":
        save_file({key: value.contiguous() for key, value in state.items()}, path)
    else:
        torch.save(state, path)
    return path
