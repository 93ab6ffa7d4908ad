"""The closed form of every step of the layer: one row each, in the order of the forward pass.

How the numbers are counted is said in `CONVENTIONS`; each row says its formula in letters and where it is from. What
the rows add up to is cost.py.

Letters: B batch, Sq queries, Sk keys, E embed_dim, H heads, Hkv key/value heads, D head_dim, kdim and vdim the widths
of the key and value inputs, P the (query, key) pairs that the mask allows, summed over the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mha_core import kernels
from mha_core.config import AttentionConfig

CONVENTION = "1 multiply-add = 2 FLOPs"
CONVENTIONS = (
    f"{CONVENTION}.",
    "Elementwise work never enters the matmul FLOPs. Per score: scale 1, mask 1, softmax 5 (max, subtract, exp, sum, "
    "divide), dropout 2; bias 1 per output; rotary 3 per channel.",
    "Backward of a product is two products, one gradient for each factor: twice the forward.",
    "Backward elementwise: scale 1, mask 1, softmax 4, dropout 2 per score; bias 1 per output (its sum); rotary 3 per "
    "channel; shared key/value heads sum their copies' gradients. Adding up gradients where one tensor feeds several "
    "steps is left out.",
    "The gradient of the layer's input is counted, as for a layer in the middle of a model, unless it is switched off.",
    "Needed: only the pairs (query, key) that the mask allows. A dense kernel computes all of them.",
)
PROJECTION_SOURCE = "Kaplan et al. 2020, Scaling Laws, table 1"
ATTENTION_SOURCE = "Chowdhery et al. 2022, PaLM, appendix B: both products over the full square"
RECOMPUTE_SOURCE = "Dao 2023, FlashAttention-2, section 4.1: five products backward for two forward, 2.5x"
ROTARY_SOURCE = "Su et al. 2021, RoFormer, eq. 34: 4 products and 2 sums per pair of channels"
OWN_SOURCE = "counted as the conventions say"
SOFTMAX, SOFTMAX_BACKWARD, DROPOUT, ROTARY = 5, 4, 2, 3  # operations per score or channel


@dataclass(frozen=True)
class CostSizes:
    """Sizes the cost depends on: B, Sq, Sk, the pairs P the mask allows over the whole batch, bytes per number."""

    batch: int
    q_len: int
    k_len: int
    pairs: int
    is_masked: bool = False
    itemsize: int = 4

    @property
    def all_pairs(self) -> int:
        """Pairs of a dense kernel, B · Sq · Sk."""
        return self.batch * self.q_len * self.k_len


@dataclass(frozen=True)
class CostRow:
    """What one step costs.

    Attributes:
        step: its name. formula: its forward FLOPs, in letters. backward_formula: the same for backward.
        source: where the formula is from.
        tensor: shape of what the step makes, in letters; empty where it makes nothing of its own.
        matmul_flops, elementwise_flops: forward, as a dense kernel does it.
        needed_matmul_flops, needed_elementwise_flops: the same for the allowed pairs alone.
        backward_..., needed_backward_...: the same for backward.
        recompute_matmul_flops: what backward computes again because forward did not keep it; 0 but for "sdpa".
        bytes: of the tensor the step makes, in the experiment's kernel and number format.
        moved_bytes: read and written if every tensor goes to memory once; 0 for a step inside another one.
        overwrites: without gradients the result takes the place of an earlier tensor.
    """

    step: str
    formula: str
    backward_formula: str
    source: str
    tensor: str = ""
    matmul_flops: int = 0
    elementwise_flops: int = 0
    needed_matmul_flops: int = 0
    needed_elementwise_flops: int = 0
    backward_matmul_flops: int = 0
    backward_elementwise_flops: int = 0
    needed_backward_matmul_flops: int = 0
    needed_backward_elementwise_flops: int = 0
    recompute_matmul_flops: int = 0
    bytes: int = 0
    moved_bytes: int = 0
    overwrites: bool = False


@dataclass(frozen=True)
class Width:
    """A number of channels and its letters."""

    letters: str
    count: int


def cost_rows(config: AttentionConfig, sizes: CostSizes, *, input_gradient: bool = True) -> tuple[CostRow, ...]:
    """Give the rows in the order of the forward pass; steps that the configuration leaves out have none."""
    make = _RowMaker(config, sizes, input_gradient)
    return tuple(row for row in (*make.projections(), *make.kernel(), *make.outputs()) if row is not None)


class _RowMaker:
    """Makes the rows of one layer: its configuration and sizes, and the widths they imply."""

    def __init__(self, config: AttentionConfig, sizes: CostSizes, input_gradient: bool) -> None:
        self.config, self.sizes, self.input_gradient = config, sizes, input_gradient
        self.embed = Width("E", config.embed_dim)
        self.joined = Width("H·D", config.num_heads * config.head_dim)
        self.shared = Width("Hkv·D", config.kv_heads * config.head_dim)

    def projections(self) -> list[CostRow | None]:
        """Rows of q, k and v, up to the heads that the kernel gets."""
        sizes, config = self.sizes, self.config
        key = Width("E" if config.kdim is None else "kdim", config.key_dim)
        value = Width("E" if config.vdim is None else "vdim", config.value_dim)
        turned = sizes.batch * (sizes.q_len * self.joined.count + sizes.k_len * self.shared.count)
        copied = 2 * sizes.batch * sizes.k_len * self.joined.count
        summed = copied - 2 * sizes.batch * sizes.k_len * self.shared.count
        return [
            self._project("q projection", "Sq", self.embed, self.joined),
            self._project("k projection", "Sk", key, self.shared),
            self._project("v projection", "Sk", value, self.shared),
            None
            if config.rope_theta is None
            else CostRow(
                "rotary",
                f"{ROTARY}·B·(Sq·H + Sk·Hkv)·D",
                "as forward",
                ROTARY_SOURCE,
                "(B, H, Sq, D) and (B, Hkv, Sk, D)",
                **_elementwise(ROTARY * turned, ROTARY * turned),
                bytes=turned * sizes.itemsize,
                moved_bytes=2 * turned * sizes.itemsize,
            ),
            None
            if config.kv_heads == config.num_heads
            else CostRow(
                "share k, v",
                "0: copies",
                "2·B·Sk·(H - Hkv)·D",
                OWN_SOURCE,
                "2 x (B, H, Sk, D)",
                **_elementwise(0, summed),
                bytes=copied * sizes.itemsize,
                moved_bytes=(2 * copied - summed) * sizes.itemsize,
            ),
        ]

    def kernel(self) -> list[CostRow | None]:
        """Rows between the heads and the context."""
        sizes, config, item = self.sizes, self.config, self.sizes.itemsize
        is_fused = config.kernel == "sdpa"
        held = self._held_scores() * item
        scores = config.num_heads * sizes.all_pairs * item
        heads, keys = (sizes.batch * length * self.joined.count * item for length in (sizes.q_len, sizes.k_len))
        seen = 0 if is_fused else scores  # the fused kernel never writes the scores
        recompute = 2 * self.joined.count * sizes.all_pairs if is_fused else 0
        return [
            self._pair_product("q·kᵀ", held, heads + keys + seen, recompute),
            self._per_score("scale", 1, 1),
            self._per_score("mask", 1, 1, held, 2 * seen) if sizes.is_masked else None,
            self._per_score("softmax", SOFTMAX, SOFTMAX_BACKWARD, held, 2 * seen),
            self._per_score("dropout", DROPOUT, DROPOUT, held, 2 * seen, False) if config.dropout else None,
            self._pair_product("weights·v", heads, seen + keys + heads, 0),
        ]

    def outputs(self) -> list[CostRow | None]:
        """Rows after the heads, and the biases of all four projections."""
        sizes, item = self.sizes, self.sizes.itemsize
        made = sizes.batch * sizes.q_len * self.joined.count * item
        tokens = sizes.q_len * (self.joined.count + self.embed.count) + 2 * sizes.k_len * self.shared.count
        join = CostRow("join heads", "0: copies", "0", OWN_SOURCE, "(B, Sq, H·D)", bytes=made, moved_bytes=2 * made)
        bias = CostRow(
            "bias",
            "B·(Sq·(H·D + E) + 2·Sk·Hkv·D)",
            "as forward",
            OWN_SOURCE,
            **_elementwise(sizes.batch * tokens, sizes.batch * tokens),
        )
        output = self._project("output projection", "Sq", self.joined, self.embed)
        return [join, output, bias if self.config.bias else None]

    def _held_scores(self) -> int:
        """Numbers of the scores that are in memory at once."""
        sizes = self.sizes
        rows = {"explicit": sizes.q_len, "chunked": min(sizes.q_len, kernels.CHUNK_ROWS), "sdpa": 0}
        return sizes.batch * self.config.num_heads * rows[self.config.kernel] * sizes.k_len

    def _project(self, step: str, length: str, inside: Width, outside: Width) -> CostRow:
        sizes = self.sizes
        tokens = sizes.batch * (sizes.q_len if length == "Sq" else sizes.k_len)
        flops = 2 * tokens * inside.count * outside.count
        gradients = 2 if self.input_gradient or step == "output projection" else 1
        made = tokens * outside.count * sizes.itemsize
        return CostRow(
            step,
            f"2·B·{length}·{inside.letters}·{outside.letters}",
            "2 x forward" if gradients == 2 else "1 x forward: the weights' gradient alone",
            PROJECTION_SOURCE,
            f"(B, {length}, {outside.letters})",
            **_matmul(flops, flops, gradients),
            bytes=made,
            moved_bytes=(tokens + outside.count) * inside.count * sizes.itemsize + made,
        )

    def _pair_product(self, step: str, held_bytes: int, moved_bytes: int, recompute: int) -> CostRow:
        per_pair = 2 * self.joined.count
        is_fused = self.config.kernel == "sdpa"
        again = ", and q·kᵀ once more: 2.5x for both products" if recompute else ""
        return CostRow(
            step,
            "2·B·H·Sq·Sk·D; needed 2·H·D·P",
            f"2 x forward{again}",
            RECOMPUTE_SOURCE if recompute else ATTENTION_SOURCE,
            "(B, H, Sq, D)" if step == "weights·v" else "" if is_fused else self._score_shape(),
            **_matmul(per_pair * self.sizes.all_pairs, per_pair * self.sizes.pairs, 2),
            recompute_matmul_flops=recompute,
            bytes=held_bytes,
            moved_bytes=moved_bytes,
        )

    def _per_score(
        self, step: str, forward: int, backward: int, held: int = 0, moved: int = 0, overwrites: bool = True
    ) -> CostRow:
        heads, sizes = self.config.num_heads, self.sizes
        factor = "" if forward == 1 else f"{forward}·"
        return CostRow(
            step,
            f"{factor}B·H·Sq·Sk; needed {factor}H·P",
            "as forward" if forward == backward else f"{backward}·B·H·Sq·Sk",
            OWN_SOURCE,
            self._score_shape() if held else "",
            **_elementwise(
                forward * heads * sizes.all_pairs,
                backward * heads * sizes.all_pairs,
                forward * heads * sizes.pairs,
                backward * heads * sizes.pairs,
            ),
            bytes=held,
            moved_bytes=moved,
            overwrites=overwrites and held > 0,
        )

    def _score_shape(self) -> str:
        if self.config.kernel == "chunked" and self.sizes.q_len > kernels.CHUNK_ROWS:
            return f"(B, H, {kernels.CHUNK_ROWS}, Sk) at a time"
        return "(B, H, Sq, Sk)"


def _matmul(dense: int, needed: int, gradients: int) -> dict[str, Any]:
    return {
        "matmul_flops": dense,
        "needed_matmul_flops": needed,
        "backward_matmul_flops": gradients * dense,
        "needed_backward_matmul_flops": gradients * needed,
    }


def _elementwise(
    forward: int, backward: int, needed: int | None = None, needed_backward: int | None = None
) -> dict[str, Any]:
    return {
        "elementwise_flops": forward,
        "needed_elementwise_flops": forward if needed is None else needed,
        "backward_elementwise_flops": backward,
        "needed_backward_elementwise_flops": backward if needed_backward is None else needed_backward,
    }
