"""What holds for the whole code: which ring imports which, how long things may be, where shared state may be touched.

Read from the syntax trees of every Python file that git knows or does not ignore. Two facts about a running process are
here too: that the core loads nothing of the dashboard, and that the collector is tamed as the measurements ask.
"""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE_LINES, MAX_PAGE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 300, 100, 50, 7
MANY_PARAMETERS = {
    "MultiHeadAttention.__init__": "its signature is the published one, spelled out for readers",
    "checkup": "what can be declared about a module is published too, each by its name",
}
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(*endings: str) -> list[Path]:
    """Files that git tracks or would track, by their endings, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    paths = sorted({Path(line) for line in listed})
    return [path for path in paths if path.suffix in endings and (ROOT / path).is_file()]


PYTHON = files(".py")
CORE = [path for path in PYTHON if path.parts[0] == "mha_core"]
UI = [path for path in PYTHON if path.parts[0] == "ui"]
PAGES = [path for path in PYTHON if path.parts[0] == "pages"]
CACHING = {path for path in UI if path.stem.startswith("compute")}
PRODUCT = [*CORE, *UI, *PAGES, Path("app.py")]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def imports(path: Path) -> set[str]:
    """Full names of what a file imports, at any depth; `from a import b` gives both a and a.b."""
    found: set[str] = set()
    package = list(path.parent.parts)
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


def within(names: set[str], *packages: str) -> set[str]:
    return {name for name in names if any(name == p or name.startswith(p + ".") for p in packages)}


def functions(path: Path) -> Iterator[tuple[str, Function]]:
    """Every function with its name inside its classes."""

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield prefix + child.name, child
            named = isinstance(child, Function | ast.ClassDef)
            yield from inside(child, f"{prefix}{child.name}." if named else prefix)

    yield from inside(tree(path), "")


def names_used(path: Path) -> set[str]:
    """Every attribute, imported name and string in a file."""
    used: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.alias):
            used.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used.add(node.value)
    return used


def test_the_rings_are_there() -> None:
    """The rules below would hold for nothing at all."""
    assert {Path("mha_core/attention.py"), Path("mha_core/lenses/cost.py"), Path("mha_core/sources/tokens.py")} <= {
        *CORE
    }
    assert {Path("ui/state.py"), Path("ui/compute.py"), Path("ui/process.py")} <= {*UI}
    assert Path("pages/1_Attention.py") in PAGES
    assert imports(Path("ui/compute.py")) >= {"streamlit", "mha_core.lenses", "mha_core.experiment.Run"}


@pytest.mark.parametrize("path", CORE, ids=str)
def test_the_core_knows_nothing_of_the_dashboard(path: Path) -> None:
    assert not within(imports(path), "streamlit", "plotly", "ui", "pages", "app")


@pytest.mark.parametrize("path", CORE, ids=str)
def test_lenses_are_above_sources_and_core(path: Path) -> None:
    if path.parts[1] == "sources" or (len(path.parts) == 2 and path.name not in ("cli.py", "__main__.py")):
        assert not within(imports(path), "mha_core.lenses", "mha_core.cli")
    if path.parts[1] == "sources":
        assert not within(imports(path), "mha_core.experiment", "mha_core.attention")
    assert not within(imports(path), "mha_core.cli") or path.name == "__main__.py"


def test_modules_of_the_core_import_one_another_in_one_direction() -> None:
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in CORE}
    waiting = {n: within(imports(p), "mha_core") & set(names) - {n, "mha_core"} for n, p in names.items()}
    while ready := {name for name, needs in waiting.items() if not needs}:
        waiting = {name: needs - ready for name, needs in waiting.items() if name not in ready}
    assert not waiting, "these modules import one another in a circle"


@pytest.mark.parametrize("path", UI, ids=str)
def test_ui_does_not_reach_up(path: Path) -> None:
    assert not within(imports(path), "pages", "app")


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_pages_are_short_scripts_over_ui(path: Path) -> None:
    assert within(imports(path), "ui")
    assert imports(path) == within(imports(path), "ui", "streamlit", "__future__")
    defined = [n for n in ast.walk(tree(path)) if isinstance(n, Function | ast.ClassDef | ast.Lambda)]
    assert not defined
    assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) <= MAX_PAGE_LINES


def test_only_ui_and_pages_know_streamlit_and_plotly() -> None:
    knowing = {path.parts[0] for path in PRODUCT if within(imports(path), "streamlit", "plotly")}
    assert knowing <= {"ui", "pages", "app.py"}
    assert not within(imports(Path("app.py")), "plotly", "torch", "mha_core")


@pytest.mark.parametrize("path", PRODUCT, ids=str)
def test_sizes(path: Path) -> None:
    assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES
    for name, function in functions(path):
        lines = (function.end_lineno or 0) - function.lineno + 1
        assert lines < MAX_FUNCTION_LINES, f"{name} has {lines} lines"
        given = function.args
        parameters = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        parameters = parameters[1:] if parameters[:1] in (["self"], ["cls"]) else parameters
        assert len(parameters) <= MAX_PARAMETERS or name in MANY_PARAMETERS, f"{name} takes {parameters}"


def test_every_exception_is_still_needed() -> None:
    there = {name: node for path in PRODUCT for name, node in functions(path)}
    for name in MANY_PARAMETERS:
        assert len(there[name].args.args + there[name].args.kwonlyargs) - 1 > MAX_PARAMETERS


@pytest.mark.parametrize("path", PRODUCT, ids=str)
def test_every_file_opens_with_what_it_is(path: Path) -> None:
    assert ast.get_docstring(tree(path))


def test_state_and_caches_have_one_home() -> None:
    touching = {path for path in PRODUCT if names_used(path) & {"session_state", "query_params"}}
    assert touching == {Path("ui/state.py")}
    caching = {path for path in PRODUCT if names_used(path) & {"cache_data", "cache_resource"}}
    assert caching == CACHING


def test_caches_are_bounded() -> None:
    decorators = [d for path in CACHING for _, function in functions(path) for d in function.decorator_list]
    caches = [d for d in decorators if "cache_" in ast.unparse(d)]
    assert len(caches) >= len(CACHING) > 0
    assert [ast.unparse(cache) for cache in caches if "max_entries=" not in ast.unparse(cache)] == []


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{path}:{number}"
        for path in files(".py", ".js", ".css", ".md", ".toml", ".txt", ".html")
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert found == []


def test_the_collector_is_tamed() -> None:
    """A full collection after every rerun costs 100 ms of each answer once torch is imported."""
    from ui import process

    config = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
    assert config["runner"]["postScriptGC"] is False
    process.settle()
    assert gc.get_freeze_count() > 10_000  # torch alone leaves far more objects than that


def test_the_core_loads_nothing_of_the_dashboard() -> None:
    heavy = ("streamlit", "plotly", "transformers", "pandas", "ui")
    code = f"import sys, mha_core, mha_core.cli; print(*[name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
