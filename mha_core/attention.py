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
from mha_core.kernels import KERNELS, KernelCall, check_qkv, rotate_positions, scaled_dot_product_attention, share_heads
from mha_core.layouts import AttentionWeights, pack_qkv, unpack_qkv
from mha_core.masks import Fill, check_mask

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

    Raises:
        MhaError: the sizes do not fit.
    """

    def __init__(
        self,
        embed_dim: int = 512,
        num_heads: int = 8,
        *,
        num_kv_heads: int | None = None,
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
        self.config = config = AttentionConfig(
            embed_dim=embed_dim,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
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
        rows, kv_rows = num_heads * config.head_dim, config.kv_heads * config.head_dim
        dtype = None if weights is None else weights.q.dtype
        if projection == "fused":
            self.qkv_proj = ProjectionLayer(embed_dim, rows + 2 * kv_rows, bias, dtype=dtype)
        else:
            self.wq = ProjectionLayer(embed_dim, rows, bias, dtype=dtype)
            self.wk = ProjectionLayer(config.key_dim, kv_rows, bias, dtype=dtype)
            self.wv = ProjectionLayer(config.value_dim, kv_rows, bias, dtype=dtype)
        self.fc_out = ProjectionLayer(rows, embed_dim, bias, dtype=dtype)
        self.reset_parameters() if weights is None else self.load_weights(weights)

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
        self._check_inputs(query, key, value, mask)
        q, k, v = self.project(query, key, value)
        context, weights = self.attend(q, k, v, mask, need_weights=need_weights)
        return self.merge(context), weights

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project and split into heads, with rotary positions: q (B, H, Sq, D), k and v (B, Hkv, Sk, D)."""
        q, k, v = (
            self._project_fused(query, key, value)
            if self.config.projection == "fused"
            else (
                self.split_heads(self.wq(query), self.config.num_heads),
                self.split_heads(self.wk(key), self.config.kv_heads),
                self.split_heads(self.wv(value), self.config.kv_heads),
            )
        )
        if self.config.rope_theta is not None:
            # As the causal mask, positions align at the end: the last query stands where the last key stands.
            q = rotate_positions(q, self.config.rope_theta, first=k.shape[-2] - q.shape[-2])
            k = rotate_positions(k, self.config.rope_theta)
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
            q, k, v = torch.split(self.qkv_proj(query), [rows, kv_rows, kv_rows], dim=-1)
        else:
            return self._split_interleaved(self.qkv_proj(query))
        heads = (config.num_heads, config.kv_heads, config.kv_heads)
        q, k, v = (self.split_heads(t, count) for t, count in zip((q, k, v), heads, strict=True))
        return q, k, v

    def _split_interleaved(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, S, Hkv*(G + 2)*D) -> q (B, H, S, D), k and v (B, Hkv, S, D)."""
        batch, length, _ = fused.shape
        kv_heads, groups = self.config.kv_heads, self.config.num_heads // self.config.kv_heads
        by_group = fused.view(batch, length, kv_heads, groups + 2, self.config.head_dim)  # (B, S, Hkv, G + 2, D)
        parts = torch.split(by_group, [groups, 1, 1], dim=-2)
        if self.config.head_split == "einops":
            q, k, v = (rearrange(t, "b s n g d -> b (n g) s d") for t in parts)
        else:
            q, k, v = (t.flatten(2, 3).permute(0, 2, 1, 3) for t in parts)
        return q, k, v

    def split_heads(self, tensor: Tensor, heads: int) -> Tensor:
        """Cut the channels into heads. (B, S, H*D) -> (B, H, S, D)."""
        if self.config.head_split == "einops":
            return rearrange(tensor, "b s (h d) -> b h s d", h=heads)
        batch, length, _ = tensor.shape
        return tensor.view(batch, length, heads, self.config.head_dim).permute(0, 2, 1, 3)

    def merge(self, context: Tensor) -> Tensor:
        """Lay the heads side by side and project. (B, H, Sq, D) -> (B, Sq, E)."""
        if self.config.head_split == "einops":
            joined: Tensor = rearrange(context, "b h s d -> b s (h d)")
        else:
            batch, _, length, _ = context.shape
            joined = context.permute(0, 2, 1, 3).reshape(batch, length, -1)
        output: Tensor = self.fc_out(joined)
        return output

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, need_weights: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Run the kernel on split heads.

        Args:
            q: (B, H, Sq, D). k, v: (B, Hkv, Sk, D); each key/value head serves H / Hkv query heads in a row.

        Returns:
            Context (B, H, Sq, D), and weights (B, H, Sq, Sk) or None.
        """
        k, v = share_heads(k, self.config.num_heads), share_heads(v, self.config.num_heads)
        check_qkv(q, k, v)
        call = KernelCall(
            scale=self.config.softmax_scale,
            fill=self.fill,
            dropout=self.config.dropout if self.training else 0.0,
            generator=self.generator,
            need_weights=need_weights,
        )
        if mask is not None:
            mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)  # kernels cut the query axis: it has to be there
        context, weights = KERNELS[self.config.kernel](q, k, v, mask, call)
        return context, weights if need_weights else None

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
        config = self.config
        widths = {"query": (query, config.embed_dim), "key": (key, config.key_dim), "value": (value, config.value_dim)}
        dtype = self.fc_out.weight.dtype
        for name, (tensor, width) in widths.items():
            shape = tuple(tensor.shape)
            if tensor.ndim != 3:
                problem = f"{name} has shape {shape}; it must have three axes (B, S, {width})"
                hint = f"; write {name}[None] for a batch of one" if tensor.ndim == 2 else ""
                raise MhaError(name, shape, f"(B, S, {width})", problem=problem + hint)
            if shape[-1] != width:
                problem = (
                    f"{name} of shape {shape} is {shape[-1]} wide, but the layer's {name} projection takes {width}"
                )
                raise MhaError(name, shape, f"(B, S, {width})", problem=problem)
            if shape[0] != query.shape[0]:
                problem = f"{name} has batch {shape[0]}, but query has batch {query.shape[0]}"
                hint = f"; write {name}.expand({query.shape[0]}, -1, -1) to share it" if shape[0] == 1 else ""
                raise MhaError(name, shape, f"batch {query.shape[0]}", problem=problem + hint)
            if tensor.dtype != dtype and not torch.is_autocast_enabled(tensor.device.type):
                problem = f"{name} is {tensor.dtype}, but the weights are {dtype}; write {name}.to({dtype})"
                raise MhaError(name, str(tensor.dtype), str(dtype), problem=problem)
        if value.shape[1] != key.shape[1]:
            problem = f"there are {key.shape[1]} keys but {value.shape[1]} values; every key needs its value"
            raise MhaError("value", tuple(value.shape), f"as long as the key: {key.shape[1]}", problem=problem)
        if mask is not None:
            check_mask(mask, query.shape[0], config.num_heads, query.shape[1], key.shape[1])
