"""The multi-head attention module: projections, heads and a kernel, wired in reading order.

Grouped key/value heads, rotary positions, cross-attention and fused projections are choices of `AttentionConfig`; all
combinations give the same numbers from the same weights. Not here: the equation (kernels.py), the building of masks
(masks.py), initial values (init_schemes.py) and the packing of fused weights (layouts.py).

Axes: B batch, S sequence (Sq queries, Sk keys), E embed_dim, H query heads, Hkv key/value heads, D head_dim,
G = H / Hkv query heads per group.
"""

from __future__ import annotations

from dataclasses import asdict

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mha_core.config import AttentionConfig, HeadSplit, Kernel, Projection, QkvLayout
from mha_core.errors import MhaError
from mha_core.init_schemes import InitSpec, initial_weights
from mha_core.input_checks import check_inputs
from mha_core.kernels import (
    KERNELS,
    KernelCall,
    Tap,
    check_qkv,
    scaled_dot_product_attention,
    share_heads,
    untapped,
)
from mha_core.layouts import AttentionWeights, pack_qkv, unpack_qkv
from mha_core.masks import Fill
from mha_core.rotary import rotate_positions, turn_pairs

__all__ = ["MultiHeadAttention", "scaled_dot_product_attention"]


class ProjectionLayer(nn.Linear):
    """A fully connected layer whose values are drawn by its owner, once, and not at construction as well."""

    def reset_parameters(self) -> None:
        """Leave the values to the owner."""


