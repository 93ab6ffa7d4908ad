"""What the module under test raised, in one line, with the line of the person's own code it came from."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mha_core.doctor.report import Place

MAX_TEXT = 400


class ModuleFailure(Exception):  # noqa: N818 (the module's failure, as the checks call it)
    """The module under test raised, or returned what nobody can read.

    Attributes:
        text: "RuntimeError: shape '[2, 5, 6]' is invalid for input of size 80", one line.
        place: the deepest frame that lies in the person's own files, None where there is none.
        error: what was raised, None where nothing was.
    """

    def __init__(self, text: str, place: Place | None = None, error: BaseException | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.place = place
        self.error = error


def one_line(error: BaseException) -> str:
    """Give "RuntimeError: message" without line breaks."""
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 4] + " ..."


def place_of(error: BaseException, files: Sequence[str]) -> Place | None:
    """Give the deepest frame of a traceback that lies in one of `files`."""
    found, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename in files:
            found = (step.tb_frame.f_code.co_filename, step.tb_lineno)
        step = step.tb_next
    return None if found is None else Place(Path(found[0]).name, found[1], linecache.getline(*found).strip())


@contextmanager
def failures(files: Sequence[str]) -> Iterator[None]:
    """Turn whatever the code inside raises into a `ModuleFailure`."""
    try:
        yield
    except ModuleFailure:
        raise
    except Exception as error:
        raise ModuleFailure(one_line(error), place_of(error, files), error) from error
