"""The mistakes, family by family, in the order of the page."""

from __future__ import annotations

from mha_core.clinic.families import (
    dropping,
    heads,
    hiding,
    layouts,
    mask_fills,
    mask_forms,
    positions,
    precision,
    reading,
    scores,
    sizes,
    starts,
)
from mha_core.clinic.record import Mistake

FAMILIES: tuple[tuple[Mistake, ...], ...] = (
    heads.HEADS,
    sizes.SIZES,
    mask_forms.MASK_FORMS,
    mask_fills.MASK_FILLS,
    hiding.HIDING,
    scores.SCORES,
    dropping.DROPPING,
    layouts.LAYOUTS,
    positions.POSITIONS,
    precision.PRECISION,
    starts.STARTS,
    reading.READING,
)
