"""Checkpoints that do not fit: transposed, fused, other heads, other names, as load_state_dict lists them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mha_core.doctor.explainers.answer import Explanation, Problem, Reading, Rule, answer, numbers, rule, says

_SIZE = r"(?:torch\.Size\()?[\[(](?P<{}>[\d, ]*)[\])]\)?"
_MISMATCH = (
    re.compile(
        rf"size mismatch for (?P<name>[\w.\-]+): copying a (?:param|\w+) (?:with shape|of) {_SIZE.format('have')} "
        r"from checkpoint,? "
        rf"(?:the shape in current model is|where the shape is) {_SIZE.format('want')}"
    ),
    re.compile(
        rf"(?P<name>[\w.\-]+): found shape {_SIZE.format('have')} in the checkpoint and {_SIZE.format('want')} in "
        r"the model"
    ),
    re.compile(
        rf"parameter named (?P<name>[\w.\-]+),? whose dimensions in the model are {_SIZE.format('want')} and whose "
        r"dimensions in "
        rf"the checkpoint are {_SIZE.format('have')}"
    ),
)
_ATTENTION = re.compile(
    r"attn|attention|q_proj|k_proj|v_proj|qkv|in_proj|out_proj|query|key|value|c_attn|c_proj|\bw[qkvo]\b|to_[qkv]", re.I
)
_PLACES = re.compile(
    r"pos_emb|position_embed|pos_embed|positional|\bpe\b|wpe|relative_position|rel_pos|position_ids|inv_freq|rotary",
    re.I,
)
_KEY_VALUE = re.compile(
    r"(?:^|[._])(?:k|v|key|value|wk|wv|kv|c_kv|k_proj|v_proj)(?:_proj|_lin|_linear)?(?:[._]|$)", re.I
)
_FUSED = re.compile(r"in_proj|qkv|c_attn|query_key_value|Wqkv|to_qkv|kv_proj|to_kv", re.I)
_APART = re.compile(
    r"q_proj|k_proj|v_proj|\bq_lin|query(?!_key)|\.key\.|\.value\.|\bw[qkv]\b|to_[qkv]\b|\.[qkv]\.", re.I
)
SPLIT_FIX = (
    "w_q, w_k, w_v = in_proj_weight.chunk(3, dim=0), in the order q, k, v; torch.cat((w_q, w_k, w_v)) the "
    "other way round"
)


@dataclass(frozen=True)
class Mismatch:
    """One parameter: its shape in the checkpoint and in the model."""

    name: str
    have: tuple[int, ...]
    want: tuple[int, ...]


def mismatches(message: str) -> tuple[Mismatch, ...]:
    """Read every size mismatch of a text."""
    found = [m for pattern in _MISMATCH for m in pattern.finditer(message)]
    return tuple(Mismatch(m["name"], numbers(m["have"]), numbers(m["want"])) for m in found)


def keys_after(message: str, word: str) -> tuple[str, ...]:
    """Read the names listed after "Missing key(s)" or "Unexpected key(s)"."""
    match = re.search(
        (
            rf"{word} key\(?s?\)? ?(?:in (?:source )?state_dict)?: (?P<list>.*?)(?=(?:Missing|Unexpected) key|size "
            r"mismatch|$)"
        ),
        message,
        re.I,
    )
    return (
        tuple(re.findall(r"[\"']([\w.\-]+)[\"']", match["list"]))
        or tuple(re.findall(r"[\w\-]+\.[\w.\-]+", match["list"]))
        if match
        else ()
    )


def load(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain the text of load_state_dict: sizes, then names."""
    sizes = mismatches(problem.message)
    missing, unexpected = keys_after(problem.message, "Missing"), keys_after(problem.message, "Unexpected")
    readings = [*_by_size(sizes), *_by_name(missing, unexpected)]
    parts = [
        f"{len(sizes)} parameters of another size" if len(sizes) > 1 else "",
        f"{len(missing)} missing" if missing else "",
    ]
    parts.append(f"{len(unexpected)} unexpected names" if unexpected else "")
    facts = ", ".join(filter(None, parts))
    return answer(facts + "." if facts else "", readings, problem)


