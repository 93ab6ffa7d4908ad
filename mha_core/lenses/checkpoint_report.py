"""The report on a checkpoint: its attention layers, what follows from the file, the numbers, and what is odd.

`outline` reads no numbers beyond small buffers; `layer_report` reads one layer; `report` does it for all. At most one
layer's tensors are held at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mha_core.errors import MhaError, Suggestion
from mha_core.lenses.checkpoint_blocks import Block, Heads, layer_blocks, settle_heads, turned
from mha_core.lenses.checkpoint_flags import (
    Flag,
    buffer_flags,
    complex_flags,
    head_flags,
    matrix_flags,
    mixed_formats,
    orientation_flags,
    pair_flags,
)
from mha_core.lenses.checkpoint_fused import FusedEvidence, judge
from mha_core.lenses.checkpoint_init import Resemblance, resemble
from mha_core.lenses.checkpoint_stats import MatrixStats, describe
from mha_core.sources.checkpoints.file import Checkpoint
from mha_core.sources.families import find_layers
from mha_core.sources.families.found_layer import FoundLayer


@dataclass(frozen=True)
class LayerReport:
    """What is known of one layer.

    Attributes:
        number: in the order of the file's layers. heads: counts used; None where they do not follow.
        matrices: numbers of each matrix and bias. resemblances: what each looks like, in the same order.
        fused: evidence for the order of a fused matrix; None where there is none.
    """

    number: int
    layer: FoundLayer
    heads: Heads | None
    matrices: tuple[MatrixStats, ...]
    resemblances: tuple[Resemblance, ...]
    flags: tuple[Flag, ...]
    fused: FusedEvidence | None


@dataclass(frozen=True)
class Outline:
    """What a checkpoint holds, before any matrix is read.

    Attributes:
        name, format, notes: of the file. tensors: their number. size_bytes: of all numbers.
        parameters: numbers in the attention layers. layers: all that were found.
        flags: mask buffers that are no weights, or that nothing was found.
    """

    name: str
    format: str
    notes: tuple[str, ...]
    tensors: int
    size_bytes: int
    attention_bytes: int
    layers: tuple[FoundLayer, ...]
    flags: tuple[Flag, ...]


@dataclass(frozen=True)
class Report:
    """The outline, every layer that was asked for, and all flags of both."""

    outline: Outline
    layers: tuple[LayerReport, ...]

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Everything that was found, problems first."""
        found = [*self.outline.flags, *(flag for layer in self.layers for flag in layer.flags)]
        return tuple(sorted(found, key=lambda flag: flag.severity != "problem"))


def outline(checkpoint: Checkpoint) -> Outline:
    """List the attention layers of a checkpoint and its mask buffers.

    Raises:
        MhaError: field "checkpoint"; a buffer cannot be read.
    """
    layers = find_layers(checkpoint.shapes, checkpoint.config)
    used = frozenset(name for layer in layers for name in layer.tensors.values())
    flags = list(buffer_flags(checkpoint.tensors, used, checkpoint.tensor))
    if not layers:
        words = "no attention layer was found: no tensors are named and shaped like q, k, v and an output projection"
        flags.append(Flag("no_layers", "problem", checkpoint.name, words))
    sizes = {name: info.size_bytes for name, info in checkpoint.tensors.items()}
    attention = sum(sizes[name] for name in used)
    return Outline(
        checkpoint.name,
        checkpoint.format,
        tuple(checkpoint.notes),
        len(sizes),
        sum(sizes.values()),
        attention,
        layers,
        tuple(flags),
    )


def choose_layer(layers: Sequence[FoundLayer], layer: str | int) -> int:
    """Find a layer by its number or name.

    Raises:
        MhaError: field "layer"; there is none, or the name fits several.
    """
    if isinstance(layer, int) or layer.isdecimal():
        if int(layer) < len(layers):
            return int(layer)
    else:
        named = [number for number, found in enumerate(layers) if found.name == layer]
        if len(named) == 1:
            return named[0]
    last = len(layers) - 1
    need = f"a number from 0 to {last}, or a name of the table" if layers else "a file with attention layers"
    raise MhaError("layer", layer, need, [Suggestion((("layer", 0),))] if layers else [])


