"""What races: the setting of a race, checked and bounded, the racers, and the tiny model they all train.

The model is token and position embeddings, one or two residual layers of our own `MultiHeadAttention` under a causal
mask, and a linear read-out. There is no feed-forward part, so attention is all that moves information between
positions. Racers differ in the attention matrices alone: everything else starts alike, from the seed.

Axes: B batch, S positions, E embed_dim, H heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.attention import MultiHeadAttention
from mha_core.config import AttentionConfig, require_choice, require_int, require_number
from mha_core.errors import MhaError, Suggestion
from mha_core.init_schemes import INIT_SCHEMES, MAX_SEED, TARGETS, InitSpec, generator_for, initial_weights
from mha_core.lenses.training_tasks import LETTERS, TASKS, Task

MAX_LENGTH, MAX_WIDTH, MAX_RACE_HEADS, MAX_LAYERS, MAX_STEPS, MAX_BATCH, MAX_RACERS = 16, 128, 8, 2, 3_000, 256, 6
FRAMES = 25  # times that a racer's maps are recorded, after the start
MAX_FLOPS = 4e11  # of one race: about a minute of one core
MAX_MAP_BYTES = 16 * 2**20
EMBEDDING_STD = 0.3
_LAYERS = tuple({"q": "wq", "k": "wk", "v": "wv", "out": "fc_out"}[target] for target in TARGETS)


@dataclass(frozen=True)
class Racer:
    """One way to begin: the initial values of the attention matrices, and what is known of it."""

    spec: InitSpec
    summary: str


RACERS: dict[str, Racer] = {
    name: Racer(InitSpec(name), f"{scheme.summary} ({scheme.source})") for name, scheme in INIT_SCHEMES.items()
} | {
    "zeros_in_qk": Racer(InitSpec("zeros", targets=("q", "k")), "q and k zero, v and out xavier_uniform"),
    "zeros_in_out": Racer(InitSpec("zeros", targets=("out",)), "out zero, q, k and v xavier_uniform"),
}
DEFAULT_RACERS = ("xavier_uniform", "constant", "zeros")


@dataclass(frozen=True)
class RaceSetting:
    """What all racers share.

    Args:
        task: a name in `TASKS`. length: tokens of a question; a sequence has twice as many positions.
        vocab: different tokens, as letters.
        embed_dim, num_heads, layers: size of the tiny model.
        steps, batch, learning_rate: of Adam (Kingma & Ba 2015), each step on sequences never seen before.
        seed: of the data and of all initial values.
        bias: whether the projections have biases; they start at zero.
        layer_norm: normalise before each layer and before the read-out.

    Raises:
        MhaError: a number is out of range, or the sizes do not fit.
    """

    task: str = "copy"
    length: int = 8
    vocab: int = 16
    embed_dim: int = 32
    num_heads: int = 4
    layers: int = 1
    steps: int = 200
    batch: int = 64
    learning_rate: float = 0.003
    seed: int = 0
    bias: bool = True
    layer_norm: bool = False

    def __post_init__(self) -> None:
        require_choice("task", self.task, tuple(TASKS))
        require_int("length", self.length, 4, MAX_LENGTH)
        require_int("vocab", self.vocab, 3, len(LETTERS))
        require_int("embed_dim", self.embed_dim, 2, MAX_WIDTH)
        require_int("num_heads", self.num_heads, 1, MAX_RACE_HEADS)
        require_int("layers", self.layers, 1, MAX_LAYERS)
        require_int("steps", self.steps, 1, MAX_STEPS)
        require_int("batch", self.batch, 1, MAX_BATCH)
        require_number("learning_rate", self.learning_rate, 1e-6, 10.0)
        require_int("seed", self.seed, 0, MAX_SEED)
        for name in ("bias", "layer_norm"):
            if not isinstance(getattr(self, name), bool):
                raise MhaError(name, getattr(self, name), "true or false")
        try:
            AttentionConfig(self.embed_dim, self.num_heads)
        except MhaError as error:  # has the words for sizes that do not divide, and advice that is not for a race
            own = {field.name for field in fields(self)}
            try_ = [suggestion for suggestion in error.try_ if {name for name, _ in suggestion.changes} <= own]
            raise MhaError(error.field, error.got, error.need, try_, problem=error.problem) from None
        if self.rules.distinct and self.vocab < self.length:
            problem = f"{self.task} needs {self.length} different tokens, but there are {self.vocab}"
            choices = [
                Suggestion.of(vocab=self.length),
                *([Suggestion.of(length=self.vocab)] if self.vocab > 3 else []),
            ]
            raise MhaError("vocab", self.vocab, f"at least length {self.length}", choices, problem=problem)

    @property
    def rules(self) -> Task:
        """The task itself."""
        return TASKS[self.task]

    @property
    def positions(self) -> int:
        """Tokens S of one sequence."""
        return 2 * self.length

    @property
    def chance(self) -> float:
        """Best accuracy without looking at other positions, 0..1."""
        return self.rules.chance(self.length, self.vocab)

    @property
    def recorded_steps(self) -> tuple[int, ...]:
        """When the maps are recorded: at the start, at regular steps, at the end."""
        every = math.ceil(self.steps / FRAMES)
        return (*range(0, self.steps, every), self.steps)

    def flops(self, racers: int) -> float:
        """Estimate the FLOPs of a race: products of the forward pass, three times for both passes."""
        per_token = self.layers * (4 * self.embed_dim**2 + 2 * self.positions * self.embed_dim)
        per_token += self.vocab * self.embed_dim
        return 3.0 * 2 * per_token * self.positions * self.batch * self.steps * racers

    def map_bytes(self, racers: int) -> int:
        """Count the bytes of all maps that are recorded."""
        one = self.layers * self.num_heads * self.positions**2 * 4
        return one * len(self.recorded_steps) * racers


def check_race(setting: RaceSetting, racers: Sequence[str]) -> None:
    """Refuse a race that has no racers, unknown ones, or too much work.

    Raises:
        MhaError: with numbers that would do.
    """
    for name in racers:
        require_choice("racers", name, tuple(RACERS))
    if not 1 <= len(set(racers)) == len(racers) <= MAX_RACERS:
        raise MhaError("racers", tuple(racers), f"one to {MAX_RACERS} different schemes")
    work = setting.flops(len(racers))
    if work > MAX_FLOPS:
        choices = []
        for name in ("steps", "batch"):
            fitting = int(getattr(setting, name) * MAX_FLOPS / work)
            rounded = fitting // 10 * 10 or fitting
            choices += [Suggestion(((name, rounded),))] if rounded else []
        problem = (
            f"this race needs about {work:.2g} FLOPs ({setting.steps:,} steps x {setting.batch * setting.positions:,} "
            f"tokens, width {setting.embed_dim}, {len(racers)} schemes), more than {MAX_FLOPS:.2g}, a minute's work"
        )
        raise MhaError("steps", setting.steps, "less work", choices, problem=problem)
    size_bytes = setting.map_bytes(len(racers))
    if size_bytes > MAX_MAP_BYTES:
        shorter = int(setting.length * math.sqrt(MAX_MAP_BYTES / size_bytes))
        choices = [Suggestion.of(length=shorter)] if shorter >= 4 else []
        problem = f"the recorded maps would take {size_bytes:,} bytes, more than {MAX_MAP_BYTES:,}"
        raise MhaError("length", setting.length, "shorter", choices, problem=problem)


class TinyModel(nn.Module):
    """The model of the race.

    Attributes:
        attention: the layers. causal: boolean (S, S), True = may attend.
    """

    def __init__(self, setting: RaceSetting, spec: InitSpec) -> None:
        super().__init__()
        width, seed = setting.embed_dim, setting.seed
        config = AttentionConfig(width, setting.num_heads, bias=setting.bias)

        def draw(name: str, rows: int, std: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, width, generator=generator_for(seed, "race", name)) * std)

        self.tokens = draw("tokens", setting.vocab + 1, EMBEDDING_STD)
        self.positions = draw("positions", setting.positions, EMBEDDING_STD)
        self.read_out = draw("read_out", setting.vocab, width**-0.5)
        self.attention = nn.ModuleList(
            MultiHeadAttention.from_config(config, initial_weights(config, spec, _layer_seed(seed, layer)))
            for layer in range(setting.layers)
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(width) if setting.layer_norm else nn.Identity() for _ in range(setting.layers + 1)
        )
        self.causal = torch.ones(setting.positions, setting.positions, dtype=torch.bool).tril()

    def forward(self, inputs: Tensor, *, need_weights: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Read sequences.

        Args:
            inputs: (B, S) tokens.
            need_weights: also give the attention weights.

        Returns:
            Logits (B, S, V), and the weights (B, H, S, S) of each layer or an empty list.
        """
        stream, maps = F.embedding(inputs, self.tokens) + self.positions, []
        for norm, attention in zip(self.norms, self.attention, strict=False):  # one norm more, for the read-out
            read, weights = attention(norm(stream), mask=self.causal, need_weights=need_weights)
            stream = stream + read
            maps += [] if weights is None else [weights]
        return F.linear(self.norms[-1](stream), self.read_out), maps

    def matrices(self) -> list[list[nn.Parameter]]:
        """Give the weights of q, k, v and out, layer by layer."""
        return [[getattr(layer, name).weight for name in _LAYERS] for layer in self.attention]

    def others(self) -> list[nn.Parameter]:
        """Give every parameter that is not one of those matrices."""
        matrices = {id(matrix) for layer in self.matrices() for matrix in layer}
        return [parameter for parameter in self.parameters() if id(parameter) not in matrices]


def _layer_seed(seed: int, layer: int) -> int:
    return int(torch.randint(2**62, (), generator=generator_for(seed, "race", f"layer {layer}")))
