"""Small hand-written attention modules for tests: a right one, in steps that a subclass can get wrong."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from mha_core.doctor.report import Place
from mha_core.doctor.traces.cores import Core, cores
from mha_core.doctor.traces.tracing import Trace, traced

B, S, H, D = 2, 5, 3, 4
E = H * D
SIZES = {"batch": B, "q_len": S, "k_len": S, "num_heads": H}


class Right(nn.Module):
    """q, k, v, o projections; split, score, hide, weigh, mix and join are one method each."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(E, E) for _ in range(4))
        self.dropout = nn.Dropout(0.1)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, H, D).transpose(1, 2)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) / D**0.5

    def hide(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores.masked_fill(~keep, float("-inf"))

    def weigh(self, scores: Tensor) -> Tensor:
        return self.dropout(torch.softmax(scores, -1))

    def join(self, context: Tensor) -> Tensor:
        return context.transpose(1, 2).reshape(context.shape[0], -1, E)

    def forward(self, x: Tensor, context: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(context)), self.split(self.v_proj(context))
        scores = self.score(q, k)
        if keep is not None:
            scores = self.hide(scores, keep)
        return self.o_proj(self.join(self.weigh(scores) @ v))


def marked(kind: type, mark: str = "# wrong") -> int:
    """Find the line of a class that carries a mark."""
    lines, first = inspect.getsourcelines(kind)
    found = [first + i for i, line in enumerate(lines) if mark in line]
    assert len(found) == 1, f"{kind.__name__} carries {len(found)} marks"
    return found[0]


def watch(module: nn.Module, *args: Tensor | None, **kwargs: Tensor | None) -> tuple[Trace, tuple[Core, ...]]:
    """Trace a call in evaluation mode, after making sure that tracing changes nothing."""
    module.eval()
    plain = module(*args, **kwargs)
    with traced([inspect.getfile(type(module)), __file__]) as trace:
        seen = module(*args, **kwargs)
    assert torch.allclose(plain, seen, rtol=0, atol=0, equal_nan=True)
    return trace, cores(trace)


def line(place: Place | None) -> int | None:
    """Give the line of a place."""
    return None if place is None else place.line


def tokens(length: int = S) -> Tensor:
    """Random inputs (B, length, E)."""
    return torch.randn(B, length, E, generator=torch.Generator().manual_seed(length))


def lower() -> Tensor:
    """Causal mask (S, S), True = may attend."""
    return torch.ones(S, S, dtype=torch.bool).tril()
