"""Reads the attention modules in `good/` and `bad/`: other people's styles, each with a header of comments that says
what is known of it. Knows nothing of the doctor.

Header lines are `# name: text`, before the first line of code:

    class, kwargs    what to build; kwargs are Python, and may use names of the file
    options          what a person would tell the check-up: causal=true, batch_first=false, ...
    case             the report a bad module stands for, or "own"
    expect           of a bad module: checks of which at least one must find it
    fix              of a bad module: the right text of each line that ends in `# wrong`, in their order
    where            "any" where several lines are fair to point at
    by_design        of a good module: checks that may call it by design
    may_warn         of a good module: checks that may warn (minus infinity in empty rows, a scale after the product)
    probe            of a good module: an expression that gives its output for x (B, S, E) and keep (B, S)
    causal, positions, window, sizes, embed, cross, heads, layout, trivial, no_permutation
                     of a good module: what the probe's truth needs to know
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

HERE = Path(__file__).parent
HEADER = re.compile(r"# (\w+): ?(.*)")
WRONG = re.compile(r"\s*# wrong$")


@dataclass(frozen=True)
class Specimen:
    """One module file: its header, and the marked lines."""

    path: Path
    header: dict[str, str]
    fixes: tuple[str, ...]
    wrong: tuple[int, ...]  # line numbers, from 1
    also_fair: tuple[int, ...] = ()  # lines ending in `# wrong: why`, fair to point at, not mended

    @property
    def name(self) -> str:
        return self.path.stem

    def words(self, field: str) -> set[str]:
        return set(re.findall(r"[\w-]+", self.header.get(field, "")))

    @property
    def options(self) -> dict[str, Any]:
        pairs = [pair.split("=") for pair in self.header.get("options", "").split(",") if pair.strip()]
        return {name.strip(): json.loads(value) for name, value in pairs}

    def statements(self) -> list[range]:
        """Lines of the innermost statement around each marked line."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        spans = [range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in ast.walk(tree) if isinstance(n, ast.stmt)]
        return [min((span for span in spans if line in span), key=len) for line in self.wrong]

    def build(self) -> nn.Module:
        """Import the file afresh and build the module, in evaluation mode as a checkpoint would be."""
        label = f"specimen_{self.path.parent.name}_{self.name}"
        spec = importlib.util.spec_from_file_location(label, self.path)
        assert spec is not None
        assert spec.loader is not None
        source = importlib.util.module_from_spec(spec)
        sys.modules[label] = source
        spec.loader.exec_module(source)
        kwargs = eval(self.header.get("kwargs", "{}"), vars(source))
        built: nn.Module = getattr(source, self.header["class"])(**kwargs)
        return built

    def repaired(self, folder: Path) -> Specimen:
        """The same file with its wrong lines put right, written to `folder`."""
        lines, fixes = self.path.read_text(encoding="utf-8").splitlines(), list(self.fixes)
        assert len(fixes) == len(self.wrong), f"{self.name}: {len(self.wrong)} wrong lines, {len(fixes)} fixes"
        for number, fix in zip(self.wrong, fixes, strict=True):
            line = lines[number - 1]
            lines[number - 1] = line[: len(line) - len(line.lstrip())] + (fix or "pass")
        path = folder / f"{self.name}.py"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return replace(self, path=path, wrong=())


def read(path: Path) -> Specimen:
    """Read one file's header."""
    header, fixes = {}, []
    lines = path.read_text(encoding="utf-8").splitlines()
    for line in lines:
        if not (found := HEADER.fullmatch(line)):
            break
        name, text = found.groups()
        if name == "fix":
            fixes.append(text)
        else:
            header[name] = text
    wrong = tuple(number for number, line in enumerate(lines, 1) if WRONG.search(line))
    also_fair = tuple(number for number, line in enumerate(lines, 1) if "# wrong: " in line)
    return Specimen(path, header, tuple(fixes), wrong, also_fair)


def all_of(folder: str) -> list[Specimen]:
    """Every specimen of `good` or `bad`, by name."""
    return [read(path) for path in sorted((HERE / folder).glob("*.py"))]
