"""In which order q, k and v lie inside a fused matrix: the evidence that its numbers give for each known order.

Shapes cannot tell [q | k | v] from an order per head. Trained numbers can: blocks of one kind read the same channels of
the input and are of one size, the q and k of one head work in one subspace and have row norms that go together (they
meet in one product, and only there). Each order is a guess which rows are whose; each kind of evidence is compared with
the same numbers under random guesses, and counted in standard deviations from their mean. A fresh matrix gives none.

Measured on the layers of all-MiniLM-L6-v2 (6) and SmolLM2-135M (30), packed both ways: the tests hold the count.

Letters: H heads, Hkv key/value heads, D head_dim, G = H / Hkv. A block is the D rows of one head of one kind.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.lenses.checkpoint_blocks import Heads
from mha_core.lenses.checkpoint_stats import slices

GUESSES = 400
CAP = 8.0  # standard deviations: no single kind of evidence decides alone
ENOUGH = 8.0  # of the best order, four kinds together
MARGIN = 4.0  # between the best orders of both packings
ORDER_MARGIN = 6.0  # between orders of one packing: the true one was up to 4.8 behind the best in trained layers
PACKINGS = ("stacked", "interleaved")
MAX_CHANNELS = 1024  # of the input; of more, every second, third, ... is weighed
TINY = 1e-30

Assignment = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class LayoutEvidence:
    """What speaks for one order, in standard deviations from random guesses.

    Attributes:
        packing: "stacked" or "interleaved". order: of q, k and v; "q|k|v".
        channels: blocks of one kind read the same input channels. size: they have the same size and evenness.
        subspace: q and k of one head work in one subspace. rows: their row norms go together, more than q's and v's.
        total: their sum, each at most 8.
    """

    packing: str
    order: str
    channels: float
    size: float
    subspace: float
    rows: float
    total: float


@dataclass(frozen=True)
class FusedEvidence:
    """The evidence for every known order, best first, and what follows from it.

    Attributes:
        packing: "stacked" or "interleaved"; None where it cannot be told.
        orders: orders of q, k and v that are left, best first. verdict: one sentence. agrees: whether it is the
            family's own packing; None where it cannot be told.
    """

    layouts: tuple[LayoutEvidence, ...]
    packing: str | None
    orders: tuple[str, ...]
    verdict: str
    agrees: bool | None


@dataclass(frozen=True, eq=False)
class _Features:
    """Of all N blocks: likeness of their channel profiles (N, N), sizes (2, N), overlaps (N, N), row norms (N, D)."""

    likeness: Tensor
    sizes: Tensor
    overlap: Tensor
    rows: Tensor


def assignments(heads: Heads) -> dict[tuple[str, str], Assignment]:
    """Give what each known order makes of the blocks: (kind, head) of each; orders that mean the same, once."""
    h, kv, groups = heads.num_heads, heads.num_kv_heads, heads.num_heads // heads.num_kv_heads
    found: dict[tuple[str, str], Assignment] = {}
    for packing, order in itertools.product(PACKINGS, itertools.permutations("qkv")):
        if packing == "stacked":
            blocks = [(kind, head) for kind in order for head in range(h if kind == "q" else kv)]
        else:
            of_group = [
                [(kind, n * groups + g) for g in range(groups if kind == "q" else 1)] if kind == "q" else [(kind, n)]
                for n in range(kv)
                for kind in order
            ]
            blocks = [block for part in of_group for block in part]
        if tuple(blocks) not in found.values():
            found[packing, "|".join(order)] = tuple(blocks)
    return found


def _features(fused: Tensor, head_dim: int) -> _Features:
    """Describe the blocks of a fused matrix (N*D, E)."""
    matrix = fused[:, :: -(-fused.shape[1] // MAX_CHANNELS)].to(torch.float64)
    blocks = matrix.reshape(-1, head_dim, matrix.shape[1])  # (N*D, E) -> (N, D, E)
    profile = blocks.norm(dim=1).clamp_min(TINY).log()  # (N, E)
    profile = profile - profile.mean(0)
    profile = profile / profile.norm(dim=1, keepdim=True).clamp_min(TINY)
    likeness = (profile @ profile.t()).fill_diagonal_(0)
    rows = blocks.norm(dim=2).clamp_min(TINY).log()  # (N, D)
    size = blocks.flatten(1).norm(dim=1).clamp_min(TINY).log()
    sizes = torch.stack([size, rows.std(1, correction=0).clamp_min(TINY).log()])
    sizes = (sizes - sizes.mean(1, keepdim=True)) / sizes.std(1, keepdim=True, correction=0).clamp_min(TINY)
    overlap = torch.stack([_overlaps(matrix, block) for block in blocks]) - size[:, None] - size
    return _Features(likeness, sizes, overlap, rows)


def _overlaps(matrix: Tensor, block: Tensor) -> Tensor:
    """Log of the norm of every block's product with one block (D, E). (N*D, E) -> (N,)."""
    products = (matrix @ block.t()).reshape(-1, len(block), len(block))  # (N*D, D) -> (N, D, D)
    return products.square().sum((1, 2)).clamp_min(TINY).log() / 2


def _deviations(values: Tensor) -> float:
    """Standard deviations of the first value from the mean of the others."""
    spread = values[1:].std().item()
    return (values[0] - values[1:].mean()).item() / spread if spread > 1e-9 else 0.0


