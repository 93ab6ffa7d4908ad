"""The ways of writing attention that are compared: projection x head split x kernel x number format, and torch's own.

A `Variant` is a name for one of them; `build` turns it into a `Contender`, a module with the weights of the experiment
and a way to call it. All contenders hold the same numbers. What a variant cannot express (grouped heads in
nn.MultiheadAttention, another fill in the fused kernel, ...) is said by `why_not`. Dropout is always off.

Axes: B batch, H heads, Hkv key/value heads, Sq queries, Sk keys, E embed_dim, D head_dim.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.attention import MultiHeadAttention
from mha_core.config import CHOICES, MAX_EMBED_DIM, AttentionConfig, HeadSplit, Kernel, Projection
from mha_core.experiment import Experiment
from mha_core.fields import TORCH_DTYPES, Dtype
from mha_core.kernels import share_heads
from mha_core.layouts import LAYOUTS, AttentionWeights, Layout
from mha_core.masks import Fill
from mha_core.sources.inputs import Inputs

Kind = Literal["engine", "nn.MultiheadAttention", "raw SDPA"]
Forward = Callable[[], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Variant:
    """One way of writing attention.

    Attributes:
        kind: this project's layer, torch's module, or the bare projections around torch's fused function.
        projection, head_split, kernel: as in `AttentionConfig`; what the module does for the other two kinds.
        dtype: number format, as in an experiment.
        need_weights: whether the weights are asked for.
        one_head: whether the same matrices are used as a single head.
    """

    kind: Kind = "engine"
    projection: Projection = "separate"
    head_split: HeadSplit = "view"
    kernel: Kernel = "explicit"
    dtype: Dtype = "float32"
    need_weights: bool = True
    one_head: bool = False

    @property
    def name(self) -> str:
        """How the variant reads, number format aside."""
        if self.kind == "nn.MultiheadAttention":
            return f"{self.kind}, {'weights' if self.need_weights else 'no weights'}"
        if self.kind == "raw SDPA":
            return "projections around raw SDPA"
        return f"{'one head: ' if self.one_head else ''}{self.projection} · {self.head_split} · {self.kernel}"


def variants(dtypes: Sequence[str]) -> tuple[Variant, ...]:
    """List every variant in the given number formats, plain ones first; the single head in the first format only."""
    listed: list[Variant] = []
    for word in dtypes:
        dtype = cast(Dtype, word)
        for kernel in CHOICES["kernel"]:
            for projection in CHOICES["projection"]:
                for split in CHOICES["head_split"]:
                    choices: dict[str, Any] = {"projection": projection, "head_split": split, "kernel": kernel}
                    # Chunks are for those who do not keep the weights; the fused kernel has none.
                    listed.append(Variant(dtype=dtype, need_weights=kernel == "explicit", **choices))
        listed.append(Variant("nn.MultiheadAttention", "fused", dtype=dtype))
        listed.append(Variant("nn.MultiheadAttention", "fused", kernel="sdpa", dtype=dtype, need_weights=False))
        listed.append(Variant("raw SDPA", kernel="sdpa", dtype=dtype, need_weights=False))
    listed += [Variant(dtype=cast(Dtype, word), one_head=True) for word in dtypes[:1]]
    return tuple(listed)


@dataclass(frozen=True, eq=False)
class Material:
    """What all contenders share at one size: layer, fill, weights (float32), inputs (float32) and mask.

    `fill` is "zero" where there is no mask: nothing is filled then. `layers` keeps one module per layout and format.
    """

    config: AttentionConfig
    fill: Fill
    weights: AttentionWeights
    inputs: Inputs
    mask: Tensor | None
    layers: dict[tuple[str, torch.dtype], nn.Module]

    @property
    def has_empty_rows(self) -> bool:
        """Whether some query may attend to no key."""
        return self.mask is not None and not bool(self.mask.any(-1).all())


def one_headed(config: AttentionConfig) -> AttentionConfig:
    """Give the layer whose single head is as wide as all heads of another."""
    width = None if config.head_size is None else config.joined_dim
    return replace(config, num_heads=1, num_kv_heads=None, head_size=width)


def config_of(variant: Variant, config: AttentionConfig) -> AttentionConfig:
    """Give the layer that a variant is, for the experiment's layer."""
    config = one_headed(config) if variant.one_head else config
    # Torch's own module keeps its matrices in its own way; its config says only the sizes.
    projection = variant.projection if variant.kind == "engine" else "separate"
    choices = {"projection": projection, "head_split": variant.head_split, "kernel": variant.kernel}
    return replace(config, dropout=0.0, **choices)  # type: ignore[arg-type]  # names and words are literal


