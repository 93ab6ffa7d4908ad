"""The tables of page Cost: frames of numbers under column names that carry their units; nothing is drawn here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from mha_core.lenses.cost import Cost
from mha_core.lenses.cost_growth import Growth
from mha_core.lenses.cost_memory import Grouping, Memory
from mha_core.lenses.cost_rows import CostRow
from mha_core.lenses.flop_truth import Count
from mha_core.lenses.roofline import StepTime

UNITS = {"flop": ("FLOP", 1.0), "mac": ("MAC", 0.5)}


def work(row: CostRow, kind: str, passes: str, pairs: str) -> int:
    """Give one number of a row, in FLOPs.

    Args:
        kind: "matmul" or "elementwise". passes: "forward", "backward" or "both". pairs: "dense" or "needed".
    """
    if passes == "both":
        return work(row, kind, "forward", pairs) + work(row, kind, "backward", pairs)
    prefix = ("needed_" if pairs == "needed" else "") + ("backward_" if passes == "backward" else "")
    found: int = getattr(row, f"{prefix}{kind}_flops")
    return found + (row.recompute_matmul_flops if kind == "matmul" and passes == "backward" else 0)


def total(cost: Cost, kind: str, passes: str, pairs: str) -> int:
    """Add up one number over all rows, in FLOPs."""
    return sum(work(row, kind, passes, pairs) for row in cost.rows)


def in_unit(flops: int, unit: str) -> float:
    """Turn FLOPs of products into the chosen unit; whole numbers stay whole."""
    return flops if unit == "flop" else flops / 2


def steps(cost: Cost, unit: str, passes: str, pairs: str) -> pd.DataFrame:
    """Give the rows as a table, products in the chosen unit, elementwise work always in operations."""
    name = UNITS[unit][0]
    both = ("forward", "backward") if passes == "both" else ("forward",)
    return pd.DataFrame(
        [
            {"step": row.step, "formula": row.formula}
            | {f"{part} matmul, {name}": in_unit(work(row, "matmul", part, pairs), unit) for part in both}
            | {f"{part} elementwise, operations": work(row, "elementwise", part, pairs) for part in both}
            | ({"backward formula": row.backward_formula} if passes == "both" else {})
            | {"tensor": row.tensor, "bytes": row.bytes, "source": row.source}
            for row in cost.rows
        ]
    )


def truth(counts: Sequence[Count], unit: str) -> pd.DataFrame:
    """Give every count beside the closed form, the first one."""
    name = UNITS[unit][0]
    closed = counts[0].forward or 1
    return pd.DataFrame(
        [
            {
                "count": count.name,
                f"forward, {name}": _spelled(count.forward, unit),
                f"backward, {name}": _spelled(count.backward, unit),
                "of ours": "" if count.forward is None else f"{count.forward / closed:.1%}",
                "what it sees": count.why,
            }
            for count in counts
        ]
    )


def _spelled(flops: int | None, unit: str) -> str:
    return "not counted" if flops is None else f"{in_unit(flops, unit):,.0f}"


def groups(rows: Sequence[Grouping], unit: str) -> pd.DataFrame:
    """Give what each number of key/value heads costs."""
    return pd.DataFrame(
        [
            {
                "Hkv": row.kv_heads,
                "kind": row.kind + (", this one" if row.is_chosen else ""),
                "parameters": row.parameters,
                f"forward matmul, {UNITS[unit][0]}": in_unit(row.matmul_flops, unit),
                "KV cache, bytes": row.kv_cache_bytes,
            }
            for row in rows
        ]
    )


def memory(rows: Sequence[Memory]) -> pd.DataFrame:
    """Give the bytes of every number format."""
    return pd.DataFrame([asdict(row) for row in rows]).rename(
        columns={
            "dtype": "number format",
            "itemsize": "bytes per number",
            "parameter_bytes": "parameters, bytes",
            "attention_matrix_bytes": "one attention matrix, bytes",
            "activation_bytes": "activations for backward, bytes",
            "inference_bytes": "activations without, bytes",
            "kv_cache_bytes": "KV cache, bytes",
        }
    )


def growth(rows: Sequence[Growth]) -> pd.DataFrame:
    """Give the cost at every length, in FLOPs."""
    return pd.DataFrame([asdict(row) for row in rows])


def times(rows: Sequence[StepTime]) -> pd.DataFrame:
    """Give what was measured, step by step."""
    return pd.DataFrame([asdict(row) for row in rows])
