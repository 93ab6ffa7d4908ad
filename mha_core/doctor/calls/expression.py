"""The person's own way to call a module: an expression over fixed names, or a function of parameters named so."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mha_core.doctor.calls.convention import Request, Takes
from mha_core.errors import MhaError

CALL_NAMES: dict[str, str] = {
    "module": "the module (m for short)",
    "x": "the tokens, (B, S, E)",
    "q": "query, (B, Sq, E)",
    "k": "key, (B, Sk, kdim)",
    "v": "value, (B, Sk, vdim)",
    "context": "what is attended to, (B, Sk, kdim); the tokens themselves in self-attention",
    "keep": "bool (B, Sq, Sk), True = may attend, or None",
    "hide": "bool (B, Sq, Sk), True = hidden, or None",
    "additive": "float (B, Sq, Sk), 0 = may attend, -inf = hidden, or None",
    "keep_keys": "bool (B, Sk), True = may be attended, or None",
    "hide_keys": "bool (B, Sk), True = hidden, or None",
    "causal": "True, False, or None where nothing is asked",
    "need_weights": "True where attention weights are asked for",
    "torch": "the library, to reshape what the module wants otherwise",
}
_PAIRS, _KEYS = ("keep", "hide", "additive"), ("keep_keys", "hide_keys")


@dataclass(frozen=True)
class PersonCall:
    """A way to call, the tensors it uses, and the masks it can be given ("pairs", "keys")."""

    text: str
    function: Callable[[nn.Module, Request], Any]
    takes: Takes
    masks: frozenset[str]


def person_call(call: str | Callable[..., Any], batch_first: bool) -> PersonCall:
    """Read an expression such as "module(x, mask=keep)", or a function of some of `CALL_NAMES`.

    Raises:
        MhaError: it is no expression, or uses names that do not exist.
    """
    if isinstance(call, str):
        names, run = _expression(call)
        text = call
    else:
        names = set(inspect.signature(call).parameters)
        function, text = call, getattr(call, "__name__", "a function")
        run = lambda values: function(**{name: values[name] for name in names})  # noqa: E731
    unknown = sorted(names - set(CALL_NAMES) - {"m"})
    if unknown:
        raise MhaError(
            "call",
            text,
            "an expression of " + ", ".join(CALL_NAMES),
            problem=f"--call uses {', '.join(unknown)}; it can use {', '.join(CALL_NAMES)}",
        )
    masks = frozenset(scope for scope, those in (("pairs", _PAIRS), ("keys", _KEYS)) if names & set(those))
    takes: Takes = "qkv" if {"k", "v"} & names else "context" if "context" in names else "tokens"
    return PersonCall(text, lambda module, request: run(_values(module, request, masks, batch_first)), takes, masks)


def _expression(call: str) -> tuple[set[str], Callable[[dict[str, Any]], Any]]:
    try:
        tree = ast.parse(call.strip(), mode="eval")
    except SyntaxError as error:
        raise MhaError("call", call, 'a Python expression such as "module(x, mask=keep)"') from error
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {a.arg for n in ast.walk(tree) if isinstance(n, ast.Lambda) for a in n.args.args}
    builtins = set(__builtins__ if isinstance(__builtins__, dict) else vars(__builtins__))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - bound
    names -= builtins - set(CALL_NAMES)
    code = compile(tree, "--call", "eval")
    return names, lambda values: eval(code, dict(values))


def _values(module: nn.Module, request: Request, masks: frozenset[str], batch_first: bool) -> dict[str, Any]:
    inputs = request.inputs
    laid: dict[int, Tensor] = {}
    for tensor in (inputs.query, inputs.key, inputs.value):
        laid.setdefault(id(tensor), (tensor if batch_first else tensor.transpose(0, 1)).contiguous())
    query, key, value = (laid[id(tensor)] for tensor in (inputs.query, inputs.key, inputs.value))
    keys, pairs = request.keep_keys, request.keep_pairs
    batch, q_len, k_len = *inputs.query.shape[:2], inputs.key.shape[1]
    keep: Tensor | None = None
    if pairs is not None or (keys is not None and "keys" not in masks):
        keep = torch.ones(batch, q_len, k_len, dtype=torch.bool)
        keep = keep if pairs is None else keep & pairs
        if keys is not None and "keys" not in masks:
            keep = keep & keys.unsqueeze(1)
    additive = None
    if keep is not None:
        additive = torch.zeros(keep.shape, dtype=inputs.query.dtype).masked_fill(~keep, float("-inf"))
    return {
        "module": module,
        "m": module,
        "torch": torch,
        "x": query,
        "q": query,
        "k": key,
        "v": value,
        "context": key,
        "keep": keep,
        "hide": None if keep is None else ~keep,
        "additive": additive,
        "keep_keys": keys,
        "hide_keys": None if keys is None else ~keys,
        "causal": request.causal,
        "need_weights": request.mode.weights,
    }
