"""What is to be measured and what is then known: a `Plan`, a `Measurement`, and what does not fit in memory.

Not here: the measuring itself (benchmark.py).

Axes: B batch, H heads, Sq queries, Sk keys.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from mha_core.budget import KEPT_MATRICES, budget_bytes, run_bytes, spell_bytes
from mha_core.config import require_choice, require_int, require_number
from mha_core.errors import MhaError
from mha_core.experiment import Experiment
from mha_core.fields import TORCH_DTYPES
from mha_core.kernels import CHUNK_ROWS
from mha_core.lenses.bench_reference import Differences
from mha_core.lenses.bench_timing import Timing, Warning
from mha_core.lenses.bench_variants import Variant, one_headed, variants, why_not
from mha_core.sources.inputs import MAX_LENGTH, Sizes
from mha_core.sources.inputs import measure as measure_source
from mha_core.sources.tokens import TokenBatch

Pass = Literal["forward", "forward+backward"]
PASSES: tuple[str, ...] = get_args(Pass)
DTYPES: tuple[str, ...] = ("float32", "bfloat16", "autocast", "float16", "float64")
MAX_SECONDS = 600.0
ROUNDS = 8  # visits of each variant at one size and pass
MASK_BYTES = 16  # per query and key, while a mask is built: positions are 64-bit


@dataclass(frozen=True)
class Measurement:
    """What is known of one variant at one size and pass.

    Attributes:
        batch, q_len, k_len: B, Sq, Sk.
        pass_: "forward", or "forward+backward" with the gradients of parameters and inputs.
        timing: median and quartiles, or None where nothing was timed.
        peak_extra_bytes: most memory allocated at one time above what there was before, result included.
        differences: from the float64 reference.
        warnings: why the times should be read with care.
        reason: why it was not measured; empty where it was.
    """

    variant: Variant
    batch: int
    q_len: int
    k_len: int
    pass_: Pass
    timing: Timing | None = None
    peak_extra_bytes: int | None = None
    differences: Differences | None = None
    warnings: tuple[Warning, ...] = ()
    reason: str = ""

    @property
    def key(self) -> tuple[Variant, int, int, Pass]:
        """What is measured; a later measurement of the same key replaces an earlier one."""
        return self.variant, self.q_len, self.k_len, self.pass_

    @property
    def agrees(self) -> bool | None:
        """Whether it computes the same as the reference, None where it was not run."""
        return None if self.differences is None else self.differences.agrees

    def as_row(self) -> dict[str, Any]:
        """Give plain data for a table: every number with its unit in its name."""
        timing, off, variant = self.timing, self.differences, self.variant
        return {
            "variant": variant.name,
            "dtype": variant.dtype,
            "batch": self.batch,
            "q_len": self.q_len,
            "k_len": self.k_len,
            "pass": self.pass_,
            "median_ms": timing and timing.median_ms,
            "low_quartile_ms": timing and timing.low_ms,
            "high_quartile_ms": timing and timing.high_ms,
            "runs": timing.runs if timing else 0,
            "peak_extra_bytes": self.peak_extra_bytes,
            "max_difference": off and off.output,
            "tolerance": off and off.output_allowed,
            "max_weight_difference": off and off.weights,
            "weight_tolerance": None if off is None or off.weights is None else off.weights_allowed,
            "max_relative_gradient_difference": off and off.gradients,
            "gradient_tolerance": None if off is None or off.gradients is None else off.gradients_allowed,
            "agrees": self.agrees,
            "warnings": [asdict(warning) for warning in self.warnings],
            "not_measured_because": self.reason,
        }


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Args:
        experiment: whose layer, mask, input and seed are taken; its own engine and number format are not.
        lengths: values of Sq; None is the experiment's own. Keys of another input grow in proportion.
        passes: any of "forward", "forward+backward".
        dtypes: number formats.
        seconds: time for each length and pass, shared by all variants, and up to three times as much where five runs of
            each take longer; 0 compares them and times nothing.

    Raises:
        MhaError: a length, pass, number format or time that cannot be.
    """

    experiment: Experiment
    lengths: tuple[int | None, ...] = (None,)
    passes: tuple[str, ...] = ("forward",)
    dtypes: tuple[str, ...] = ("float32",)
    seconds: float = 5.0
    contenders: tuple[Variant, ...] = field(init=False)

    def __post_init__(self) -> None:
        for name, given, choices in (("passes", self.passes, PASSES), ("dtypes", self.dtypes, DTYPES)):
            if not given:
                raise MhaError(name, (), "at least one of " + ", ".join(choices))
            for word in given:
                require_choice(name, word, choices)
        if not self.lengths:
            raise MhaError("lengths", (), "at least one length")
        for length in self.lengths:
            if length is not None:
                require_int("lengths", length, 1, MAX_LENGTH)
        require_number("seconds", self.seconds, 0.0, MAX_SECONDS)
        object.__setattr__(self, "contenders", variants(tuple(dict.fromkeys(self.dtypes))))

    @property
    def rounds(self) -> int:
        """How often each variant has its turn."""
        return ROUNDS if self.seconds else 0

    @property
    def total(self) -> int:
        """Number of steps `measure` will take."""
        return len(self.lengths) * len(self.passes) * len(self.contenders) * (1 + self.rounds)


