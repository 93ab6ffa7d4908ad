"""`python -m benchmarks [core] [trace] [training] [page]`: measure, and print a Markdown table."""

from __future__ import annotations

import argparse
import importlib
import os
import platform

from benchmarks.report import Row, table

PARTS = ("core", "trace", "training", "page")


def main() -> None:
    """Measure the chosen parts, printing each row as it comes and the table at the end."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure what the product promises.")
    parser.add_argument(
        "parts", nargs="*", default=PARTS, metavar="PART", help=f"any of {', '.join(PARTS)}; all by default"
    )
    chosen = parser.parse_args().parts
    for part in chosen:
        if part not in PARTS:
            parser.error(f"there is no part {part!r}; there are {', '.join(PARTS)}")
    rows: list[Row] = []
    for part in chosen:
        for row in importlib.import_module(f"benchmarks.{part}").rows():
            rows.append(row)
            print(f"{row.what}: {row.value:.3g} {row.unit} (bar {row.bar:g}; {row.detail})", flush=True)
    print(f"\n{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
