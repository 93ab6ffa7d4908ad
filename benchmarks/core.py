"""The core's forward against torch's own, with and without weights, at four sizes; evaluation, no gradients.

With weights both projections are measured: three matrices, and one fused. Last comes the chunked kernel's memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.report import Row, ratio
from mha_core import MultiHeadAttention
from mha_core.kernels import KernelCall, chunked_kernel
from mha_core.lenses.bench_memory import peak_extra_bytes

SIZES = ((1, 64, 512, 8), (2, 128, 512, 8), (1, 512, 512, 8), (1, 2048, 512, 8))  # B, S, E, H
BAR = 1.05
LONG, CHUNKED_BAR = 8192, 1 / 16  # tokens; share of the S x S matrices


class RawSdpa(nn.Module):
    """The same four projections around torch's fused attention, written as plainly as can be."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.heads = num_heads
        self.q, self.k, self.v, self.out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Attend to oneself, (B, S, E) -> (B, S, E)."""
        batch, length, width = x.shape
        q, k, v = (layer(x).view(batch, length, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        context = F.scaled_dot_product_attention(q, k, v)
        return self.out(context.transpose(1, 2).reshape(batch, length, width))


@torch.no_grad()
def rows() -> Iterator[Row]:
    """Measure both variants at every size."""
    for batch, length, width, heads in SIZES:
        x = torch.randn(batch, length, width, generator=torch.Generator().manual_seed(0))
        size = f"(B, S, E, H) = ({batch}, {length}, {width}, {heads})"
        peer = nn.MultiheadAttention(width, heads, batch_first=True).eval()
        for projection, name in (("separate", "forward with weights"), ("fused", "forward with weights, fused")):
            ours = MultiHeadAttention(width, heads, projection=projection).eval()
            value, detail = ratio(
                lambda m=ours, x=x: m(x), lambda m=peer, x=x: m(x, x, x, need_weights=True, average_attn_weights=False)
            )
            yield Row(f"{name} / nn.MultiheadAttention, {size}", value, BAR, "x", detail)
        fused, raw = MultiHeadAttention(width, heads, kernel="sdpa").eval(), RawSdpa(width, heads).eval()
        value, detail = ratio(lambda m=fused, x=x: m(x, need_weights=False), lambda m=raw, x=x: m(x))
        yield Row(f"forward without weights / same projections around SDPA, {size}", value, BAR, "x", detail)
    yield chunked_memory()


@torch.no_grad()
def chunked_memory() -> Row:
    """Measure what the chunked kernel allocates beside q, k and v, without weights, against one matrix per head."""
    heads, head_dim = 8, 64
    q, k, v = torch.randn(3, 1, heads, LONG, head_dim, generator=torch.Generator().manual_seed(0)).unbind()
    peak = peak_extra_bytes(lambda: chunked_kernel(q, k, v, None, KernelCall(head_dim**-0.5, need_weights=False)))
    matrices = heads * LONG * LONG * q.itemsize
    detail = f"{peak / 2**20:.1f} MiB against {matrices / 2**20:.0f} MiB, context included"
    what = f"chunked kernel, extra memory / S x S matrices, S = {LONG}, {heads} heads"
    return Row(what, peak / matrices, CHUNKED_BAR, "x", detail)
