"""How much memory a process may take from now on, and a sentence for what happens when it wants more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

GIB = 1 << 30
MAX_FILE_BYTES = 16 << 20
SPARE_ADDRESSES_BYTES = 2 * GIB  # stacks and arenas of threads are reserved, not used
_WANTED_BYTES = re.compile(r"tried to allocate (\d+) bytes")
_WANTED_TEXT = re.compile(r"Unable to allocate ([\d.]+ \w+)")
_SHORT_OF_MEMORY = re.compile(
    r"\bMemoryError\b|can't allocate memory|[Cc]annot allocate memory|bad_alloc|not enough memory"
)


def set_limits(memory_gib: float) -> list[str]:
    """Let this process take so much memory above what it holds now, write small files, and leave no core file.

    Returns:
        the limits that this system does not have, in words.
    """
    try:
        import resource
    except ImportError:
        return ["memory", "file size"]
    missing = []
    above = int(memory_gib * GIB)
    held = held_bytes()
    wanted = {
        "core file": (resource.RLIMIT_CORE, 0),
        "file size": (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        "memory": (resource.RLIMIT_DATA, held.get("VmData", GIB) + above),
        "addresses": (resource.RLIMIT_AS, held.get("VmSize", GIB) + above + SPARE_ADDRESSES_BYTES),
    }
    for name, (limit, most) in wanted.items():
        hard = resource.getrlimit(limit)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(limit, (most, most))
        except (ValueError, OSError):
            missing.append(name)
    return missing


def held_bytes() -> Mapping[str, int]:
    """Give VmData and VmSize of this process in bytes; empty where there is no /proc."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines if line.startswith(("VmData:", "VmSize:")))
    return {name.rstrip(":"): int(size) * 1024 for name, size, *_ in pairs}


def memory_sentence(text: str, memory_gib: float) -> str:
    """Say that the limit was passed, if a raised text means that; else ""."""
    if not _SHORT_OF_MEMORY.search(text) and not _WANTED_TEXT.search(text):
        return ""
    limit = f"the limit is {memory_gib:g} GiB"
    if found := _WANTED_BYTES.search(text):
        return f"it asked for {int(found[1]) / GIB:.3g} GiB of memory at once; {limit}"
    if found := _WANTED_TEXT.search(text):
        return f"it asked for {found[1]} of memory at once; {limit}"
    return f"it ran out of memory; {limit}"
