"""Modules whose mask replaces their own causal one: whoever gives a mask has to write causality into it.

`mask is None` decides in many a library's layer whether the causal path is taken. That is a convention where the
argument takes a mask over pairs; an argument for padding alone cannot hold causality, and must not lose it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from mha_core.doctor.calls.convention import Answer, Convention, Request
from mha_core.doctor.calls.failure import ModuleFailure
from mha_core.doctor.calls.key_influence import influence
from mha_core.doctor.calls.mask_words import documented_scope
from mha_core.doctor.calls.signs import class_tree, library

Probe = Callable[[Convention, Request], Answer]


def replaces_causality(module: nn.Module, probe: Probe, convention: Convention, plain: Request) -> bool:
    """Tell whether a mask that hides nothing opens the future, by way of an argument that is meant to hold it all.

    Args:
        probe: calls the module. plain: self-attention without masks.
    """
    masks = [use for use in convention.masks if use.scope == "sample_pairs"]
    if not masks or convention.call is not None or not plain.inputs.is_self:
        return False
    name = masks[0].argument
    if not library(module) and (documented_scope(module, name) == "keys" or not _asks_for_none(module, name)):
        return False
    batch, length = plain.inputs.query.shape[:2]
    everything = replace(plain, keep_pairs=torch.ones(batch, length, length, dtype=torch.bool))
    try:
        return _ahead(probe, convention, plain) == 0 < _ahead(probe, convention, everything)
    except ModuleFailure:
        return False


def _ahead(probe: Probe, convention: Convention, request: Request) -> float:
    """Give the largest influence of a later token."""
    return float(torch.nan_to_num(influence(lambda r: probe(convention, r), request)).triu(1).max())


def _asks_for_none(module: nn.Module, name: str) -> bool:
    """Tell whether the class asks if this mask is None: its own causal mask is then a default."""
    tests = [node for node in ast.walk(class_tree(module)) if isinstance(node, ast.Compare)]
    return any(re.fullmatch(rf"{re.escape(name)} is (not )?None", ast.unparse(test)) for test in tests)


def with_causality(request: Request) -> Request:
    """Write causality into the masks of a request that has some; the last query is aligned with the last key."""
    if request.keep_keys is None and request.keep_pairs is None:
        return request
    q_len, k_len = request.inputs.query.shape[1], request.inputs.key.shape[1]
    triangle = torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)
    pairs = triangle if request.keep_pairs is None else request.keep_pairs & triangle
    return replace(request, keep_pairs=pairs)
