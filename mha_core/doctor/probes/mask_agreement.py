"""Masks given together, and masks whose forms contradict each other: what one hides must stay hidden beside another.

Axes: B batch, S tokens.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from mha_core.doctor.calls.mask_forms import HIDING
from mha_core.doctor.calls.mask_words import documented
from mha_core.doctor.calls.signs import class_source
from mha_core.doctor.causes.mistakes import mask_finding
from mha_core.doctor.probes.influence import NOISE, Look, Probe, influence, key_part
from mha_core.doctor.probes.lengths import usable_lengths
from mha_core.doctor.report import CheckResult, Place
from mha_core.doctor.subject import Inputs, Mode, ModuleFailure, Subject
from mha_core.doctor.traces.fused import arguments

STILL = Mode(dropout=0.0)
TRUTHS = ("keep", "hide")
ADDED = ("add", "add_min")
_CAST = r"[^\n]*\.((float|type|type_as)\(|to\((?![\w.=]*device\s*\)))"


def masks_disagree(subject: Subject) -> CheckResult | None:
    """Ask what becomes of two masks at once, and whether masks of one module mean the same."""
    if subject.is_library:
        return None
    return _replaced(subject) or _opposite(subject) or _added_as_given(subject)


def _replaced(subject: Subject) -> CheckResult | None:
    """Give a mask over pairs and one over keys: what either hides alone has to be hidden by both."""
    if not (subject.key_mask and subject.pair_mask):
        return None
    length = usable_lengths(subject, (7, 8, 12, 5))[0]
    keys = torch.ones(2, length, dtype=torch.bool)
    keys[0, -2:] = False
    pairs = torch.ones(length, length, dtype=torch.bool).tril()
    if length < 4 or not subject.accepts(keep_keys=keys, keep_pairs=pairs):
        return None
    probe, inputs = Probe(subject, STILL), subject.inputs(2, length)
    try:
        for lost, hidden, alone in (
            ("pairs", ~pairs, {"keep_pairs": pairs}),
            ("keys", ~keys[0].expand(length, -1), {"keep_keys": keys}),
        ):
            rows = keys[0] if key_part(inputs) == "tokens" else torch.ones(length, dtype=torch.bool)
            if _shown(probe.under(alone), inputs, hidden, rows):
                continue  # it does not hide by itself either: told of elsewhere
            both = probe.under({"keep_keys": keys, "keep_pairs": pairs})
            if _shown(both, inputs, hidden, rows):
                reason = f"given with the other mask, the mask over {lost} has no effect; alone it hides"
                cause, where = "one mask replaces the other: they have to be joined", _origin(both.look(inputs))
                return CheckResult("padding", "fail", reason, {"lost": lost, "tokens": length}, cause, where)
    except ModuleFailure:
        return None
    return None


def _shown(probe: Probe, inputs: Inputs, hidden: Tensor, rows: Tensor) -> bool:
    """Whether any hidden token moves an output of sample 0. hidden: (Sq, Sk); rows: (Sq,), outputs that count."""
    moved = influence(probe, inputs, key_part(inputs))[:, 0].T > NOISE  # (Sq, Sk)
    own = torch.eye(*moved.shape, dtype=torch.bool)
    return bool((moved & hidden & ~own & rows[:, None]).any())


def _origin(look: Look) -> Place | None:
    """Give the line that made the mask the attention was given, else the attention's own."""
    given = [m.mask for core in look.cores[:1] for m in core.masks if m.mask is not None]
    fused = [core.values_step for core in look.cores[:1] if core.kind == "sdpa" and core.values_step is not None]
    given = [mask for step in fused if isinstance(mask := arguments(step).get("attn_mask"), Tensor)] or given
    made = None if not given else look.trace.made(given[-1])
    return mask_finding(look)[1] if made is None or made.place is None else made.place


def _opposite(subject: Subject) -> CheckResult | None:
    """Find two bool masks of which one hides where it is True and the other where it is False, and no word says so."""
    uses = [use for use in subject.convention.masks if use.kind in TRUTHS and "mask" in use.argument]
    hiding = next((use for use in uses if use.kind in HIDING), None)
    if hiding is None:
        return None
    others = [use for use in uses if use.kind not in HIDING and use.argument != hiding.argument]
    keeping = next((use for use in others if "pad" in use.argument), None)
    if keeping is None or documented(subject.module, keeping.argument):
        return None
    reason = f"True in {hiding.argument} hides and True in {keeping.argument} keeps, and nothing says so"
    cause = f"{keeping.argument} is read the other way round than {hiding.argument}: True usually means padding there"
    evidence = {"masks": [str(hiding), str(keeping)]}
    keys = torch.ones(2, 5, dtype=torch.bool)
    keys[0, -2:] = False
    try:
        where = _origin(Probe(subject, STILL, {"keep_keys": keys}).look(subject.inputs(2, 5)))
    except ModuleFailure:
        where = None
    return CheckResult("padding", "warn", reason, evidence, cause, where)


def _added_as_given(subject: Subject) -> CheckResult | None:
    """Find a mask (B, Sk) that is cast to the scores' type and added: a usual mask of 1 and 0 hides nothing then."""
    use = next((u for u in subject.convention.masks if u.scope == "keys" and u.shape == "(B, Sk)"), None)
    if use is None or use.kind not in ADDED or documented(subject.module, use.argument):
        return None
    name = re.escape(use.argument)
    if "bias" in name or not re.search(rf"\b{name}\b{_CAST}", class_source(subject.module)):
        return None
    keys = torch.ones(2, 5, dtype=torch.bool)
    keys[0, -2:] = False
    try:
        look = Probe(subject, STILL, {"keep_keys": keys}).look(subject.inputs(2, 5))
    except ModuleFailure:
        return None
    reason = f"{use.argument} (B, Sk) is cast and added to the scores: given as 1 and 0, it hides nothing"
    cause = "a 0/1 mask is added to the scores without being turned into 0 and -inf"
    return CheckResult("padding", "warn", reason, {"mask": str(use)}, cause, mask_finding(look)[1])