def why_not(variant: Variant, experiment: Experiment, has_empty_rows: bool = False) -> str | None:
    """Say why a variant cannot compute the experiment; None where it can."""
    config, is_peer = experiment.attention, variant.kind != "engine"
    fill = experiment.mask.fill if experiment.mask.kinds else "zero"
    is_wide = (config.key_dim, config.value_dim) != (config.embed_dim, config.embed_dim)
    is_torch = variant.kind == "nn.MultiheadAttention"
    rules = (
        (variant.one_head and config.num_heads == 1, "the experiment has one head already"),
        (variant.one_head and config.kv_heads != config.num_heads, "grouped heads have smaller k and v matrices"),
        (variant.one_head and config.joined_dim > MAX_EMBED_DIM, f"a head may be {MAX_EMBED_DIM:,} wide at most"),
        (variant.one_head and config.scale is not None, "a given scale belongs to the width of the given heads"),
        (not is_peer and variant.projection == "fused" and is_wide, "one fused matrix needs kdim = vdim = embed_dim"),
        (is_torch and config.kv_heads != config.num_heads, "it has no grouped key/value heads"),
        (is_torch and config.joined_dim != config.embed_dim, "its heads are always embed_dim / num_heads wide"),
        (
            is_torch and not math.isclose(config.softmax_scale, config.head_dim**-0.5),
            "its scale is always 1/sqrt(head_dim)",
        ),
        (is_peer and config.rope_theta is not None, "it has no rotary positions"),
        (
            variant.kernel == "sdpa" and not is_torch and fill != "zero",
            f"the fused kernel fills by itself, not with {fill}",
        ),
        (is_torch and fill not in ("zero", "-inf"), f"it fills hidden scores with -inf, not with {fill}"),
        (is_peer and has_empty_rows, "a query has no allowed key: torch's result for it is not settled (NaN or zero)"),
    )
    return next((reason for applies, reason in rules if applies), None)


def _pack_wide(weights: AttentionWeights, config: AttentionConfig) -> dict[str, Tensor]:
    """nn.MultiheadAttention with kdim or vdim keeps three matrices, and still one bias."""
    state = {"q_proj_weight": weights.q, "k_proj_weight": weights.k, "v_proj_weight": weights.v}
    biases = [bias for bias in (weights.q_bias, weights.k_bias, weights.v_bias) if bias is not None]
    state |= {"in_proj_bias": torch.cat(biases)} if biases else {}
    state |= {"out_proj.weight": weights.out}
    return state | ({} if weights.out_bias is None else {"out_proj.bias": weights.out_bias})


def _unpack_wide(state: Mapping[str, Tensor], config: AttentionConfig) -> AttentionWeights:
    q, k, v = (state[f"{name}_proj_weight"] for name in "qkv")
    q_bias, k_bias, v_bias = state["in_proj_bias"].chunk(3) if config.bias else (None, None, None)
    return AttentionWeights(q, k, v, state["out_proj.weight"], q_bias, k_bias, v_bias, state.get("out_proj.bias"))


_WIDE = Layout("torch_mha_wide", "three matrices, one bias", "torch.nn.MultiheadAttention", _pack_wide, _unpack_wide)


def layout_of(variant: Variant, config: AttentionConfig) -> Layout:
    """Give the layout of a variant's parameters."""
    if variant.kind == "nn.MultiheadAttention":
        same = config.key_dim == config.value_dim == config.embed_dim
        return LAYOUTS["torch_mha"] if same else _WIDE
    return LAYOUTS["separate" if variant.projection == "separate" else config.qkv_layout]


def torch_masks(mask: Tensor | None, batch: int, heads: int) -> dict[str, Tensor]:
    """Write a mask as nn.MultiheadAttention reads it, True = hidden: by key, by query and key, or for each head."""
    if mask is None:
        return {}
    hidden, k_len = ~mask, mask.shape[-1]
    if mask.shape[1] == mask.shape[2] == 1:
        return {"key_padding_mask": hidden[:, 0, 0].expand(batch, k_len)}  # (B, Sk)
    if mask.shape[0] == mask.shape[1] == 1:
        return {"attn_mask": hidden[0, 0]}  # (Sq, Sk)
    return {"attn_mask": hidden.expand(batch, heads, -1, -1).flatten(0, 1)}  # (B*H, Sq, Sk)


