"""The default training race of three schemes, from start to last result."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from benchmarks.report import Row
from mha_core.lenses.training import race, tracks
from mha_core.lenses.training_model import DEFAULT_RACERS, RaceSetting

BAR_S = 20.0


def rows() -> Iterator[Row]:
    """Race once, on as many torch threads as there are."""
    setting = RaceSetting()
    start = time.perf_counter()
    results = list(race(setting, DEFAULT_RACERS))
    seconds = time.perf_counter() - start
    ended = ", ".join(f"{track.racer} {track.accuracy:.1%}" for track in tracks(results))
    detail = f"{ended} of {setting.task}, chance {setting.chance:.1%}; {torch.get_num_threads()} threads"
    yield Row(f"training race, {len(DEFAULT_RACERS)} schemes x {setting.steps} steps", seconds, BAR_S, "s", detail)
