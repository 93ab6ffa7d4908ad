"""A traced forward against the same forward untraced, at the sizes of the core and of a short sentence."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.core import SIZES
from benchmarks.report import Row, ratio
from mha_core import AttentionConfig, Experiment, RandomSource
from mha_core.experiment import give
from mha_core.kernels import untapped
from mha_core.lenses.trace import Recorder, forward

BAR = 1.10


def rows() -> Iterator[Row]:
    """Measure at every size."""
    for batch, length, width, heads in ((1, 11, 512, 8), *SIZES):
        experiment = Experiment(RandomSource(batch, length), AttentionConfig(width, heads))
        given = give(experiment)
        value, detail = ratio(
            lambda e=experiment, g=given: forward(e, g, Recorder()),
            lambda e=experiment, g=given: forward(e, g, untapped),
        )
        yield Row(
            f"traced forward / untraced, (B, S, E, H) = ({batch}, {length}, {width}, {heads})", value, BAR, "x", detail
        )