def _fused_evidence(
    checkpoint: Checkpoint, layer: FoundLayer, heads: Heads | None, likenesses: Sequence[Resemblance]
) -> FusedEvidence | None:
    name = layer.tensors.get("qkv")
    if name is None or checkpoint.tensors[name].dtype.startswith("complex"):
        return None
    fresh = any(likeness.kind in ("fresh", "zeros", "constant", "orthogonal") for likeness in likenesses)
    packing = "interleaved" if layer.packing == "interleaved" else "stacked"
    return judge(turned(layer, checkpoint.tensor(name)), heads, packing, fresh)


def _likeness(block: Block, stats: MatrixStats, depth: int, kv_rows: int) -> Resemblance:
    """Say what a matrix resembles; a separate q, k or v may have been cut from a packed one."""
    if block.role.endswith("_bias"):
        if stats.moments.largest == 0:
            return Resemblance("zeros", "all zeros, as most libraries start a bias")
        return Resemblance("unclear", "not zero: trained, or drawn")
    if block.role == "out":
        return resemble(block.matrix, stats, None, depth)
    may_be_cut = block.role in ("q", "k", "v") and block.packed_rows is None
    packed = 3 * block.matrix.shape[0] if may_be_cut and block.matrix.shape[0] == kv_rows else block.packed_rows
    return resemble(block.matrix, stats, packed)


def layer_report(
    checkpoint: Checkpoint,
    found: Outline,
    number: int,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
) -> LayerReport:
    """Read one layer and describe it.

    Args:
        found: the checkpoint's outline. number: of the layer.
        num_heads, num_kv_heads: head counts where they do not follow, or to look at it otherwise.

    Raises:
        MhaError: field "checkpoint"; a tensor cannot be read.
    """
    layer = found.layers[number]
    heads = settle_heads(layer, num_heads, num_kv_heads)
    blocks = layer_blocks(layer, checkpoint.tensor, heads)
    stats = tuple(describe(block.role, block.tensor, block.matrix, block.heads) for block in blocks)
    likenesses = tuple(
        _likeness(block, described, len(found.layers), layer.kv_rows)
        for block, described in zip(blocks, stats, strict=True)
    )
    matrices = [(b, lik) for b, lik in zip(blocks, likenesses, strict=True) if b.role in ("q", "k", "v", "qkv")]
    fused = _fused_evidence(checkpoint, layer, heads, [likeness for _, likeness in matrices])
    flags = [
        *head_flags(layer, num_heads, num_kv_heads),
        *(flag for described in stats for flag in matrix_flags(described)),
        *pair_flags(blocks, stats, layer.name),
        *complex_flags(layer, checkpoint.tensors),
        *orientation_flags(layer, blocks, heads),
        *mixed_formats(stats, layer.name),
    ]
    if fused is not None and fused.agrees is False:
        flags.append(Flag("fused_layout", "problem", layer.tensors["qkv"], fused.verdict))
    return LayerReport(number, layer, heads, stats, likenesses, tuple(flags), fused)


def report(
    checkpoint: Checkpoint,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    layer: str | int | None = None,
) -> Report:
    """Describe a checkpoint.

    Args:
        num_heads, num_kv_heads: head counts where they do not follow from the file or its config.
        layer: number or name of one layer; None means all.

    Raises:
        MhaError: field "layer", no such layer; field "checkpoint", a tensor cannot be read.
    """
    found = outline(checkpoint)
    numbers = range(len(found.layers)) if layer is None else [choose_layer(found.layers, layer)]
    return Report(found, tuple(layer_report(checkpoint, found, n, num_heads, num_kv_heads) for n in numbers))