def _by_size(sizes: Sequence[Mismatch]) -> list[Reading]:
    readings = [reading for mismatch in sizes for reading in _one(mismatch)]
    best: dict[str, Reading] = {}
    for reading in readings:
        if reading.kind not in best or reading.score > best[reading.kind].score:
            best[reading.kind] = reading
    return list(best.values())


def _one(m: Mismatch) -> list[Reading]:
    name, have, want = m.name, m.have, m.want
    shapes = f"the checkpoint has {name} as {list(have)}, the model as {list(want)}"
    if _PLACES.search(name):
        fix = "interpolate the table to the new length, or build the model with the checkpoint's maximal length"
        return [Reading("position", 9.0, f"{shapes}: another number of positions (or patches)", (fix,))]
    if len(have) == 2 and have == tuple(reversed(want)) and have[0] != have[1]:
        sentence = (
            f"{shapes}: transposed. GPT-2's Conv1D stores (in, out), nn.Linear (out, in); a square matrix "
            "such as attn.c_proj loads without an error and is wrong"
        )
        fix = "state[name] = state[name].t() for attn.c_attn, attn.c_proj, mlp.c_fc and mlp.c_proj, the square ones too"
        return [Reading("qkv_layout", 10.0, sentence, (fix,))]
    if not have or not want or have[0] == 0 or want[0] == 0:
        return [Reading("qkv_layout", 2.0, shapes, ())]
    rows = max(have[0], want[0]), min(have[0], want[0])
    ratio = rows[0] // rows[1] if rows[0] % rows[1] == 0 else 0
    if len(have) == 2 and have[1:] == want[1:] and _KEY_VALUE.search(name) and ratio > 1 and not _FUSED.search(name):
        sentence = (
            f"{shapes}: the same width in, {ratio} times the rows, so another number of KV heads (grouped queries)"
        )
        fix = "build the model with the checkpoint's num_key_value_heads = rows / head_dim"
        return [Reading("gqa", 9.0, sentence, (fix, f"repeat each KV head {ratio} times: w.unflatten(0, (Hkv, D))"))]
    if have[1:] == want[1:] and ratio == 3 and _ATTENTION.search(name):
        sentence = f"{shapes}: 3 to 1 in rows, q, k and v fused on one side and separate on the other"
        return [Reading("qkv_layout", 8.0, sentence, (SPLIT_FIX,))]
    if len(have) == 2 and have[1:] == want[1:] and _FUSED.search(name):
        sentence = (
            f"{shapes}: a fused matrix with another number of KV heads, (H + 2 Hkv) x D rows, or another head_dim"
        )
        return [Reading("gqa", 6.0, sentence, ("compare num_key_value_heads and head_dim of both configurations",))]
    if _ATTENTION.search(name):
        sentence = f"{shapes}: the two were built with another embed_dim, head_dim or kdim"
        fix = (
            f"build the model with the checkpoint's sizes: embed_dim={have[-1]}"
            if len(have) == 2
            else "compare the configurations"
        )
        return [Reading("cross_dims", 4.0, sentence, (fix,))]
    return []  # a vocabulary, a number of classes: nothing of attention


def _by_name(missing: Sequence[str], unexpected: Sequence[str]) -> list[Reading]:
    names = [*missing, *unexpected]
    if not names:
        return []
    readings = [*_other_prefix(missing, unexpected), *_fused_or_apart(missing, unexpected), *_harmless(missing, names)]
    if not readings and any(map(_ATTENTION.search, names)):
        sentence = f"the two sides name their parameters differently, as {names[0]}"
        fix = "print both sets of names and rename; strict=False would leave the missing ones at their random start"
        readings.append(Reading("qkv_layout", 3.0, sentence, (fix,)))
    return readings


def _other_prefix(missing: Sequence[str], unexpected: Sequence[str]) -> Iterator[Reading]:
    """Read names that differ by what stands in front of them."""
    prefix = _prefix(missing, unexpected)
    if not prefix:
        return
    in_checkpoint = any(name.startswith(prefix) for name in unexpected)
    sentence = (
        f"the {'checkpoint' if in_checkpoint else 'model'}'s names begin with '{prefix}' (a wrapper such as "
        "DataParallel, "
        "compile or Lightning) and the others do not"
    )
    fix = f"state = {{'{prefix}' + name: w for name, w in state.items()}}"
    if in_checkpoint:
        fix = f"state = {{name.removeprefix('{prefix}'): w for name, w in state.items()}}"
    yield Reading("qkv_layout", 8.0, sentence, (fix,))


