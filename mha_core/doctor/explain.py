"""`explain`: from an error text to what happened, with its numbers solved, and what to change.

Texts are read by pattern, since they differ between versions: torch 1.x to 2.13, transformers, einops, xformers,
flash-attn, NumPy, and what JAX and TensorFlow say of the same mistakes. In a traceback the last error is read, and the
source lines around it hint at which tensor is meant. Where several readings fit the numbers, all are told, the most
plausible first; sizes that the person knows decide between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mha_core.doctor.explainers import (
    arguments,
    backends,
    broadcast,
    caches,
    calls,
    dtypes,
    gradients,
    heads,
    kernels,
    key_masks,
    keywords,
    layers,
    mask_dtypes,
    masks,
    matmul,
    memory,
    patterns,
    positions,
    reshape,
    shapes,
    weights,
)
from mha_core.doctor.explainers.answer import Explanation, Problem, Rule
from mha_core.doctor.explainers.kinds import nearest
from mha_core.doctor.explainers.text import errors_in

__all__ = ["SIZES", "Explanation", "explain"]

SIZES = ("batch", "q_len", "k_len", "embed_dim", "num_heads", "num_kv_heads", "head_dim")
FAMILIES = (
    weights,
    kernels,
    caches,
    keywords,
    key_masks,
    patterns,
    mask_dtypes,
    masks,
    heads,
    dtypes,
    reshape,
    broadcast,
    shapes,
    matmul,
    memory,
    gradients,
    layers,
)
RULES: tuple[Rule, ...] = tuple(
    entry for family in (*FAMILIES, positions, backends, arguments, calls) for entry in family.RULES
)


def explain(text: str, sizes: Mapping[str, int] = {}) -> Explanation:
    """Explain an error text, a warning, or a whole traceback.

    Args:
        text: as it was printed.
        sizes: what is known of the layer and its input, by the names in `SIZES`.
    """
    pieces = errors_in(text)
    whole = pieces[-1]
    for number, piece in enumerate(pieces):
        if number and _is_error(pieces[0]) and not _is_error(piece):
            continue  # a warning before an error that is not known is not its cause
        problem = Problem(piece, whole, sizes)
        for pattern, handler in RULES:
            match = pattern.search(piece)
            found = handler(match, problem) if match else None
            if found is not None:
                return found
    return _not_known(pieces[0])


def _is_error(piece: str) -> bool:
    """Tell whether a piece opens as an error does: "RuntimeError: ..."."""
    return re.match(r"[\w.:\s]*(?:Error|Exception)\b", piece) is not None


def _not_known(message: str) -> Explanation:
    kind, words = nearest(message, _is_error(message))
    said = "This text is not known"
    if not kind:
        return Explanation(False, "", f"{said}, and nothing in it speaks of attention.")
    spoken = ", ".join(f"'{word}'" for word in words[:3])
    said += f". The nearest kind is {kind}, only because it says {spoken}: a likeness of words, no diagnosis."
    return Explanation(False, kind, said, ("paste the whole traceback, with the lines of code, and give the sizes",))