class MultiHeadAttention(nn.Module):
    """Multi-head attention with every choice in the open.

    Args:
        embed_dim, num_heads, and the keyword arguments: as in `AttentionConfig`, which checks them.
        weights: values to start from; None draws Xavier-uniform matrices and zero biases.

    Attributes:
        wq, wk, wv, fc_out: the four fully connected layers; with projection="fused" the first three are `qkv_proj`.
        fill: what replaces hidden scores (explicit and chunked kernels; the fused kernel knows only "zero").
        generator: source of dropout's randomness; None is torch's global one.
        score_bias: added to the scaled scores, broadcastable to (B, H, Sq, Sk), as T5's relative positions; or None.
        rotary: cos and sin, (..., S, R/2), to turn q and k of self-attention by instead of the angles of rope_theta.
        muted_heads: heads whose context is zero: they are computed, and then say nothing.
        tap: is shown every named tensor of a forward pass, as `mha_core.kernels.untapped` says.

    Raises:
        MhaError: the sizes do not fit.
    """

    def __init__(
        self,
        embed_dim: int = 512,
        num_heads: int = 8,
        *,
        num_kv_heads: int | None = None,
        head_size: int | None = None,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        projection: Projection = "separate",
        qkv_layout: QkvLayout = "stacked",
        head_split: HeadSplit = "view",
        kernel: Kernel = "explicit",
        scale: float | None = None,
        rope_theta: float | None = None,
        weights: AttentionWeights | None = None,
    ) -> None:
        super().__init__()
        # AttentionConfig holds the rules; the signature is spelled out for readers and editors.
        self.config = AttentionConfig(
            embed_dim=embed_dim,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            bias=bias,
            kdim=kdim,
            vdim=vdim,
            dropout=dropout,
            projection=projection,
            qkv_layout=qkv_layout,
            head_split=head_split,
            kernel=kernel,
            scale=scale,
            rope_theta=rope_theta,
        )
        self.fill: Fill | float = "zero"
        self.generator: torch.Generator | None = None
        self.score_bias: Tensor | None = None
        self.rotary: tuple[Tensor, Tensor] | None = None
        self.muted_heads: tuple[int, ...] = ()
        self.tap: Tap = untapped
        self._make_projections(None if weights is None else weights.q.dtype)
        self.reset_parameters() if weights is None else self.load_weights(weights)

    def _make_projections(self, dtype: torch.dtype | None) -> None:
        """Make the fully connected layers, without values."""
        config, bias = self.config, self.config.bias
        rows, kv_rows = config.joined_dim, config.kv_heads * config.head_dim
        if config.projection == "fused":
            self.qkv_proj = ProjectionLayer(config.embed_dim, rows + 2 * kv_rows, bias, dtype=dtype)
        else:
            self.wq = ProjectionLayer(config.embed_dim, rows, bias, dtype=dtype)
            self.wk = ProjectionLayer(config.key_dim, kv_rows, bias, dtype=dtype)
            self.wv = ProjectionLayer(config.value_dim, kv_rows, bias, dtype=dtype)
        self.fc_out = ProjectionLayer(rows, config.embed_dim, bias, dtype=dtype)

    @classmethod
    def from_config(cls, config: AttentionConfig, weights: AttentionWeights | None = None) -> MultiHeadAttention:
        """Build the module that a configuration describes."""
        return cls(**asdict(config), weights=weights)

    def reset_parameters(self, init: InitSpec = InitSpec(), seed: int | None = None) -> None:
        """Draw the weights; without a seed one is taken from torch's global generator."""
        chosen = int(torch.randint(2**62, ()).item()) if seed is None else seed
        self.load_weights(initial_weights(self.config, init, chosen))

    @torch.no_grad()
    def load_weights(self, weights: AttentionWeights) -> None:
        """Copy weights into the parameters, whatever the projection."""
        layers = {"fc_out": (weights.out, weights.out_bias)}
        if self.config.projection == "fused":
            layers["qkv_proj"] = pack_qkv(weights, self.config, self.config.qkv_layout)
        else:
            layers |= {"wq": (weights.q, weights.q_bias), "wk": (weights.k, weights.k_bias)}
            layers["wv"] = (weights.v, weights.v_bias)
        for name, (matrix, bias) in layers.items():
            layer: nn.Linear = getattr(self, name)
            if matrix.shape != layer.weight.shape or (bias is None) != (layer.bias is None):
                got = f"{tuple(matrix.shape)} {'without' if bias is None else 'with'} bias"
                need = f"{tuple(layer.weight.shape)} {'without' if layer.bias is None else 'with'} bias"
                raise MhaError(name, got, need)
            layer.weight.copy_(matrix)
            if bias is not None:
                layer.bias.copy_(bias)

    def weights(self) -> AttentionWeights:
        """Give the parameters as four matrices and biases, whatever the projection (views, not copies)."""
        out, out_bias = self.fc_out.weight, self.fc_out.bias
        if self.config.projection == "fused":
            qkv = self.qkv_proj
            return unpack_qkv(qkv.weight, qkv.bias, out, out_bias, self.config, self.config.qkv_layout)
        q, k, v = self.wq, self.wk, self.wv
        return AttentionWeights(q.weight, k.weight, v.weight, out, q.bias, k.bias, v.bias, out_bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from the query to the key and value.

        Args:
            query: (B, Sq, embed_dim).
            key: (B, Sk, kdim); None means the query (self-attention).
            value: (B, Sk, vdim); None means the key.
            mask: boolean, broadcastable to (B, H, Sq, Sk), True = may attend.
            need_weights: also give the weights; the "sdpa" kernel has none to give.

        Returns:
            Output (B, Sq, embed_dim), and weights (B, H, Sq, Sk) or None.

        Raises:
            MhaError: an input or the mask does not fit.
        """
        key = query if key is None else key
        value = key if value is None else value
        check_inputs(self.config, self.fc_out.weight.dtype, query, key, value, mask)
        q, k, v = self.project(query, key, value)
        context, weights = self.attend(q, k, v, mask, need_weights=need_weights)
        return self.merge(context), weights

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project and split into heads, with rotary positions: q (B, H, Sq, D), k and v (B, Hkv, Sk, D)."""
        q, k, v = (
            self._project_fused(query, key, value)
            if self.config.projection == "fused"
            else (
                self._split("q", self.wq(query)),
                self._split("k", self.wk(key)),
                self._split("v", self.wv(value)),
            )
        )
        if self.rotary is not None:
            q, k = (self.tap(f"{name}_rotated", turn_pairs(t, *self.rotary)) for name, t in (("q", q), ("k", k)))
        elif self.config.rope_theta is not None:
            # As the causal mask, positions align at the end: the last query stands where the last key stands.
            first = k.shape[-2] - q.shape[-2]
            q = self.tap("q_rotated", rotate_positions(q, self.config.rope_theta, first=first))
            k = self.tap("k_rotated", rotate_positions(k, self.config.rope_theta))
        return q, k, v

    def _project_fused(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        if not (query is key and key is value):  # cross-attention: each input meets its own block of the matrix
            blocks = self.weights()
            q, k, v = (
                F.linear(query, blocks.q, blocks.q_bias),
                F.linear(key, blocks.k, blocks.k_bias),
                F.linear(value, blocks.v, blocks.v_bias),
            )
        elif config.qkv_layout == "stacked":
            rows, kv_rows = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
            q, k, v = torch.split(self.tap("qkv_proj", self.qkv_proj(query)), [rows, kv_rows, kv_rows], dim=-1)
        else:
            return self._split_interleaved(self.tap("qkv_proj", self.qkv_proj(query)))
        return self._split("q", q), self._split("k", k), self._split("v", v)

    def _split_interleaved(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, S, Hkv*(G + 2)*D) -> q (B, H, S, D), k and v (B, Hkv, S, D)."""
        batch, length, _ = fused.shape
        kv_heads, groups = self.config.kv_heads, self.config.num_heads // self.config.kv_heads
        by_group = fused.view(batch, length, kv_heads, groups + 2, self.config.head_dim)  # (B, S, Hkv, G + 2, D)
        self.tap("qkv_groups", by_group)
        parts = torch.split(by_group, [groups, 1, 1], dim=-2)
        if self.config.head_split == "einops":
            q, k, v = (rearrange(t, "b s n g d -> b (n g) s d") for t in parts)
        else:
            q, k, v = (t.flatten(2, 3).permute(0, 2, 1, 3) for t in parts)
        return self.tap("q_heads", q), self.tap("k_heads", k), self.tap("v_heads", v)

    def _split(self, name: str, projected: Tensor) -> Tensor:
        """Cut the channels of q, k or v into heads. (B, S, H*D) -> (B, H, S, D)."""
        self.tap(f"{name}_proj", projected)
        if self.config.head_split == "einops":
            heads = projected.shape[-1] // self.config.head_dim
            return self.tap(f"{name}_heads", rearrange(projected, "b s (h d) -> b h s d", h=heads))
        batch, length, _ = projected.shape
        viewed = self.tap(f"{name}_view", projected.view(batch, length, -1, self.config.head_dim))  # (B, S, H, D)
        return self.tap(f"{name}_heads", viewed.permute(0, 2, 1, 3))  # (B, S, H, D) -> (B, H, S, D)

    def merge(self, context: Tensor) -> Tensor:
        """Lay the heads side by side and project. (B, H, Sq, D) -> (B, Sq, E)."""
        if self.config.head_split == "einops":
            joined: Tensor = rearrange(context, "b h s d -> b s (h d)")
        else:
            batch, _, length, _ = context.shape
            permuted = self.tap("context_permuted", context.permute(0, 2, 1, 3))  # (B, H, Sq, D) -> (B, Sq, H, D)
            joined = permuted.reshape(batch, length, -1)  # (B, Sq, H, D) -> (B, Sq, H*D)
        return self.tap("output", self.fc_out(self.tap("joined", joined)))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, need_weights: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Run the kernel on split heads.

        Args:
            q: (B, H, Sq, D). k, v: (B, Hkv, Sk, D); each key/value head serves H / Hkv query heads in a row.

        Returns:
            Context (B, H, Sq, D), and weights (B, H, Sq, Sk) or None.
        """
        if self.config.kv_heads != self.config.num_heads:
            k = self.tap("k_shared", share_heads(k, self.config.num_heads))
            v = self.tap("v_shared", share_heads(v, self.config.num_heads))
        check_qkv(q, k, v)
        call = KernelCall(
            scale=self.config.softmax_scale,
            fill=self.fill,
            dropout=self.config.dropout if self.training else 0.0,
            generator=self.generator,
            need_weights=need_weights,
            tap=self.tap,
            score_bias=self.score_bias,
        )
        if mask is not None:
            mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)  # kernels cut the query axis: it has to be there
        context, weights = KERNELS[self.config.kernel](q, k, v, mask, call)
        if self.muted_heads:
            context = context.index_fill(1, torch.tensor(self.muted_heads), 0.0)
        return self.tap("context", context), weights if need_weights else None
