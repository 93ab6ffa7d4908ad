"""`cost`: what each step costs, in closed form. Nothing is run, so any length is answered at once."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from mha_core.budget import budget_bytes, spell_bytes
from mha_core.choices import Experiment
from mha_core.commands.options import EXIT_FINE, add_experiment_options, experiment_from, print_json
from mha_core.errors import MhaError
from mha_core.experiment import needed_bytes
from mha_core.lenses.cost import Cost, cost
from mha_core.lenses.cost_growth import crossing
from mha_core.lenses.cost_memory import MAX_CONTEXT, attention_matrix_bytes, groupings, memory_by_dtype
from mha_core.lenses.cost_rows import CONVENTION, CONVENTIONS
from mha_core.lenses.flop_truth import truth
from mha_core.sources.inputs import measure

COLUMNS = ("matmul_flops", "elementwise_flops", "needed_matmul_flops", "backward_matmul_flops", "bytes")


def answer(experiment: Experiment, context: int | None, *, input_gradient: bool, count: bool) -> dict[str, Any]:
    """Give what `cost` prints, as plain data; numbers are FLOPs and bytes."""
    closed = cost(experiment, input_gradient=input_gradient)
    memory = memory_by_dtype(experiment, context)
    need = needed_bytes(experiment, measure(experiment.source))
    found: dict[str, Any] = {
        "rows": [asdict(row) for row in closed.rows],
        "totals": closed.totals,
        "convention": CONVENTION,
        "conventions": list(CONVENTIONS),
        "experiment": experiment.to_fields(),
        "sizes": _sizes(closed),
        "parameters": closed.parameters,
        "parameter_bytes": closed.parameter_bytes,
        "attention_matrix_bytes": attention_matrix_bytes(closed.config, closed.sizes, closed.sizes.itemsize),
        "activation_bytes": closed.totals["bytes"],
        "inference_bytes": closed.inference_bytes,
        "attention_share": closed.attention_share,
        "input_gradient": input_gradient,
        "context": closed.sizes.k_len if context is None else context,
        "kv_cache_bytes": {row.dtype: row.kv_cache_bytes for row in memory},
        "memory": [asdict(row) for row in memory],
        "crossing": asdict(crossing(closed.config)),
        "groupings": [asdict(row) for row in groupings(experiment, context)],
        "run": {"needed_bytes": need, "budget_bytes": budget_bytes(), "fits": need <= budget_bytes()},
    }
    if count:
        found["counters"] = [asdict(row) for row in truth(closed)]
    return found


def _sizes(closed: Cost) -> dict[str, int]:
    config, sizes = closed.config, closed.sizes
    letters = {"B": sizes.batch, "Sq": sizes.q_len, "Sk": sizes.k_len, "E": config.embed_dim, "H": config.num_heads}
    return letters | {"Hkv": config.kv_heads, "D": config.head_dim, "pairs": sizes.pairs, "all_pairs": sizes.all_pairs}


def print_tables(found: dict[str, Any]) -> None:
    """Write the answer for a person."""
    print(" ".join(f"{letter}={size}" for letter, size in found["sizes"].items()))
    print(f"{found['parameters']:,} parameters, {spell_bytes(found['parameter_bytes'])}; {found['convention']}\n")
    print(f"{'step':<18}" + "".join(f"{name.replace('_', ' '):>23}" for name in COLUMNS) + "  formula")
    for row in [*found["rows"], {"step": "total", "formula": ""} | found["totals"]]:
        print(f"{row['step']:<18}" + "".join(f"{row[name]:>23,}" for name in COLUMNS) + f"  {row['formula']}")
    cross = found["crossing"]
    print(f"\nattention is {found['attention_share']:.1%} of the forward matmul FLOPs; it overtakes the projections at")
    print(
        f"S = {cross['full_square']:,.6g} tokens over the full square, {cross['causal_half']:,.6g} over the causal half"
    )
    print(f"\nbytes by number format, the key/value cache for {found['context']:,} tokens:")
    names = ("parameter_bytes", "attention_matrix_bytes", "activation_bytes", "inference_bytes", "kv_cache_bytes")
    print(f"{'dtype':<10}" + "".join(f"{name.removesuffix('_bytes').replace('_', ' '):>20}" for name in names))
    for row in found["memory"]:
        print(f"{row['dtype']:<10}" + "".join(f"{row[name]:>20,}" for name in names))
    for row in found.get("counters", ()):
        numbers = " ".join("-" if row[name] is None else f"{row[name]:,}" for name in ("forward", "backward"))
        print(f"\n{row['name']}: {numbers} {'agrees' if row['agrees'] else 'differs'}. {row['why']}", end="")
    if found.get("counters"):
        print()
    if not found["run"]["fits"]:
        need, limit = (spell_bytes(found["run"][name]) for name in ("needed_bytes", "budget_bytes"))
        print(f"\nRunning this would take {need}, more than the budget of {limit}: only its cost is given.")


def _context(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise MhaError("context", text, f"a whole number from 1 to {MAX_CONTEXT:,}")
    return int(text)


def command(options: argparse.Namespace) -> int:
    """Work out the cost of one experiment."""
    context = _context(options.context)
    experiment = experiment_from(options)
    found = answer(experiment, context, input_gradient=not options.no_input_gradient, count=options.count)
    print_json(found) if options.json else print_tables(found)
    return EXIT_FINE


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_experiment_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--context", metavar="TOKENS", help="cached tokens of the key/value cache; default Sk")
    parser.add_argument("--count", action="store_true", help="also ask torch's counter and other formulas")
    parser.add_argument(
        "--no-input-gradient", action="store_true", help="backward stops at the weights of the projections"
    )