def _fused_or_apart(missing: Sequence[str], unexpected: Sequence[str]) -> Iterator[Reading]:
    """Read q, k and v in one matrix on one side and in three on the other."""
    for kept, fused, apart in (("fused", unexpected, missing), ("separate", missing, unexpected)):
        if any(map(_FUSED.search, fused)) and any(map(_APART.search, apart)):
            wanted = "separate" if kept == "fused" else "fused"
            sentence = (
                f"the checkpoint keeps q, k and v {kept} and the model wants them {wanted}: the same numbers under "
                "other names"
            )
            fix = (
                "nn.MultiheadAttention has q_proj_weight, k_proj_weight, v_proj_weight only where kdim or vdim differ "
                "from embed_dim"
            )
            yield Reading("qkv_layout", 9.0, sentence, (SPLIT_FIX, fix))


def _harmless(missing: Sequence[str], names: Sequence[str]) -> Iterator[Reading]:
    """Read lists that hold nothing but mask buffers, position tables or biases."""
    if all(re.search(r"masked_bias|\.attn\.bias|attention\.bias|\bmask$|\.mask$|tril", name) for name in names):
        sentence = "only causal mask buffers differ (attn.bias, masked_bias, tril): they hold no learned numbers"
        fixes = ("load_state_dict(state, strict=False)", "persistent=False for the mask buffer")
        yield Reading("causal", 9.0, sentence, fixes)
    elif all(map(_PLACES.search, names)):
        sentence = (
            "only position tables differ (inv_freq, position_ids ...); rotary frequencies are computed, learned "
            "positions are not"
        )
        yield Reading("position", 8.0, sentence, ("strict=False for inv_freq and position_ids only",))
    elif all(name.endswith("bias") for name in names):
        side = "model" if missing else "checkpoint"
        sentence = f"only biases differ: the {side} has biases (bias=True, qkv_bias=True) that the other side lacks"
        fixes = ("build the layer with the checkpoint's bias setting", "zeros for missing biases")
        yield Reading("init", 7.0, sentence, fixes)


def _prefix(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Find what the names of one side have in front of those of the other."""
    for long, short in ((unexpected, missing), (missing, unexpected)):
        for name in long:
            for other in short:
                if name.endswith("." + other):
                    prefix = name.removesuffix(other)
                    fitting = sum(n.startswith(prefix) for n in long)
                    if fitting >= max(1, len(long) // 2):
                        return prefix
    return ""


RULES: tuple[Rule, ...] = (
    rule(
        r"size mismatch for [\w.]+|found shape .* in the checkpoint and|whose dimensions in the checkpoint are|"
        r"(?:Missing|Unexpected) key\(?s?\)? ?(?:in state_dict)?:",
        load,
    ),
    says(
        (
            r"expecting (?P<what>key|value) weights shape of \((?P<want>[\d, ]+)\),? but got "
            r"(?:torch\.Size\()?\[(?P<have>[\d, ]+)"
        ),
        "cross_dims",
        "The layer's <what> projection is [<have>], but the input asks for (<want>): kdim or vdim of the layer is "
        "not the last "
        "axis of what is given as <what>.",
        "nn.MultiheadAttention(E, H, kdim=key.size(-1), vdim=value.size(-1))",
    ),
    says(
        (
            r"(?:Some weights of (?:the )?(?P<model>\w+)|weights of (?P<m>\w+)) (?:were not initialized from|of the "
            r"model checkpoint)"
        ),
        "init",
        "Some parameters of the model are not in the checkpoint and keep their random start values (or the other way "
        "round). For "
        "a task head that is meant; where the list names attention, query, key or value, the layout or the prefix "
        "differs.",
        "read the list: rename or split those that belong to attention, train those of a new head",
    ),
)
