"""The trace of a configuration that cannot run: up to the step that fails, with torch's error beside ours.

The layer of this product refuses such a configuration before any tensor exists, so what runs here is the layer as it is
commonly written: projections of width E, head_dim = embed_dim // num_heads (H·D and D where head_size is given), a view
and a permute, the equation. It runs on the real input, on shapes alone where that would not fit in memory.

Letters: see mha_core.lenses.steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from mha_core.budget import budget_bytes, run_bytes
from mha_core.choices import Experiment, init_of, mask_of, source_of
from mha_core.config import DEFAULT_ROPE_THETA, AttentionConfig
from mha_core.errors import MhaError
from mha_core.fields import DEFAULTS
from mha_core.init_schemes import initial_weights
from mha_core.layouts import AttentionWeights
from mha_core.lenses.steps import Setting, wording
from mha_core.lenses.trace import Failure, Recorder, Trace, read_steps, trace
from mha_core.masks import MaskSizes, build_mask, resolve_fill
from mha_core.rotary import rotate_positions
from mha_core.sources.inputs import Inputs, Sizes, embed, measure

# Where a refusal belongs that torch does not share: it has no such option, or would silently do something else.
REFUSED_AT = {
    "fill": "context",
    "dropout": "context",
    "mask": "mask",
    "custom_mask": "masked",
    "init_packed": "q_proj",
}


class _RefusedError(Exception):
    """A step that torch would do, or could not be asked to do."""


@dataclass
class _Doer:
    """Does one named step after the other and remembers which one it is at."""

    refused_at: str | None
    recorder: Recorder = field(default_factory=Recorder)
    doing: str = "query"
    size_bytes: int = 0

    def __call__(self, name: str, function: Callable[..., Tensor], *arguments: Any, **options: Any) -> Tensor:
        """Do a step, or stop at it."""
        self.doing = name
        tensor = function(*arguments, **options)
        self.size_bytes += tensor.numel() * tensor.itemsize
        if name == self.refused_at or (tensor.is_meta and self.size_bytes > budget_bytes()):
            raise _RefusedError
        return self.recorder(name, tensor)


@dataclass(frozen=True)
class _Given:
    """What the plain layer is given."""

    fields: Mapping[str, Any]
    sizes: Sizes
    inputs: Inputs
    weights: AttentionWeights
    mask: Tensor | None

    @property
    def heads(self) -> int:
        return int(self.fields["num_heads"])

    @property
    def kv_heads(self) -> int:
        return int(self.fields["num_kv_heads"] or self.heads)

    @property
    def head_dim(self) -> int:
        """Rounded down where it is not given, as most code does."""
        return int(self.fields["head_size"] or self.fields["embed_dim"] // self.heads)

    def letters(self) -> dict[str, int]:
        """Give the value of every letter."""
        embed_dim = self.fields["embed_dim"]
        return {
            "B": self.sizes.batch,
            "S": self.sizes.q_len,
            "Sq": self.sizes.q_len,
            "Sk": self.sizes.k_len,
            "E": embed_dim,
            "Ek": self.fields["kdim"] or embed_dim,
            "Ev": self.fields["vdim"] or embed_dim,
            "H": self.heads,
            "Hkv": self.kv_heads,
            "G": self.heads // self.kv_heads,
            "D": self.head_dim,
        }


def trace_fields(fields: Mapping[str, Any]) -> Trace:
    """Trace what flat fields describe, also where they contradict one another; missing ones take their defaults.

    Returns:
        The whole trace; or the steps that can be done, and the failure after them.
    """
    try:
        return trace(Experiment.from_fields(fields))
    except MhaError as error:
        values = DEFAULTS | dict(fields)
        # The equation is followed step by step, whatever the kernel, unless it is the fused kernel that refuses.
        kernel = "sdpa" if values["kernel"] == "sdpa" and REFUSED_AT.get(error.field) == "context" else "explicit"
        return _up_to_failure(values | {"kernel": kernel}, error)


@torch.no_grad()
def _up_to_failure(fields: Mapping[str, Any], error: MhaError) -> Trace:
    do = _Doer(REFUSED_AT.get(error.field))
    try:
        given = _give(fields)
    except MhaError:  # no input to begin with; it is what the person was told as well
        return Trace((), {}, do.recorder, failure=Failure("query", "input", None, error))
    torch_error = None
    try:
        _plain_layer(do, given)
    except RuntimeError as failure:
        torch_error = str(failure)
    except _RefusedError:
        pass
    setting = Setting.of(fields, given.sizes.is_cross, is_plain=fields["head_size"] is None)
    steps = tuple(read_steps(do.recorder, setting))
    failure_ = Failure(do.doing, wording(do.doing, setting).operation, torch_error, error)
    return Trace(steps, given.letters(), do.recorder, failure=failure_)


def _plain_layer(do: _Doer, given: _Given) -> None:
    inputs, fields = given.inputs, given.fields
    query = do("query", inputs.query.view_as, inputs.query)
    key = query if inputs.key is inputs.query else do("key", inputs.key.view_as, inputs.key)
    value = key if inputs.value is inputs.key else do("value", inputs.value.view_as, inputs.value)
    if given.mask is not None:
        do("mask", given.mask.view_as, given.mask)
    weights = given.weights
    q = _split(do, "q", do("q_proj", F.linear, query, weights.q, weights.q_bias), given, given.heads)
    k = _split(do, "k", do("k_proj", F.linear, key, weights.k, weights.k_bias), given, given.kv_heads)
    v = _split(do, "v", do("v_proj", F.linear, value, weights.v, weights.v_bias), given, given.kv_heads)
    if fields["rope_theta"] is not None or fields["positions"] == "rotary":
        theta = fields["rope_theta"] or DEFAULT_ROPE_THETA
        q, k = do("q_rotated", rotate_positions, q, theta), do("k_rotated", rotate_positions, k, theta)
    if given.kv_heads != given.heads:
        groups = given.heads // given.kv_heads
        k, v = do("k_shared", k.repeat_interleave, groups, 1), do("v_shared", v.repeat_interleave, groups, 1)
    if fields["kernel"] == "sdpa":
        do("context", torch.empty_like, q)
    scale = given.head_dim**-0.5 if fields["scale"] is None else fields["scale"]
    scores = do("scores", torch.matmul, q * scale, k.transpose(-2, -1))
    if given.mask is not None:
        scores = do("masked", scores.masked_fill, ~given.mask, resolve_fill(fields["fill"], scores.dtype)[0])
    context = do("context", torch.matmul, do("weights", torch.softmax, scores, -1), v)
    joined = do("joined", do("context_permuted", context.permute, 0, 2, 1, 3).flatten, 2)
    do("output", F.linear, joined, weights.out, weights.out_bias)


def _split(do: _Doer, which: str, projected: Tensor, given: _Given, heads: int) -> Tensor:
    if given.fields["head_split"] == "einops":
        return do(f"{which}_heads", rearrange, projected, "b s (h d) -> b h s d", h=heads)
    batch, length, _ = projected.shape
    viewed = do(f"{which}_view", projected.view, batch, length, heads, given.head_dim)
    return do(f"{which}_heads", viewed.permute, 0, 2, 1, 3)


def _give(fields: Mapping[str, Any]) -> _Given:
    """Make the inputs, the weights and the mask. The heads decide only how many rows k and v have where they share.

    Raises:
        MhaError: there is no input, or no weights to begin with.
    """
    source, heads = source_of(fields), fields["num_heads"]
    sizes = measure(source)
    # Heads of a width of their own need not fit E; otherwise one head of width E stands for all of them.
    count = 1 if fields["head_size"] is None else heads
    widths = {name: fields[name] for name in ("head_size", "bias", "kdim", "vdim")}
    layer = AttentionConfig(fields["embed_dim"], count, **widths)
    further = heads - count  # each with three S x S matrices
    squares = 12 * further * sizes.batch * sizes.q_len * sizes.k_len
    if run_bytes(layer, sizes.batch, sizes.q_len, sizes.k_len) + squares > budget_bytes():
        inputs, weights = _shapes(layer, sizes)
    else:
        inputs = embed(source, sizes, layer, fields["positions"], fields["seed"])
        weights = initial_weights(layer, replace(init_of(fields), packed=False), fields["seed"])
    given = _Given(fields, sizes, inputs, weights, _mask(fields, sizes, inputs.query.device))
    rows = given.kv_heads * given.head_dim if given.kv_heads != heads else layer.joined_dim
    if fields["projection"] == "fused":  # one matrix, of the query's width
        weights = replace(weights, k=weights.q, v=weights.q)
    k, v = _rows(weights.k, rows), _rows(weights.v, rows)
    if weights.k_bias is not None and weights.v_bias is not None:
        weights = replace(weights, k_bias=_rows(weights.k_bias, rows), v_bias=_rows(weights.v_bias, rows))
    return replace(given, weights=replace(weights, k=k, v=v))


def _rows(tensor: Tensor, rows: int) -> Tensor:
    """Give a matrix or a bias so many rows, repeating them where there are too few."""
    return torch.cat([tensor] * -(-rows // len(tensor)))[:rows]


def _shapes(config: AttentionConfig, sizes: Sizes) -> tuple[Inputs, AttentionWeights]:
    """Make inputs and weights without memory."""
    width, joined = config.embed_dim, config.joined_dim
    with torch.device("meta"):
        query = torch.empty(sizes.batch, sizes.q_len, width)
        is_self = not sizes.is_cross and config.key_dim == width
        key = query if is_self else torch.empty(sizes.batch, sizes.k_len, config.key_dim)
        value = key if config.value_dim == config.key_dim else torch.empty(sizes.batch, sizes.k_len, config.value_dim)
        matrices = [torch.empty(joined, columns) for columns in (width, config.key_dim, config.value_dim)]
        matrices.append(torch.empty(width, joined))
        biases = [torch.empty(len(matrix)) for matrix in matrices] if config.bias else []
    return Inputs(query, key, value), AttentionWeights(*matrices, *biases)


def _mask(fields: Mapping[str, Any], sizes: Sizes, device: torch.device) -> Tensor | None:
    """Build the mask; a custom one that does not fit is taken as it is, for torch to meet it."""
    if device.type == "meta":
        return torch.empty(1, 1, sizes.q_len, sizes.k_len, dtype=torch.bool, device=device) if fields["mask"] else None
    lengths = MaskSizes(sizes.batch, sizes.q_len, sizes.k_len, torch.tensor(sizes.k_tokens.lengths))
    try:
        return build_mask(mask_of(fields), lengths)
    except MhaError:
        rows = fields["custom_mask"]
        return torch.tensor([[cell == "1" for cell in row] for row in rows]) if rows else torch.ones(1, 1).bool()