def sizes_at(experiment: Experiment, length: int | None) -> Sizes:
    """Give the sizes with the longest query sequence `length` tokens long: every sequence is repeated or cut."""
    sizes = measure_source(experiment.source)
    if length is None or length == sizes.q_len:
        return sizes

    def stretch(tokens: TokenBatch) -> TokenBatch:
        counts = [max(1, round(count * length / sizes.q_len)) for count in tokens.lengths]
        stretched = zip(tokens.sequences, counts, strict=True)
        return TokenBatch(tuple(tuple(line[i % len(line)] for i in range(count)) for line, count in stretched))

    q_tokens = stretch(sizes.q_tokens)
    return Sizes(q_tokens, stretch(sizes.k_tokens) if sizes.is_cross else q_tokens, sizes.is_cross)


def needed_bytes(variant: Variant, experiment: Experiment, sizes: Sizes, pass_: Pass) -> int:
    """Estimate what measuring a variant takes, its float64 reference and the mask included."""
    config, lengths = experiment.attention, (sizes.batch, sizes.q_len, sizes.k_len)
    if variant.one_head:
        config = one_headed(config)
    itemsize, matrix = TORCH_DTYPES[variant.dtype].itemsize, sizes.batch * config.num_heads * sizes.q_len * sizes.k_len
    without = [run_bytes(config, *lengths, size) - size * KEPT_MATRICES * matrix for size in (itemsize, 8)]
    # Without weights torch's module may still take its own path over the whole matrix.
    keeps_all = variant.need_weights or variant.kind == "nn.MultiheadAttention"
    keeps_all |= variant.kernel == "chunked" and pass_ != "forward"
    kept = matrix if keeps_all else matrix // sizes.q_len * min(CHUNK_ROWS, sizes.q_len)
    factor = 1 if pass_ == "forward" else 2
    of_reference = factor * without[1] + (8 * matrix if variant.need_weights else 0)
    of_mask = MASK_BYTES * sizes.q_len * sizes.k_len if experiment.mask.kinds else 0
    return factor * without[0] + itemsize * KEPT_MATRICES * kept + of_reference + of_mask


def refusal(variant: Variant, experiment: Experiment, sizes: Sizes, pass_: Pass) -> str:
    """Say why a variant is not measured at this size; empty where it is."""
    reason = why_not(variant, experiment)
    if reason is not None:
        return reason
    need, limit = needed_bytes(variant, experiment, sizes, pass_), budget_bytes()
    if need > limit:
        return f"it would take {need:,} bytes ({spell_bytes(need)}), more than the budget of {spell_bytes(limit)}"
    return ""
