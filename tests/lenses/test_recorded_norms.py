"""Norms recorded elsewhere: what is read, what is refused, and what a zero among q, k, v, out says."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

from mha_core import MhaError
from mha_core.lenses.recorded_norms import (
    EXAMPLE,
    FAR_IN_A_FILE,
    MAX_NORM_BYTES,
    Recorded,
    judge_norms,
    parse_norms,
    role_of,
)


def read(value: Any) -> dict[str, Recorded]:
    return {entry.name: entry for entry in parse_norms(json.dumps(value))}


def judged(value: Any) -> dict[str, Any]:
    return {verdict.name: verdict for verdict in judge_norms(parse_norms(json.dumps(value)))}


def test_all_spellings_say_the_same() -> None:
    plain = read({"a.q": 1.5, "b": 0})
    assert plain == {"a.q": Recorded("a.q", 1.5), "b": Recorded("b", 0.0)}
    assert read([{"name": "a.q", "norm": 1.5}, {"name": "b", "norm": 0}]) == plain
    assert read([[{"name": "a.q", "norm": 1.5}], [[{"name": "b", "norm": 0}]]]) == plain
    assert read({"a": {"q": 1.5}, "b": 0}) == plain
    weighed = read({"a": {"grad": 1.5, "weight": 3}, "b": {"grad": None}})
    assert weighed == {"a": Recorded("a", 1.5, 3.0), "b": Recorded("b", None)}
    assert weighed["a"].size == 0.5
    words = read({"a": "NaN", "b": "Infinity", "c": "+inf", "d": " nan "})
    assert math.isnan(words["a"].norm or 0)
    assert words["b"].norm == words["c"].norm == math.inf
    assert math.isnan(words["d"].norm or 0)
    assert math.isnan(parse_norms(b'\xef\xbb\xbf{"a": NaN}')[0].norm or 0)
    assert parse_norms(f'{{"a": 1{"0" * 400}}}')[0].norm == math.inf


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("", "this is not JSON"),
        ("{", "this is not JSON"),
        (b"\xff\xfe", "this is not JSON"),
        ("[" * 100_000, "not JSON|more than"),
        ("{}", "there is no norm"),
        ("[]", "there is no norm"),
        ("3", "the file is 3"),
        ('{"a": "large"}', "a is 'large'; a norm is a number of at least 0"),
        ('{"a": -1}', "a is -1"),
        ('{"a": true}', "a is True"),
        ('{"a": "-inf"}', "a is '-inf'"),
        ("[1, 2]", "the list is 1"),
        ('{"a": [1]}', "a is 1"),
        ('[{"name": "a", "norm": 1}, {"name": "a", "norm": 2}]', "'a' is there twice"),
        ('{"a":' * 12 + "1" + "}" * 12, "more than 8 levels"),
        (json.dumps({"a" * 400: 1}), "a name of 400 characters"),
        (json.dumps({f"n{n}": 1 for n in range(20_001)}), "more than 20,000 names"),
        (" " * (MAX_NORM_BYTES + 1), "bytes"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(raw: str | bytes, words: str) -> None:
    with pytest.raises(MhaError, match=words) as caught:
        parse_norms(raw)
    assert caught.value.field == "norms"
    assert "\n" not in str(caught.value)


def test_thresholds_are_around_the_median() -> None:
    found = judged(
        {"a": 2.0, "b": 2.0, "c": 2.0 * FAR_IN_A_FILE * 1.1, "d": 2.0 / FAR_IN_A_FILE / 1.1, "e": 0, "f": "inf"}
    )
    assert {name: verdict.kind for name, verdict in found.items()} == {
        "a": "healthy",
        "b": "healthy",
        "c": "exploding",
        "d": "vanishing",
        "e": "dead",
        "f": "exploding",
    }
    assert found["c"].relative == pytest.approx(1100)
    assert judged({"a": None})["a"].reason.startswith("No gradient at all")
    assert judged({"a": 0.0})["a"].kind == "dead"


def test_weight_norms_are_taken_into_account() -> None:
    """A norm of 5 is usual for a weight of norm 10 and far too much for one of 0.001."""
    value = {name: {"grad": 5.0, "weight": 10.0} for name in "abc"} | {"d": {"grad": 5.0, "weight": 0.001}}
    found = judged(value)
    assert [found[name].kind for name in "abcd"] == ["healthy", "healthy", "healthy", "exploding"]
    assert found["d"].relative == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("wq", ("", "q")),
        ("layers.3.attn.q_proj.weight", ("layers.3.attn", "q")),
        ("layers.3.attn.k_proj.bias", ("layers.3.attn", "k_bias")),
        ("encoder.0.attention.self.query.weight", ("encoder.0.attention", "q")),
        ("encoder.0.attention.output.dense.weight", ("encoder.0.attention", "out")),
        ("h.1.attn.c_attn.weight", ("h.1.attn", "qkv")),
        ("self_attn.in_proj_weight", ("self_attn", "qkv")),
        ("self_attn.in_proj_bias", ("self_attn", "qkv_bias")),
        ("attn.to_out.0.weight", ("attn", "out")),
        ("mlp.fc1.weight", None),
        ("weight", None),
        ("norm.weight", None),
    ],
)
def test_names_of_known_libraries(name: str, role: tuple[str, str] | None) -> None:
    assert role_of(name) == role


def test_names_of_torch_are_recognised() -> None:
    names = [name for name, _ in nn.MultiheadAttention(6, 2).named_parameters()]
    assert {role_of(name) for name in names} == {("", "qkv"), ("", "qkv_bias"), ("", "out"), ("", "out_bias")}


@pytest.mark.parametrize(
    ("zero", "words"),
    [
        (set(), ""),
        ({"out"}, "out is zero, so dL/dcontext"),
        ({"v"}, "v is zero, so context is zero and out gets nothing"),
        ({"k"}, "k is zero, so the gradient of q is zero"),
        ({"q"}, "q is zero, so the gradient of k is zero"),
        ({"q", "k"}, "both q and k are zero"),
        ({"q", "k", "v", "out"}, "Nothing reaches this layer"),
    ],
)
def test_the_zeros_of_a_layer_tell_which_factor_is_zero(zero: set[str], words: str) -> None:
    """The gradients are those of autograd, with the matrices named set to zero."""
    layer = nn.ModuleDict({f"{name}_proj": nn.Linear(6, 6, bias=False) for name in ("q", "k", "v", "out")})
    for name in zero:
        nn.init.zeros_(layer[f"{name}_proj"].weight)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    weights = torch.softmax(layer["q_proj"](x) @ layer["k_proj"](x).T, -1)
    layer["out_proj"](weights @ layer["v_proj"](x)).square().sum().backward() if not zero & {"v", "out"} else (
        layer["out_proj"](weights @ layer["v_proj"](x)).sum().backward()
    )
    norms = {f"attn.{name}": p.grad.norm().item() for name, p in layer.named_parameters()}
    dead = [verdict for verdict in judged(norms).values() if verdict.kind == "dead"]
    assert bool(dead) == bool(zero)
    assert all(words in verdict.reason for verdict in dead)


def test_layers_are_read_apart_and_the_key_bias_is_fine() -> None:
    found = judged(EXAMPLE)
    assert found["layers.0.attn.k_proj.bias"].kind == "by design"
    assert "out is zero" in found["layers.1.attn.v_proj.weight"].reason
    assert found["layers.0.attn.v_proj.weight"].kind == "healthy"
    assert found["layers.2.attn.q_proj.weight"].kind == "vanishing"
    assert found["layers.2.attn.k_proj.weight"].kind == "exploding"
