"""The layer as lines of source in reading order, and how they are run.

Every step is a few lines of Python over the letters and tensors of a case; a mistake puts other lines in the place of
some steps. The plain lines compute what the experiment computes. Gradients are those of the four matrices as they are
after the first step.

Letters: B sequences, Sq queries, Sk keys, E embed_dim, H heads, Hkv key/value heads, D head_dim.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_core.clinic.case import Case
from mha_core.clinic.record import Mistake, Side
from mha_core.init_schemes import generator_for
from mha_core.kernels import drop_weights
from mha_core.masks import resolve_fill

PLAIN: dict[str, str] = {
    "init": "",
    "visible": "",
    "project": "q = F.linear(query, wq, bq)\nk = F.linear(key, wk, bk)\nv = F.linear(value, wv, bv)",
    "split": "q = q.view(B, Sq, H, D).transpose(1, 2)\n"
    "k = k.view(B, Sk, Hkv, D).transpose(1, 2)\n"
    "v = v.view(B, Sk, Hkv, D).transpose(1, 2)",
    "position": "q, k = turn(q, Sk - Sq), turn(k, 0)",
    "share": "k = k.repeat_interleave(H // Hkv, dim=1)\nv = v.repeat_interleave(H // Hkv, dim=1)",
    "scores": "scores = (q * scale) @ k.transpose(-2, -1) + bias",
    "mask": "scores = scores.masked_fill(~mask, fill)",
    "softmax": "weights = torch.softmax(scores, dim=-1)",
    "empty_rows": "weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)",
    "dropout": "weights = drop(weights, p if training else 0.0)",
    "values": "context = weights.to(v.dtype) @ v",
    "mute": "",
    "join": "joined = context.transpose(1, 2).reshape(B, Sq, H * D)",
    "output": "output = F.linear(joined, wo, bo)",
    "read": "shown = weights",
    "report": "",
}
STEPS = tuple(PLAIN)
ATTEND = STEPS[STEPS.index("split") : STEPS.index("output")]
LAYER = STEPS[STEPS.index("project") : STEPS.index("read")]
MATRICES = {"q": "wq", "k": "wk", "v": "wv", "out": "wo"}
BIASES = {"q": "bq", "k": "bk", "v": "bv", "out": "bo"}
TENSORS = ("q", "k", "v", "scores", "weights", "context", "joined", "output", "shown")
_compiled = functools.lru_cache(maxsize=512)(compile)


@dataclass
class Ran:
    """What running the lines left behind.

    Attributes:
        names: every variable.
        facts: step, tensor, shape, dtype, whether contiguous, in the order they appeared.
        scores: as they were before the mask, where there were any.
        step, error: where it stopped and what Python raised; "" and None where it did not.
    """

    names: dict[str, Any]
    facts: list[tuple[str, str, tuple[int, ...], str, bool]] = field(default_factory=list)
    scores: Tensor | None = None
    step: str = ""
    error: Exception | None = None

    def tensor(self, name: str) -> Tensor | None:
        """Give a tensor by its name, None where it was not made."""
        found = self.names.get(name)
        return found if isinstance(found, Tensor) else None


def recipe(case: Case, mistake: Mistake | None = None, side: Side = "right") -> dict[str, str]:
    """Give the lines of every step, those of the mistake in place of the steps it names."""
    lines = dict(PLAIN)
    if case.experiment.mask.fill != "zero":
        lines["empty_rows"] = ""
    if case.muted:
        lines["mute"] = "context = context.index_fill(1, muted, 0.0)"
    if mistake is not None:
        lines |= dict.fromkeys(mistake.steps, "") | {mistake.steps[0]: mistake.lines(side)}
    return lines


def odd_heads(width: int) -> int:
    """Give the smallest number of heads that does not divide a width."""
    return next(heads for heads in range(2, width + 2) if width % heads)


def _score_dtype(case: Case) -> torch.dtype:
    """Give the number format of the scores: autocast multiplies in bfloat16."""
    return torch.bfloat16 if case.experiment.dtype == "autocast" else case.query.dtype


def _names(case: Case, *, training: bool) -> dict[str, Any]:
    """Give the variables that the lines may use."""
    config, weights = case.experiment.attention, case.weights
    batch, q_len = case.query.shape[:2]
    generator = generator_for(case.experiment.seed + case.run_seed, "dropout")
    names: dict[str, Any] = {
        "torch": torch,
        "F": F,
        "math": math,
        "B": batch,
        "Sq": q_len,
        "Sk": case.key.shape[1],
        "E": config.embed_dim,
        "H": config.num_heads,
        "Hkv": config.kv_heads,
        "D": config.head_dim,
        "query": case.query,
        "key": case.key,
        "value": case.value,
        "mask": case.mask,
        "keep": case.keep,
        "keep_q": case.keep_q,
        "wq": weights.q,
        "wk": weights.k,
        "wv": weights.v,
        "wo": weights.out,
        "bq": weights.q_bias,
        "bk": weights.k_bias,
        "bv": weights.v_bias,
        "bo": weights.out_bias,
        "bias": 0.0 if case.bias is None else case.bias,
        "scale": config.softmax_scale,
        "fill": resolve_fill(case.experiment.mask.fill, _score_dtype(case))[0],
        "p": config.dropout,
        "rate": config.dropout if training else 0.0,
        "training": training,
        "turn": case.turn,
        "drop": functools.partial(drop_weights, generator=generator),
        "muted": torch.tensor(case.muted, dtype=torch.long),
        "odd_heads": odd_heads(config.joined_dim),
        "itemsize": case.query.itemsize,
        "theta": config.rope_theta or 10_000.0,
    }
    names["mha"] = _library(names)
    return names


def _library(names: dict[str, Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Give torch's own layer, with the weights of this one."""

    def mha(
        query: Tensor, key: Tensor, value: Tensor, *, batch_first: bool = True, **options: Any
    ) -> tuple[Tensor, Tensor]:
        has_bias = names["bq"] is not None
        # Its own values are never made: those of the case take their place.
        module = nn.MultiheadAttention(names["E"], names["H"], bias=has_bias, batch_first=batch_first, device="meta")
        values = {"in_proj_weight": torch.cat([names["wq"], names["wk"], names["wv"]]), "out_proj.weight": names["wo"]}
        if has_bias:
            values |= {"in_proj_bias": torch.cat([names["bq"], names["bk"], names["bv"]])}
            values |= {"out_proj.bias": names["bo"]}
        asked = {"need_weights": True, "average_attn_weights": False} | options
        answer: tuple[Tensor, Tensor] = torch.func.functional_call(module, values, (query, key, value), asked)
        return answer

    return mha


