"""The view: what is looked at, beside the experiment. One registry for the link, the widgets and the parts to redraw.

Each entry is a field, as those of the experiment, and the parts of its page that show it.
"""

from __future__ import annotations

from mha_core.fields import Field

MAX_TOKENS_CHOSEN = 65_536
MAPS = ("maps", "large_map", "closer_look")


def _choice(name: str, help_: str, choices: tuple[str, ...]) -> Field:
    return Field(name, "view", "choice", choices[0], help_, choices)


def _count(name: str, help_: str, maximum: int, default: int = 0, minimum: int = 0) -> Field:
    return Field(name, "view", "int", default, help_, minimum=minimum, maximum=maximum)


_VIEW: tuple[tuple[Field, tuple[str, ...]], ...] = (
    # Attention
    (_choice("stage", "which tensor the maps show", ("weights", "scores", "masked")), MAPS),
    (_choice("colour", "how values become colours", ("fixed", "head", "log")), MAPS),
    (_choice("pooling", "what a cell of a pooled map keeps", ("max", "mean")), MAPS),
    (_count("head", "chosen head", 1023), MAPS),
    (_count("sequence", "sequence of the batch", 511), MAPS),
    (
        _choice("panel", "what is shown below", ("none", "bars", "lines", "statistics", "similarity")),
        ("closer_look",),
    ),
    (Field("queries", "view", "ints", (), "chosen query tokens", minimum=0, maximum=MAX_TOKENS_CHOSEN), MAPS),
    (_choice("combine", "how several query tokens are joined", ("mean", "sum")), MAPS),
    (_choice("line_heads", "whose lines are drawn", ("chosen", "all")), MAPS),
)
VIEW_FIELDS: dict[str, Field] = {field.name: field for field, _ in _VIEW}
PARTS_OF_VIEW: dict[str, tuple[str, ...]] = {field.name: parts for field, parts in _VIEW}
