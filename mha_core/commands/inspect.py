"""`inspect`: the attention layers of a checkpoint file, what follows from it, its numbers, and what is odd."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mha_core.budget import spell_bytes
from mha_core.commands.options import EXIT_FINDING, EXIT_FINE, print_json
from mha_core.config import MAX_HEADS
from mha_core.errors import MhaError
from mha_core.lenses.checkpoint_report import LayerReport, Report, report
from mha_core.lenses.checkpoint_stats import HeadBlock, MatrixStats
from mha_core.sources.checkpoints.file import Checkpoint, open_checkpoint
from mha_core.sources.families.found_layer import FoundLayer

NAME_WIDTH, HEADS_TOLD = 46, 8


def printable(text: str) -> str:
    """Write a text from a file so that a terminal does not obey it: control characters become escapes."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _count(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= MAX_HEADS:
        raise MhaError(option, text, f"a whole number from 1 to {MAX_HEADS}")
    return int(text)


def _tensors(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    return [{"name": name} | asdict(info) for name, info in checkpoint.tensors.items()]


def _matrix(stats: MatrixStats, likeness: str, *, heads: bool) -> dict[str, Any]:
    spectrum = stats.spectrum and {name: v for name, v in asdict(stats.spectrum).items() if name != "values" or heads}
    found = {"role": stats.role, "tensor": stats.tensor, "shape": [stats.rows, stats.columns], "dtype": stats.dtype}
    found |= asdict(stats.moments) | {"spectrum": spectrum, "looks_like": likeness}
    return found | ({"heads": [_head(block) for block in stats.heads]} if heads else {})


def _head(block: HeadBlock) -> dict[str, Any]:
    spectrum = block.spectrum and {name: v for name, v in asdict(block.spectrum).items() if name != "values"}
    return {"head": block.head} | asdict(block.moments) | {"spectrum": spectrum}


def _layer(found: LayerReport, *, heads: bool) -> dict[str, Any]:
    layer = asdict(found.layer) | {"number": found.number, "heads_used": found.heads and asdict(found.heads)}
    pairs = zip(found.matrices, found.resemblances, strict=True)
    layer["matrices"] = [_matrix(stats, likeness.sentence, heads=heads) for stats, likeness in pairs]
    layer["fused"] = found.fused and asdict(found.fused)
    return layer


def answer(found: Report, checkpoint: Checkpoint, *, heads: bool, all_tensors: bool) -> dict[str, Any]:
    """Give the report as plain data; `heads` also gives every head and all singular values."""
    outline = {name: value for name, value in vars(found.outline).items() if name not in ("layers", "flags")}
    described = outline | {"layers": [_layer(layer, heads=heads) for layer in found.layers]}
    described["flags"] = [asdict(flag) for flag in found.flags]
    return described | ({"all_tensors": _tensors(checkpoint)} if all_tensors else {})


def spell_heads(layer: FoundLayer) -> str:
    """Write what follows of H, Hkv and D, or that it does not and what is possible."""
    if layer.num_heads is not None:
        return f"{layer.num_heads} x {layer.head_dim}, {layer.num_kv_heads} key/value"
    possible = sorted(layer.possible_heads)
    told = ", ".join(map(str, possible[:HEADS_TOLD])) + (", ..." if len(possible) > HEADS_TOLD else "")
    return f"does not follow: possible {told}" if possible else "no number fits"


def _short(name: str) -> str:
    name = printable(name) or "(no prefix)"
    return name if len(name) <= NAME_WIDTH else "..." + name[3 - NAME_WIDTH :]


def _print_numbers(found: LayerReport, *, heads: bool) -> None:
    row = "    {:<9}{:>14}{:>10}{:>11}{:>11}{:>11}{:>10}{:>10}{:>10}  {}"
    titles = ("shape", "dtype", "mean", "std", "norm", "kurtosis", "largest s", "eff. rank", "looks like")
    print(row.format("", *titles))
    for stats, likeness in zip(found.matrices, found.resemblances, strict=True):
        print(row.format(stats.role, f"{stats.rows} x {stats.columns}", stats.dtype, *_cells(stats), likeness.sentence))
        for block in stats.heads if heads else ():
            print(row.format(f"  head {block.head}", "", "", *_cells(block), ""))


def _cells(stats: MatrixStats | HeadBlock) -> list[str]:
    moments, spectrum = stats.moments, stats.spectrum
    numbers = [f"{value:.4g}" for value in (moments.mean, moments.std, moments.norm, moments.kurtosis)]
    if spectrum is None:
        return [*numbers, "", ""]
    rank = "" if spectrum.effective_rank is None else f"{spectrum.effective_rank:.1f}"
    return [*numbers, f"{spectrum.largest:.4g}", rank]


def print_report(found: Report, *, heads: bool) -> None:
    """Write the report for a person; `heads` adds every head and why each count follows."""
    outline = found.outline
    whole, attention = (spell_bytes(size) for size in (outline.size_bytes, outline.attention_bytes))
    print(f"{printable(outline.name)}: {outline.format}, {outline.tensors:,} tensors, {whole}")
    plural = "" if len(outline.layers) == 1 else "s"
    print(f"{len(outline.layers)} attention layer{plural}, {attention}")
    for note in outline.notes:
        print(f"  {printable(note)}")
    for layer in found.layers:
        known = layer.layer
        print(f"\n{layer.number:>3}  {_short(known.name)}  {known.family}, {known.kind}, {known.packing}")
        print(f"    E {known.embed_dim}, heads x D: {spell_heads(known)}")
        if heads:
            for sentence in known.evidence:
                print(f"    {printable(sentence)}")
        _print_numbers(layer, heads=heads)
        if layer.fused is not None:
            print(f"    order inside the fused matrix: {layer.fused.verdict}")
    print()
    for flag in found.flags:
        print(f"{flag.severity}: {_short(flag.where)}: {printable(flag.sentence)}")
    if not found.flags:
        print("nothing odd was found")


def command(options: argparse.Namespace) -> int:
    """Inspect one checkpoint. A problem is a finding; a note is not."""
    num_heads, kv_heads = _count("num_heads", options.num_heads), _count("num_kv_heads", options.num_kv_heads)
    checkpoint = open_checkpoint(options.path, config=options.config and Path(options.config))
    found = report(checkpoint, num_heads, kv_heads, options.layer)
    heads = options.layer is not None
    if options.json:
        print_json(answer(found, checkpoint, heads=heads, all_tensors=options.all_tensors))
    else:
        print_report(found, heads=heads)
        for name, info in checkpoint.tensors.items() if options.all_tensors else ():
            print(f"{printable(name)}  {' x '.join(map(str, info.shape)) or 'scalar'}  {info.dtype}")
    return EXIT_FINDING if any(flag.severity == "problem" for flag in found.flags) else EXIT_FINE


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "path", metavar="PATH", help="a .safetensors, .pt, .pth, .bin or .ckpt file, an index, a folder"
    )
    parser.add_argument("--config", metavar="CONFIG.json", help="config of the model; default: the one beside the file")
    parser.add_argument("--num-heads", metavar="H", help="number of heads, where it does not follow from the file")
    parser.add_argument("--num-kv-heads", metavar="HKV", help="number of key/value heads")
    parser.add_argument("--layer", metavar="NAME_OR_NUMBER", help="one layer, with every head")
    parser.add_argument("--all-tensors", action="store_true", help="also list every tensor of the file")
    parser.add_argument("--json", action="store_true", help="print JSON")