def _code(step: str, lines: str) -> CodeType:
    code: CodeType = _compiled(lines, f"<{step}>", "exec")
    return code


def _new_facts(step: str, names: dict[str, Any], seen: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    for name in TENSORS:
        tensor = names.get(name)
        if isinstance(tensor, Tensor) and seen.get(name) != id(tensor):
            seen[name] = id(tensor)
            yield step, name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.is_contiguous()


def run_lines(case: Case, lines: dict[str, str], *, training: bool | None = None, leaves: bool = False) -> Ran:
    """Run the steps in order; an error of the lines ends the run and is kept.

    Args:
        training: None means as the experiment: only where it has dropout.
        leaves: make the four matrices require a gradient, as they are after the first step.
    """
    is_training = case.experiment.attention.dropout > 0 if training is None else training
    ran = Ran(_names(case, training=is_training))
    seen: dict[str, int] = {}
    for step, code in lines.items():
        try:
            exec(_code(step, code), ran.names)
        except Exception as error:
            ran.step, ran.error = step, error
            return ran
        if step == "init" and leaves:
            ran.names |= {w: ran.names[w].detach().clone().requires_grad_() for w in MATRICES.values()}
        if step == "scores":
            ran.scores = ran.tensor("scores")
        ran.facts.extend(_new_facts(step, ran.names, seen))
    return ran
