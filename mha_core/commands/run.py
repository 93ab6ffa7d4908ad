"""`run`: one experiment, from text or random input to weights and a summary."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mha_core.commands.options import EXIT_FINDING, EXIT_FINE, add_experiment_options, experiment_from, print_json
from mha_core.errors import MhaError
from mha_core.experiment import Run, run
from mha_core.lenses.cost import matmul_flops, parameter_count
from mha_core.lenses.findings import find
from mha_core.lenses.head_stats import head_stats

ALARMING = ("empty_rows", "not_finite", "fill_clamped")  # findings that make the command exit with 1


def summarise(result: Run) -> dict[str, Any]:
    """Give what `run` prints: sizes, cost, per-head numbers and findings of every sequence, as plain data."""
    sizes, config = result.sizes, result.experiment.attention
    row_sums = result.weights.sum(-1).double()
    return {
        "experiment": result.experiment.to_fields(),
        "sizes": {"B": sizes.batch, "Sq": sizes.q_len, "Sk": sizes.k_len, "E": config.embed_dim, "H": config.num_heads}
        | {"Hkv": config.kv_heads, "D": config.head_dim},
        "tokens": [list(line) for line in sizes.q_tokens.padded],
        "memory_tokens": [list(line) for line in sizes.k_tokens.padded] if sizes.is_cross else None,
        "parameters": parameter_count(config),
        "matmul_flops": matmul_flops(config, sizes.batch, sizes.q_len, sizes.k_len),
        "forward_ms": result.forward_ms,
        "row_sum": {"min": row_sums.min().item(), "max": row_sums.max().item()},
        "output": {"shape": list(result.output.shape), "std": result.output.double().std(correction=0).item()},
        "heads": [[asdict(stats) for stats in head_stats(result, sample)] for sample in range(sizes.batch)],
        "findings": [{"sequence": b} | asdict(finding) for b in range(sizes.batch) for finding in find(result, b)],
    }


def save_npz(result: Run, path: Path) -> None:
    """Write tokens (B, Sq), memory_tokens (B, Sk), weights (B, H, Sq, Sk), output (B, Sq, E) and the experiment."""
    double = result.experiment.dtype == "float64"
    arrays = {name: getattr(result, name) for name in ("weights", "output")}
    np.savez_compressed(
        path,
        tokens=np.array(result.sizes.q_tokens.padded),
        memory_tokens=np.array(result.sizes.k_tokens.padded),
        experiment=np.array(result.experiment.to_json()),
        **{name: (tensor if double else tensor.float()).numpy() for name, tensor in arrays.items()},
    )


def print_summary(summary: dict[str, Any]) -> None:
    """Write the summary for a person."""
    sizes = " ".join(f"{letter}={size}" for letter, size in summary["sizes"].items())
    print(f"{sizes}  {summary['parameters']:,} parameters  {summary['matmul_flops']:,} matmul FLOPs")
    print(f"rows sum to {summary['row_sum']['min']:.6f} to {summary['row_sum']['max']:.6f}")
    columns = ("entropy_nats", "effective_keys", "diagonal", "previous", "first", "maximum")
    for sequence, (tokens, heads) in enumerate(zip(summary["tokens"], summary["heads"], strict=True)):
        print(f"\nsequence {sequence}: {' '.join(tokens)}")
        print("head " + " ".join(f"{name:>14}" for name in columns))
        for stats in heads:
            print(f"{stats['head']:>4} " + " ".join(f"{stats[name]:>14.4f}" for name in columns))
    for finding in summary["findings"]:
        print(f"\nsequence {finding['sequence']}: {finding['sentence']}")


def command(options: argparse.Namespace) -> int:
    """Run one experiment and describe it."""
    result = run(experiment_from(options))
    summary = summarise(result)
    if options.save is not None:
        try:
            save_npz(result, options.save)
        except OSError as error:
            problem = f"cannot write {options.save}: {error.strerror}"
            raise MhaError("save", str(options.save), "a path that can be written", problem=problem) from error
    print_json(summary) if options.json else print_summary(summary)
    return EXIT_FINDING if any(finding["kind"] in ALARMING for finding in summary["findings"]) else EXIT_FINE


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_experiment_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--save", type=Path, metavar="FILE.npz", help="save tokens, weights and output")
