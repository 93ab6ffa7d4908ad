"""What the README shows works: its Python example runs, its commands give what they promise, its files exist."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mha_core.cli import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert "assert" in example
    exec(compile(example, "README.md", "exec"), {})


@pytest.mark.parametrize("line", re.findall(r"^python -m mha_core (.+)$", README, re.MULTILINE))
def test_the_commands_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_file(torch.nn.MultiheadAttention(64, 8).state_dict(), "CHECKPOINT.safetensors")
    shutil.copy(ROOT / "mha_core/doctor/examples/sound.py", "ATTENTION.py")
    if line.endswith("--help"):
        with pytest.raises(SystemExit) as left:
            main(shlex.split(line))
        assert left.value.code == 0
    else:
        assert main(shlex.split(line)) == 0


def test_the_files_it_names_exist() -> None:
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).is_file(), path
    for target in re.findall(r"`?make (\w+)", README):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
