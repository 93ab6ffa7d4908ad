"""From what a person pastes to the error inside: the last one of a traceback, on one line, in plain characters."""

from __future__ import annotations

import re

_EVEN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "`": None, "×": "x", "\xa0": " ", "−": "-"})
_FRAME = re.compile("[│╭╮╰╯❱┃]|─{2,}|━{2,}|\x1b\\[[0-9;]*m")
_NAME = re.compile(
    r"(?:^|[\s:])(?:[A-Za-z_]\w*\.)*[A-Za-z_]*(?:Error|Exception|Warning)\b(?: \[[^\]]*\])?:", re.MULTILINE
)
_NEXT = re.compile(r"^\s*(?:Traceback \(most recent|During handling of|The above exception was)", re.MULTILINE)
_RUN = re.compile(r"\S{400,}")
MAX_WORD = 400  # characters; a longer run is data, and would make the patterns slow
MAX_TEXT = 200_000  # characters that are looked at, the last ones


def on_one_line(text: str) -> str:
    """Join lines and even out blanks."""
    return re.sub(r"\s+", " ", text).strip()


def errors_in(text: str) -> tuple[str, ...]:
    """Give the error texts inside a paste, the last one first, and at the end the whole paste, each on one line."""
    plain = _FRAME.sub(" ", text[-MAX_TEXT:].translate(_EVEN))
    plain = _RUN.sub(lambda run: run[0][:MAX_WORD], plain)
    starts = [match.start() for match in _NAME.finditer(plain)]
    found = []
    for start, end in zip(starts, [*starts[1:], len(plain)], strict=False):
        piece = plain[start:end]
        if following := _NEXT.search(piece, 1):
            piece = piece[: following.start()]
        found.append(on_one_line(piece))
    return tuple(dict.fromkeys([*reversed(found), on_one_line(plain)]))