def raw_sdpa(layer: MultiHeadAttention, inputs: Inputs, mask: Tensor | None) -> Tensor:
    """Project, call torch's fused function, project: as plainly as can be written. Returns (B, Sq, E)."""
    config, batch = layer.config, len(inputs.query)
    projected = (layer.wq(inputs.query), layer.wk(inputs.key), layer.wv(inputs.value))
    q, k, v = (x.view(batch, x.shape[1], -1, config.head_dim).transpose(1, 2) for x in projected)  # -> (B, H, S, D)
    k, v = share_heads(k, config.num_heads), share_heads(v, config.num_heads)
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=config.scale)
    output: Tensor = layer.fc_out(context.transpose(1, 2).flatten(2))  # (B, H, Sq, D) -> (B, Sq, H*D)
    return output


@dataclass(frozen=True, eq=False)
class Contender:
    """A variant with its weights and inputs, ready to be called."""

    config: AttentionConfig
    layout: Layout
    module: nn.Module
    dtype: Dtype
    leaves: tuple[Tensor, ...]
    forward: Forward

    def precision(self) -> AbstractContextManager[Any]:
        """Give the context of its number format."""
        return torch.amp.autocast("cpu", dtype=torch.bfloat16) if self.dtype == "autocast" else nullcontext()

    def infer(self) -> tuple[Tensor, Tensor | None]:
        """Compute output (B, Sq, E) and weights (B, H, Sq, Sk) or None, without a graph."""
        with torch.no_grad(), self.precision():
            return self.forward()

    def learn(self, cotangent: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Compute the output, and the gradients of sum(output · cotangent): of the parameters, then of the inputs."""
        with torch.enable_grad():
            with self.precision():
                output = self.forward()[0]
            wanted = [*self.module.parameters(), *self.leaves]
            return output.detach(), torch.autograd.grad(output, wanted, cotangent.to(output.dtype))

    def named(self, gradients: Sequence[Tensor]) -> AttentionWeights:
        """Sort the gradients of the parameters into the neutral form."""
        names = [name for name, _ in self.module.named_parameters()]
        return self.layout.unpack(dict(zip(names, gradients, strict=False)), self.config)


def build(variant: Variant, material: Material) -> Contender:
    """Make a variant ready: the same weights and inputs for all, rounded to its number format."""
    config, dtype = config_of(variant, material.config), TORCH_DTYPES[variant.dtype]
    layout, inputs = layout_of(variant, config), material.inputs.to(dtype)
    unique = {id(tensor): tensor.detach().requires_grad_() for tensor in (inputs.query, inputs.key, inputs.value)}
    inputs = Inputs(*(unique[id(tensor)] for tensor in (inputs.query, inputs.key, inputs.value)))
    module = material.layers.get((layout.name, dtype))
    if module is None:
        module = _module(variant, config, layout, material.weights.map(lambda tensor: tensor.to(dtype)))
        material.layers[layout.name, dtype] = module
    module = copy.copy(module).eval()  # shares the parameters: forty copies of a wide layer would not fit
    forward = _forward(variant, module, inputs, material, config)
    return Contender(config, layout, module, variant.dtype, tuple(unique.values()), forward)


def _module(variant: Variant, config: AttentionConfig, layout: Layout, weights: AttentionWeights) -> nn.Module:
    if variant.kind != "nn.MultiheadAttention":
        return MultiHeadAttention.from_config(config, weights)
    widths = {"kdim": config.kdim, "vdim": config.vdim}
    peer = nn.MultiheadAttention(
        config.embed_dim, config.num_heads, bias=config.bias, batch_first=True, device="meta", **widths
    )
    peer.load_state_dict(layout.pack(weights, config), assign=True)  # nothing is drawn from the global generator
    return peer


def _forward(
    variant: Variant, module: nn.Module, inputs: Inputs, material: Material, config: AttentionConfig
) -> Forward:
    query, key, value = inputs.query, inputs.key, inputs.value
    if isinstance(module, nn.MultiheadAttention):
        peer, masks = module, torch_masks(material.mask, len(query), config.num_heads)
        options: dict[str, Any] = {"need_weights": variant.need_weights, "average_attn_weights": False}
        return lambda: peer(query, key, value, **masks, **options)
    layer = cast(MultiHeadAttention, module)
    layer.config, layer.fill = config, material.fill
    if variant.kind == "raw SDPA":
        return lambda: (raw_sdpa(layer, inputs, material.mask), None)
    return lambda: layer(query, key, value, material.mask, need_weights=variant.need_weights)
