"""Cross-attention: queries and keys of different numbers, values compared.

Every output has to depend on every key of its sample and on its own query alone. Lengths include multiples of each
other, where a view with the wrong length fits, and 1. A key and a value of different lengths are never tried: torch's
fused attention reads past the end of the shorter one.

Axes: B batch, Sq queries, Sk keys.
"""

from __future__ import annotations

import torch

from mha_core.doctor.causes.mistakes import first_named, split_mistake, unequal_lengths
from mha_core.doctor.causes.pointing import attention_line, projection_line
from mha_core.doctor.explain import explain
from mha_core.doctor.probes.influence import NOISE, Probe, depends, hiding, influence, says_local
from mha_core.doctor.probes.lengths import is_deliberate
from mha_core.doctor.probes.streams import ignored_argument, triangle
from mha_core.doctor.report import CheckResult
from mha_core.doctor.subject import Mode, ModuleFailure, Subject

BATCH = 2
LENGTHS = ((5, 7), (4, 8), (7, 3), (1, 6), (6, 1))
NOT_TRIED = "key and value of different lengths: fused attention would read past the end of the shorter one"


def check(subject: Subject) -> CheckResult:
    """Test attention from one sequence to another of another length."""
    if subject.takes == "tokens":
        reason = "forward takes one sequence: it is self-attention only"
        return CheckResult("cross_attention", "not_applicable", reason)
    for mode in (Mode(), Mode(weights=True)):
        for q_len, k_len in LENGTHS:
            try:
                finding = _judge(subject, mode, q_len, k_len)
            except ModuleFailure as failure:
                finding = _raised(subject, failure, q_len, k_len)
            if finding is not None:
                return finding
    for finding in (_masked(subject), ignored_argument(subject), triangle(subject)):
        if finding is not None:
            return finding
    spoken = ", ".join(f"{q_len}/{k_len}" for q_len, k_len in LENGTHS)
    reason = f"every output depends on every key and on its own query alone, with queries/keys {spoken}"
    if subject.expects_causal:
        reason = f"every output depends on its own query alone, with queries/keys {spoken}"
    return CheckResult(
        "cross_attention", "pass", reason, {"queries_keys": [list(pair) for pair in LENGTHS], "not_tried": NOT_TRIED}
    )


def _raised(subject: Subject, failure: ModuleFailure, q_len: int, k_len: int) -> CheckResult:
    """Judge a crash: a refusal on purpose is no crash."""
    evidence = {"queries": q_len, "keys": k_len, "error": failure.text}
    if is_deliberate(failure) and not subject.can_cross:
        reason = f"the module refuses {q_len} queries with {k_len} keys: {failure.text}"
        return CheckResult("cross_attention", "not_applicable", reason, evidence)
    explanation = explain(failure.text, {"B": BATCH, "Sq": q_len, "Sk": k_len})
    cause = explanation.explanation if explanation.known else "the length of the query is used for the keys"
    reason = f"{q_len} queries with {k_len} keys raise {failure.text}"
    return CheckResult("cross_attention", "fail", reason, evidence, cause, failure.place)


def _judge(subject: Subject, mode: Mode, q_len: int, k_len: int) -> CheckResult | None:
    probe = Probe(subject, mode)
    inputs = subject.inputs(BATCH, q_len, k_len)
    output = probe.output(inputs)
    words = f"{q_len} queries and {k_len} keys" + (", weights wanted" if mode.weights else "")
    evidence = {"queries": q_len, "keys": k_len, "output_shape": list(output.shape)}
    keys = depends(probe, lambda seed: subject.inputs(BATCH, q_len, k_len, seed=seed), "memory")
    causal = (
        subject.expects_causal is True
        or bool((keys == torch.ones_like(keys).tril()).all())
        or bool((keys == torch.ones_like(keys).tril(k_len - q_len)).all())
    )
    look = probe.look(inputs)
    if not bool(keys.all()) and not causal and not says_local(subject):
        row, key = (int(i) for i in (~keys).nonzero()[0])
        reason = f"output {row} does not depend on key {key}, with {words}"
        cause, where = first_named(split_mistake(subject, look, BATCH, q_len, k_len), unequal_lengths(look))
        if not bool(keys.any()):
            cause, where = cause or "keys and values are not made from the other sequence", projection_line(look, "key")
        where = where or attention_line(look)
        return CheckResult("cross_attention", "fail", reason, {**evidence, "output": row, "key": key}, cause, where)
    moved = influence(probe, inputs, "query")[:, 0].T > NOISE
    foreign = moved & ~torch.eye(q_len, dtype=torch.bool)
    if bool(foreign.any()) and not _mixes_queries(subject):
        row, query = (int(i) for i in foreign.nonzero()[0])
        reason = f"output {row} depends on query {query}, with {words}"
        cause, where = split_mistake(subject, look, BATCH, q_len, k_len)
        where = where or attention_line(look)
        return CheckResult("cross_attention", "fail", reason, {**evidence, "output": row, "query": query}, cause, where)
    return None


def _mixes_queries(subject: Subject) -> bool:
    """Tell whether queries may see each other beside attending: several attentions, convolutions, latents."""
    if {"conv", "recurrent"} & set(subject.position_signs):
        return True
    found = Probe(subject).look(subject.inputs(BATCH, 5, 7)).cores
    return len(found) > 1 or any(core.k.shape[-2] == 5 + 7 for core in found)  # latents that attend to themselves too


def _masked(subject: Subject) -> CheckResult | None:
    """Give a mask over the keys, whose length is not that of the queries."""
    keep = torch.ones(BATCH, 7, dtype=torch.bool)
    keep[0, -2:] = False
    if not subject.key_mask or hiding(subject, keep, 5) is None:
        return None
    try:
        Probe(subject, Mode(), hiding(subject, keep, 5) or {}).output(subject.inputs(BATCH, 5, 7))
    except ModuleFailure as failure:
        evidence = {"queries": 5, "keys": 7, "mask_shape": [BATCH, 7], "error": failure.text}
        reason = f"a mask over 7 keys with 5 queries raises {failure.text}"
        cause = "the mask's length is compared with the queries'"
        return CheckResult("cross_attention", "fail", reason, evidence, cause, failure.place)
    return None
