"""Masks: which key may be seen by which query. Boolean, True = may attend.

That is the convention of `torch.nn.functional.scaled_dot_product_attention`; `torch.nn.MultiheadAttention` means the
opposite (True = hidden). Every mask built here has four axes and broadcasts to (B, H, Sq, Sk), so that a padding mask
can never land on the heads axis. How a hidden score is filled is decided here too (`resolve_fill`).

Axes: B batch, H heads, Sq queries, Sk keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from mha_core.config import require_choice, require_int, require_names
from mha_core.errors import MhaError, Suggestion

Direction = Literal["both", "back", "ahead"]
Alignment = Literal["bottom_right", "top_left"]
Fill = Literal["zero", "-inf", "-1e4", "-1e9", "-1e10", "min"]

MAX_CUSTOM_SIDE = 512
MAX_WINDOW = 65_536


@dataclass(frozen=True)
class MaskSpec:
    """Which masks are combined (a key must be allowed by all of them), and how hidden scores are filled.

    Args:
        kinds: any subset of the names in `MASKS`, kept in registry order.
        window: w of the local mask, in tokens.
        direction: the window reaches w tokens to "both" sides, only "back" or only "ahead".
        alignment: with Sq != Sk, whether the last query sees the last key ("bottom_right", as in decoding and
            flash-attention 2.1) or the first query the first key ("top_left", as `is_causal` in torch's SDPA).
        fill: what replaces a hidden score before the softmax. "zero" gives exactly 0 weight and a zero row where no
            key is allowed; the others show what code in the wild does.
        custom: rows of the custom mask, Sq x Sk; any matrix of truth values, kept as strings of 0 and 1.

    Raises:
        MhaError: an unknown name, a negative window, or a custom matrix that is not rectangular.
    """

    kinds: tuple[str, ...] = ()
    window: int = 2
    direction: Direction = "both"
    alignment: Alignment = "bottom_right"
    fill: Fill = "zero"
    custom: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", require_names("mask", self.kinds, tuple(MASKS)))
        require_int("window", self.window, 0, MAX_WINDOW)
        require_choice("direction", self.direction, get_args(Direction))
        require_choice("alignment", self.alignment, get_args(Alignment))
        require_choice("fill", self.fill, get_args(Fill))
        if self.custom is not None:
            object.__setattr__(self, "custom", parse_custom(self.custom))
        if "custom" in self.kinds and self.custom is None:
            problem = "the custom mask is chosen but no matrix is given"
            need = "a matrix of 0 and 1, one row per query"
            raise MhaError("custom_mask", None, need, [without_custom(self.kinds)], problem=problem)


def without_custom(kinds: tuple[str, ...]) -> Suggestion:
    """Suggest the same masks less the custom one."""
    return Suggestion.of("no custom mask", mask=tuple(kind for kind in kinds if kind != "custom"))


@dataclass(frozen=True)
class MaskSizes:
    """What a mask builder may look at: B, Sq, Sk, and the real lengths of the padded keys (B,), if any."""

    batch: int
    q_len: int
    k_len: int
    key_lengths: Tensor | None = None


@dataclass(frozen=True)
class MaskKind:
    """One kind of mask: its name, what it hides, how to build it, and how torch's two interfaces spell it."""

    name: str
    summary: str
    build: Callable[[MaskSpec, MaskSizes], Tensor]
    as_sdpa: str
    as_multihead_attention: str


def padding_mask(spec: MaskSpec, sizes: MaskSizes) -> Tensor:
    """Hide keys past each sequence's real length. Returns (B, 1, 1, Sk)."""
    if sizes.key_lengths is None:
        return torch.ones(sizes.batch, 1, 1, sizes.k_len, dtype=torch.bool)
    return (torch.arange(sizes.k_len) < sizes.key_lengths[:, None])[:, None, None, :]  # (B, Sk) -> (B, 1, 1, Sk)


def key_minus_query(spec: MaskSpec, sizes: MaskSizes) -> Tensor:
    """Give each key's position relative to its query, after alignment. Returns (Sq, Sk), 0 on the diagonal."""
    offset = sizes.k_len - sizes.q_len if spec.alignment == "bottom_right" else 0
    return torch.arange(sizes.k_len)[None, :] - (torch.arange(sizes.q_len)[:, None] + offset)


def causal_mask(spec: MaskSpec, sizes: MaskSizes) -> Tensor:
    """Hide keys after the query. Returns (1, 1, Sq, Sk)."""
    return (key_minus_query(spec, sizes) <= 0)[None, None]


def local_mask(spec: MaskSpec, sizes: MaskSizes) -> Tensor:
    """Hide keys more than `window` tokens away. Returns (1, 1, Sq, Sk)."""
    distance = key_minus_query(spec, sizes)
    back = 0 if spec.direction == "ahead" else spec.window
    ahead = 0 if spec.direction == "back" else spec.window
    return ((distance >= -back) & (distance <= ahead))[None, None]


def custom_mask(spec: MaskSpec, sizes: MaskSizes) -> Tensor:
    """Take the given matrix. Returns (1, 1, Sq, Sk).

    Raises:
        MhaError: its shape is not Sq x Sk.
    """
    rows = spec.custom or ()
    shape, need = (len(rows), len(rows[0]) if rows else 0), (sizes.q_len, sizes.k_len)
    if shape != need:
        raise MhaError(
            "custom_mask",
            f"{shape[0]} x {shape[1]}",
            f"{need[0]} x {need[1]}, one row per query and one column per key",
            [
                without_custom(spec.kinds),
                Suggestion.of(f"a {need[0]} x {need[1]} mask of ones", custom_mask=("1" * need[1],) * need[0]),
            ],
            problem=f"the custom mask is {shape[0]} x {shape[1]}, but the scores are {need[0]} x {need[1]} "
            "(queries x keys)",
        )
    return torch.tensor([[cell == "1" for cell in row] for row in rows])[None, None]


MASKS: dict[str, MaskKind] = {
    kind.name: kind
    for kind in (
        MaskKind(
            "padding",
            "hides the filler that makes the sequences of a batch equally long",
            padding_mask,
            "keep[:, None, None, :]  # (B, Sk) -> (B, 1, 1, Sk), True = real token",
            "key_padding_mask=~keep  # (B, Sk), True = hidden",
        ),
        MaskKind(
            "causal",
            "hides the future: a query sees itself and what came before",
            causal_mask,
            "torch.ones(Sq, Sk).tril(Sk - Sq).bool()  # bottom-right; is_causal=True aligns top-left",
            "attn_mask=torch.ones(Sq, Sk).triu(Sk - Sq + 1).bool()  # True = hidden",
        ),
        MaskKind(
            "local",
            "a sliding window: hides keys more than w tokens away",
            local_mask,
            "(key_pos - query_pos[:, None]).abs() <= w",
            "attn_mask=(key_pos - query_pos[:, None]).abs() > w  # True = hidden",
        ),
        MaskKind(
            "custom",
            "your own matrix of 0 and 1, one row per query",
            custom_mask,
            "matrix.bool()",
            "attn_mask=~matrix.bool()  # True = hidden",
        ),
    )
}


def build_mask(spec: MaskSpec, sizes: MaskSizes) -> Tensor | None:
    """Combine the chosen masks with "and".

    Returns:
        Boolean (B or 1, 1, Sq or 1, Sk), True = may attend; None when no mask is chosen.

    Raises:
        MhaError: the custom mask does not fit.
    """
    combined: Tensor | None = None
    for name in spec.kinds:
        mask = MASKS[name].build(spec, sizes)
        combined = mask if combined is None else combined & mask
    return combined


def check_mask(mask: Tensor, batch: int, heads: int, q_len: int, k_len: int) -> None:
    """Refuse a mask that is not boolean or does not clearly broadcast to (B, H, Sq, Sk).

    A three-axis mask is refused unless its first axis is 1: by broadcasting rules that axis would be the heads, and
    a padding mask (B, 1, Sk) would silently hide keys per head wherever B = H.

    Raises:
        MhaError: field "mask", naming the shape, the one needed, and the indexing that repairs it.
    """
    shape, full = tuple(mask.shape), (batch, heads, q_len, k_len)
    if mask.dtype != torch.bool:
        hint = "mask == 0" if mask.is_floating_point() else "mask.bool()"
        raise MhaError(
            "mask",
            str(mask.dtype),
            "boolean, True = may attend",
            problem=f"the mask is {mask.dtype}; it must be boolean with True = may attend. An additive mask (0 and "
            f"-inf) is `mask == 0`, a 0/1 mask is `mask.bool()`; here that is most likely `{hint}`",
        )
    fits = len(shape) <= 4 and all(
        size in (1, want) for size, want in zip(reversed(shape), reversed(full), strict=False)
    )
    if not fits or (len(shape) == 3 and shape[0] != 1):
        raise MhaError("mask", shape, f"broadcastable to (B, H, Sq, Sk) = {full}", problem=_mask_problem(shape, full))


def _mask_problem(shape: tuple[int, ...], full: tuple[int, int, int, int]) -> str:
    batch, _, q_len, k_len = full
    problem = f"a mask of shape {shape} does not fit the scores (B, H, Sq, Sk) = {full}"
    if len(shape) == 3 and shape[0] == batch:
        return f"{problem}: its first axis is the batch, but would land on the heads; write mask[:, None]"
    if len(shape) == 3:
        return f"{problem}: with three axes the first would be the heads; write mask[None] to say so"
    if shape == (batch, k_len):
        return f"{problem}: (B, Sk) is a padding mask; write mask[:, None, None, :]"
    if shape[-2:] == (k_len, q_len):
        return f"{problem}: queries and keys are swapped; write mask.transpose(-2, -1)"
    return f"{problem}; the last axis counts keys ({k_len}), the one before it queries ({q_len})"


def resolve_fill(fill: Fill | float, dtype: torch.dtype) -> tuple[float, bool]:
    """Turn a fill into a number that the dtype can hold.

    Returns:
        The value put in place of a hidden score, and whether rows without any allowed key become zero.
    """
    lowest = torch.finfo(dtype).min
    if fill == "zero":
        return lowest, True
    value = lowest if fill == "min" else float(fill)
    return (value if math.isinf(value) else max(value, lowest)), False


def parse_custom(matrix: str | Sequence[object]) -> tuple[str, ...]:
    """Read a custom mask from text (rows by line or "/", cells 0/1, with or without separators) or nested values.

    Returns:
        Rows as strings of 0 and 1.

    Raises:
        MhaError: other characters, ragged rows, empty, or more than 512 rows or columns.
    """
    if not isinstance(matrix, str | list | tuple):
        raise MhaError("custom_mask", str(type(matrix).__name__), "rows of 0 and 1")
    lines = matrix.replace("/", "\n").split("\n") if isinstance(matrix, str) else matrix
    rows = tuple(row for row in (_parse_row(line) for line in lines) if row)
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        widths = ", ".join(str(width) for width in sorted({len(row) for row in rows})) or "0"
        problem = f"the rows of the custom mask must be equally long; they have {widths} cells"
        raise MhaError("custom_mask", f"rows of {widths} cells", "a rectangle of 0 and 1", problem=problem)
    if max(len(rows), len(rows[0])) > MAX_CUSTOM_SIDE:
        raise MhaError("custom_mask", f"{len(rows)} x {len(rows[0])}", f"at most {MAX_CUSTOM_SIDE} on a side")
    return rows


def _parse_row(line: object) -> str:
    if not isinstance(line, str | list | tuple):
        raise MhaError(
            "custom_mask", line, "rows of 0 and 1", problem=f"a row of the custom mask is {line!r}, not a row"
        )
    cells = (
        line
        if isinstance(line, str)
        else "".join(value if isinstance(value, str) else str(int(bool(value))) for value in line)
    )
    cells = cells.translate(_SEPARATORS)
    strange = sorted(set(cells) - {"0", "1"})
    if strange:
        problem = f"the custom mask contains {strange[0]!r}; write 0 (hidden) and 1 (may attend), one row per line"
        raise MhaError("custom_mask", cells, "only 0 and 1", problem=problem)
    return cells


_SEPARATORS = str.maketrans("", "", " \t\r,;[]")
