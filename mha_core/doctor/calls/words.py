"""What was taken for granted about a module, in words a person can check and correct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mha_core.doctor.calls.layout import LAYOUTS
from mha_core.doctor.calls.ways import Way


@dataclass(frozen=True)
class Told:
    """What the words are made from: the way of calling, sizes, order, causality, and which masks were guessed."""

    way: Way
    heads: int | None
    given_order: bool | None
    declared_order: bool | None
    causal: bool | None
    guessed: tuple[str, ...]
    mixing: str
    call: str = ""


def assumptions(told: Told) -> dict[str, Any]:
    """Give name and words for everything that was read or guessed."""
    convention, (query, key, value) = told.way.convention, told.way.widths
    found: dict[str, Any] = {"calls": told.call or _call(told), "embed_dim": query, "num_heads": told.heads}
    if (key, value) != (query, query):
        found |= {"key_dim": key, "value_dim": value}
    if convention.layout != "tokens":
        found["layout"] = LAYOUTS[convention.layout]
    if convention.takes == "heads":
        layout = "(B, H, S, D)" if convention.heads_axis == 1 else "(B, S, H, D)"
        found["layout"] = f"heads already split, {layout}"
    order = "read" if told.declared_order is not None else "assumed"
    found["batch_first"] = convention.batch_first
    found["batch_first is"] = "given" if told.given_order is not None else order
    if told.mixing:
        found["attends along"] = told.mixing
    if told.way.length is not None:
        found["length"] = f"{told.way.length} tokens, the only length it takes"
    found["causal"] = told.causal
    for scope, label in (("keys", "padding_mask"), ("pairs", "pair_mask"), ("sample_pairs", "sample_pair_mask")):
        use = convention.mask(scope)
        if use is not None:
            found[label] = str(use) + (" (guessed: no form hides keys)" if use.argument in told.guessed else "")
    if convention.whole_masks:
        found["a mask given"] = "replaces the module's causal mask, so it is given with causality written into it"
    if told.way.failure is not None:
        found["call failed"] = told.way.failure.text
    return found


def _call(told: Told) -> str:
    convention = told.way.convention
    names = list(convention.streams.values())
    if convention.one_query:
        return f"module({', '.join(names)}), one query per call"
    if convention.packed:
        return f"module(({', '.join(convention.streams)}))"
    return f"module({', '.join(names)})"