def _guesses(labels: Tensor, generator: torch.Generator) -> Tensor:
    """The labels, and random orders of them. (N,) -> (1 + guesses, N)."""
    shuffled = [labels[torch.randperm(len(labels), generator=generator)] for _ in range(GUESSES)]
    return torch.stack([labels, *shuffled])


def _kinds(features: _Features, labels: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Evidence that blocks of one kind are alike: by channels, and by size."""
    kinds = torch.nn.functional.one_hot(_guesses(labels, generator), 3).double()  # (guesses, N, 3)
    within = torch.einsum("gnc,nm,gmc->g", kinds, features.likeness, kinds)
    means = torch.einsum("fn,gnc->gfc", features.sizes, kinds) / kinds.sum(1)[:, None]
    between = (means.square() * kinds.sum(1)[:, None]).sum((1, 2))
    return _deviations(within), _deviations(between)


def _pairs(features: _Features, q: Tensor, other: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Evidence that each q belongs to its k (or v): by subspace, and by row norms.

    Args:
        q: (H,) places of the q blocks. other: (H,) places of the block that each is paired with.
    """
    partners, own = torch.unique(other, return_inverse=True)
    overlap = features.overlap[q][:, partners]  # (H, Hkv)
    overlap = overlap - overlap.mean(0) - overlap.mean(1, keepdim=True) + overlap.mean()
    subspace = (
        _deviations(overlap[torch.arange(len(q)), _guesses(own, generator)].mean(1)) if len(partners) > 1 else 0.0
    )
    one, two = features.rows[q], features.rows[other]
    one, two = one - one.mean(1, keepdim=True), two - two.mean(1, keepdim=True)
    lengths = (one.norm() * two.norm()).item()
    likeness = (one * two).sum().item() / lengths if lengths > 0 else 0.0
    freedom = max(1, len(partners) * (one.shape[1] - 1) - 2)
    return subspace, math.atanh(max(-0.999999, min(0.999999, likeness))) * math.sqrt(freedom)  # Fisher's z


def _capped(value: float) -> float:
    return max(-CAP, min(CAP, value))


def weigh(fused: Tensor, heads: Heads) -> tuple[LayoutEvidence, ...]:
    """Weigh every known order of a finite fused matrix (H*D + 2*Hkv*D, E), best first."""
    features = _features(fused, heads.head_dim)
    groups = heads.num_heads // heads.num_kv_heads
    found = []
    for (packing, order), blocks in assignments(heads).items():
        generator = torch.Generator().manual_seed(0)
        place = {block: number for number, block in enumerate(blocks)}
        labels = torch.tensor(["qkv".index(kind) for kind, _ in blocks])
        q = torch.tensor([place["q", head] for head in range(heads.num_heads)])
        k, v = (torch.tensor([place[kind, head // groups] for head in range(heads.num_heads)]) for kind in "kv")
        channels, size = _kinds(features, labels, generator)
        subspace, k_rows = _pairs(features, q, k, generator)
        rows = (k_rows - _pairs(features, q, v, generator)[1]) / math.sqrt(2)
        total = sum(map(_capped, (channels, size, subspace, rows)))
        found.append(LayoutEvidence(packing, order, channels, size, subspace, rows, total))
    return tuple(sorted(found, key=lambda layout: -layout.total))


def _uncertain(layouts: tuple[LayoutEvidence, ...], why: str) -> FusedEvidence:
    return FusedEvidence(layouts, None, (), f"uncertain: {why}", None)


def judge(fused: Tensor, heads: Heads | None, family_packing: str, fresh: bool) -> FusedEvidence:
    """Weigh the orders of a fused matrix and say what follows.

    Args:
        fused: (H*D + 2*Hkv*D, E). heads: None where they are not known. family_packing: what the family says.
        fresh: whether its parts look like fresh draws.
    """
    if heads is None:
        return _uncertain((), "the number of heads is not known, so an order per head cannot be weighed")
    if not all(bool(torch.isfinite(part).all()) for part in slices(fused)):
        return _uncertain((), "numbers are missing (NaN or Inf)")
    if heads.num_heads < 3 or heads.head_dim < 2:
        return _uncertain((), "too few heads or channels to weigh the orders")
    layouts = weigh(fused, heads)
    if fresh:
        return _uncertain(layouts, "the numbers look like fresh draws, and every order gives the same")
    best = layouts[0]
    rivals = [layout for layout in layouts if layout.packing != best.packing]
    totals = ", ".join(
        f"{_best_of(layouts, p).total:.1f} for {p}" for p in PACKINGS if any(x.packing == p for x in layouts)
    )
    if best.total < ENOUGH or (rivals and best.total - rivals[0].total < MARGIN):
        return _uncertain(layouts, f"the evidence is {totals} (standard deviations), too little to decide")
    orders = tuple(x.order for x in layouts if x.packing == best.packing and best.total - x.total < ORDER_MARGIN)
    words = "q, k, v one after the other" if best.packing == "stacked" else "per head"
    agrees = best.packing == family_packing
    family = "as the family has it" if agrees else f"but the family has it {family_packing}"
    if orders == ("q|k|v",):
        left = "in the order q|k|v"
    else:
        left = "q|k|v fits, as other orders do" if "q|k|v" in orders else f"in the order {' or '.join(orders)}"
    verdict = f"{best.packing} ({words}), {left}; {family}. Evidence: {totals} (standard deviations)"
    return FusedEvidence(layouts, best.packing, orders, verdict, agrees)


def _best_of(layouts: Sequence[LayoutEvidence], packing: str) -> LayoutEvidence:
    return next(layout for layout in layouts if layout.packing == packing)
