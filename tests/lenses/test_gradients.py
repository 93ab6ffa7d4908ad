"""One backward pass against autograd of an independent plain layer in float64, finite differences and hand numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from mha_core import Experiment, MhaError
from mha_core.attention import MultiHeadAttention
from mha_core.config import AttentionConfig
from mha_core.init_schemes import generator_for, initial_weights
from mha_core.lenses.bench_memory import peak_extra_bytes
from mha_core.lenses.grad_losses import LOSSES
from mha_core.lenses.gradients import Gradients, backward, backward_bytes
from mha_core.sources.inputs import embed, measure, token_vector
from mha_core.sources.models.weight_packages import find_folder, find_weights
from tests.lenses.plain_layer import PlainPass, plain_pass

SMALL: dict[str, Any] = {"text": "one two three four five six seven", "embed_dim": 30, "num_heads": 5}
BATCH = {"text": "one two three four five\nsix seven eight\nnine ten one two three four five"}
DOUBLE = {"dtype": "float64"}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"init_bias": "torch_default"},
    "no bias": {"bias": False},
    "fused stacked": {"projection": "fused", "init_bias": "torch_default"},
    "fused interleaved": {"projection": "fused", "qkv_layout": "interleaved", "num_kv_heads": 1},
    "einops, chunked": {"head_split": "einops", "kernel": "chunked", "mask": ("causal",)},
    "sdpa": {"kernel": "sdpa", "mask": ("causal",)},
    "untied": {"embed_dim": 31, "num_heads": 3, "head_size": 7, "init_bias": "torch_default"},
    "grouped": {"embed_dim": 42, "num_heads": 6, "num_kv_heads": 2, "init_bias": "torch_default"},
    "batch, padding, causal": BATCH | {"mask": ("padding", "causal")},
    "an empty row": {"mask": ("custom",), "custom_mask": ("0000000", *("1101011",) * 6)},
    "cross": {"memory_text": "un deux trois quatre cinq six sept huit neuf dix onze", "kdim": 11, "vdim": 13},
    "fused cross": {"memory_text": "un deux trois", "projection": "fused", "qkv_layout": "interleaved"},
    "rotary": {"positions": "rotary", "init_bias": "torch_default"},
    "sinusoidal": {"positions": "sinusoidal", "scale": 0.37},
}


def experiment(**fields: Any) -> Experiment:
    return Experiment.from_fields(SMALL | fields)


def table_of(chosen: Experiment) -> Tensor:
    tokens = list(dict.fromkeys(token for line in measure(chosen.source).q_tokens.sequences for token in line))
    return torch.stack([token_vector(token, chosen.attention.embed_dim, chosen.seed) for token in tokens]).double()


def loss_of(chosen: Experiment, name: str, output: Tensor) -> Tensor:
    """The losses, written a second time, position by position."""
    if name == "sum":
        return output.sum()
    if name == "mse":
        target = torch.randn(output.shape, generator=generator_for(chosen.seed, "loss", "target")).double()
        return ((output - target) ** 2).sum() / output.numel()
    lines = measure(chosen.source).q_tokens.sequences
    order = list(dict.fromkeys(token for line in lines for token in line))
    terms = []
    for b, line in enumerate(lines):
        for place, following in enumerate(line[1:]):
            logits = table_of(chosen) @ output[b, place] / math.sqrt(output.shape[-1])
            terms.append(torch.logsumexp(logits, 0) - logits[order.index(following)])
    return torch.stack(terms).mean()


def same(found: Gradients, plain: PlainPass) -> None:
    for name, (value, gradient) in plain.parameters.items():
        flow, exact = found.parameter[name], gradient.norm().item()
        noise = 1e-13 * (1 + max(g.norm().item() for _, g in plain.parameters.values()))
        assert flow.norm == pytest.approx(exact, rel=1e-9, abs=noise), name
        assert flow.rms == pytest.approx(exact / math.sqrt(gradient.numel()), rel=1e-9, abs=noise)
        assert flow.value_norm == pytest.approx(value.norm().item(), rel=1e-9)
    for name, flow in found.tensor.items():
        value, gradient = plain.tensors[name]
        assert flow.shape == tuple(gradient.shape)
        assert flow.norm == pytest.approx(gradient.norm().item(), rel=1e-9, abs=1e-12), name
        assert flow.value_norm == pytest.approx(value.norm().item(), rel=1e-9)
        assert flow.value_std == pytest.approx(value.std(correction=0).item(), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("loss", ["sum", "mse", "next_token"])
def test_equals_autograd_of_a_plain_layer(case: str, loss: str) -> None:
    chosen = experiment(**CASES[case], **DOUBLE)
    if loss == "next_token" and "memory_text" in CASES[case]:
        with pytest.raises(MhaError, match="queries and keys are two sequences"):
            backward(chosen, loss)
        return
    found, plain = backward(chosen, loss), plain_pass(chosen, lambda output: loss_of(chosen, loss, output))
    assert found.loss_value == pytest.approx(plain.loss.item(), rel=1e-10)
    assert set(found.parameter) == set(plain.parameters)
    same(found, plain)
    if chosen.attention.kernel == "sdpa":
        assert found.score_gradient is None
        assert "never shows scores" in (found.note or "")
        assert set(found.tensor) == {"q", "k", "v", "context", "output"}
        return
    assert found.note is None
    assert set(found.tensor) == {"q", "k", "v", "scores", "weights", "context", "output"}
    assert found.score_gradient is not None
    torch.testing.assert_close(found.score_gradient, plain.tensors["scores"][1], rtol=1e-9, atol=1e-12)
    sums = found.score_gradient.sum(-1).abs().max().item()
    assert sums <= 1e-12 * (1 + found.score_gradient.abs().max().item())


@pytest.mark.parametrize("case", ["biases", "grouped", "fused interleaved", "cross"])
def test_heads_are_rows_of_q_k_v_and_columns_of_out(case: str) -> None:
    chosen = experiment(**CASES[case], **DOUBLE)
    config, found = chosen.attention, backward(chosen, "mse")
    plain = plain_pass(chosen, lambda output: loss_of(chosen, "mse", output))
    depth = config.embed_dim // config.num_heads
    for name in ("q", "k", "v", "out", "q_bias", "v_bias"):
        gradient, axis = plain.parameters[name][1], 1 if name == "out" else 0
        heads = config.kv_heads if name[0] in "kv" else config.num_heads
        assert len(found.parameter[name].heads) == heads
        for head, share in enumerate(found.parameter[name].heads):
            piece = gradient.narrow(axis, head * depth, depth)
            assert share.norm == pytest.approx(piece.norm().item(), rel=1e-9)
            assert share.rms == pytest.approx(piece.square().mean().sqrt().item(), rel=1e-9)
    for name in ("q", "k", "scores", "weights", "context"):
        pieces = plain.tensors[name][1]
        assert [s.norm for s in found.tensor[name].heads] == pytest.approx(
            [pieces[:, head].norm().item() for head in range(pieces.shape[1])], rel=1e-9
        )
    assert found.tensor["output"].heads == found.parameter["out_bias"].heads == ()


@pytest.mark.parametrize("kernel", ["explicit", "chunked"])
@pytest.mark.parametrize("projection", ["separate", "fused"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (4, 2)])
@pytest.mark.parametrize("masked", [False, True])
def test_gradcheck_of_the_core(kernel: Any, projection: Any, heads: int, kv_heads: int, masked: bool) -> None:
    config = AttentionConfig(2 * heads, heads, num_kv_heads=kv_heads, kernel=kernel, projection=projection)
    weights = initial_weights(config, seed=3).map(lambda tensor: tensor.double() + 0.1)
    layer = MultiHeadAttention.from_config(config, weights)
    mask = torch.tensor([[True, True, False], [False, False, False], [True, False, True]]) if masked else None
    x = torch.randn(1, 3, 2 * heads, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    names, values = zip(*layer.named_parameters(), strict=True)

    def forward(query: Tensor, *parameters: Tensor) -> Tensor:
        output, _ = torch.func.functional_call(
            layer, dict(zip(names, parameters, strict=True)), (query, None, None, mask)
        )
        return output

    inputs = (x, *(value.detach() for value in values))
    assert torch.autograd.gradcheck(forward, tuple(tensor.clone().requires_grad_() for tensor in inputs))


def test_chunks_are_joined_in_order() -> None:
    fields = {"source": "random", "batch": 1, "q_len": 263, "embed_dim": 6, "num_heads": 2, "mask": ("causal",)}
    one, other = (backward(Experiment.from_fields(fields | DOUBLE | {"kernel": k})) for k in ("explicit", "chunked"))
    assert one.score_gradient is not None
    assert other.score_gradient is not None
    torch.testing.assert_close(one.score_gradient, other.score_gradient, rtol=1e-9, atol=1e-12)
    assert other.tensor["weights"].shape == (1, 2, 263, 263)


def test_the_sum_asks_every_output_alike() -> None:
    """dL/dy = 1: so dL/db_out = B·S everywhere, and dL/dv = Σ of weights over queries times the column sums of Wout."""
    chosen = experiment(**DOUBLE)
    found, drawn = backward(chosen, "sum"), initial_weights(chosen.attention, chosen.init, chosen.seed)
    assert found.tensor["output"].norm == pytest.approx(math.sqrt(7 * 30))
    assert found.tensor["output"].zeros == 0
    assert found.parameter["out_bias"].norm == pytest.approx(7 * math.sqrt(30))
    assert found.tensor["context"].norm == pytest.approx(
        math.sqrt(7) * drawn.out.double().sum(0).norm().item(), rel=1e-6
    )


def test_uniform_attention_where_q_is_zero() -> None:
    """Weights are 1/Sk, so dL/dv is the mean over queries of dL/dcontext, and the loss is that of the mean value."""
    chosen = experiment(init="zeros", init_targets=("q",), **DOUBLE)
    found, sizes = backward(chosen, "sum"), measure(chosen.source)
    drawn = initial_weights(chosen.attention, chosen.init, chosen.seed)
    x = embed(chosen.source, sizes, chosen.attention, "none", chosen.seed).query.double()[0]
    assert found.tensor["weights"].value_norm == pytest.approx(math.sqrt(5 * 7 * 7) / 7, rel=1e-12)
    assert found.tensor["weights"].value_std == pytest.approx(0, abs=1e-16)
    assert found.facts.entropy_nats == pytest.approx(math.log(7))
    assert found.facts.relative_entropy == pytest.approx(1)
    assert found.facts.peak == pytest.approx(1 / 7)
    mean_value = x.mean(0) @ drawn.v.double().T
    assert found.loss_value == pytest.approx(7 * (mean_value @ drawn.out.double().T).sum().item(), rel=1e-6)
    columns = drawn.out.double().sum(0)  # dL/dcontext, the same for every query: Σ_i (1/7) of it is what each v gets
    assert found.tensor["v"].norm == pytest.approx(math.sqrt(7) * columns.norm().item(), rel=1e-6)
    assert found.parameter["k"].norm == 0
    assert found.parameter["k"].zeros == 1
    assert found.parameter["q"].norm > 0
    values, keys = ((x @ m.double().T).view(7, 5, 6).transpose(0, 1) for m in (drawn.v, drawn.k))  # (H, S, D)
    moved = (values @ columns.view(5, 6, 1)).squeeze(-1)  # (H, S): what a unit of weight on a key is worth
    d_score = (moved - moved.mean(1, keepdim=True)) / 7
    d_q = (d_score[:, None] @ keys).expand(5, 7, 6) / math.sqrt(6)
    assert found.tensor["q"].norm == pytest.approx(d_q.norm().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("zero", "learning"),
    [(("q", "k", "v", "out"), set()), (("q", "k", "v"), {"v"}), (("out",), {"out"}), (("q",), {"q", "v", "out"})],
)
def test_the_truth_about_zeros(zero: tuple[str, ...], learning: set[str]) -> None:
    for loss in LOSSES:
        found = backward(experiment(init="zeros", init_targets=zero, bias=False), loss)
        assert {flow.name for flow in found.parameters if flow.norm > 0} == learning
        assert all(flow.zeros == 1 for flow in found.parameters if flow.name not in learning)


def test_the_key_bias_gets_rounding_noise() -> None:
    found = backward(experiment(init_bias="torch_default"), "mse")
    assert found.parameter["k_bias"].norm < 1e-5 * found.parameter["q_bias"].norm
    turned = backward(experiment(init_bias="torch_default", positions="rotary"), "mse")
    assert turned.parameter["k_bias"].norm > 1e-2 * turned.parameter["q_bias"].norm


def test_next_token_of_random_input_names_positions() -> None:
    fields = {"source": "random", "batch": 2, "q_len": 5, "embed_dim": 6, "num_heads": 2} | DOUBLE
    chosen = Experiment.from_fields(fields)
    x = embed(chosen.source, measure(chosen.source), chosen.attention, "none", chosen.seed).query.double()

    def loss(output: Tensor) -> Tensor:
        logits = torch.einsum("bse,bje->bsj", output, x) / math.sqrt(6)
        picked = [F.log_softmax(logits[b, s], 0)[s + 1] for b in range(2) for s in range(4)]
        return -torch.stack(picked).mean()

    same(backward(chosen, "next_token"), plain_pass(chosen, loss))


def test_next_token_of_trained_embeddings_names_rows_of_the_token_table() -> None:
    fields = {"text": "the cat saw the dog", "tokenizer": "wordpiece", "embeddings": "minilm"} | DOUBLE
    chosen = Experiment.from_fields(fields | {"embed_dim": 384, "num_heads": 3})
    vocabulary = (find_folder("minilm") / "vocab.txt").read_text(encoding="utf-8").splitlines()
    rows = load_file(find_weights("minilm"))["embeddings.word_embeddings.weight"].double()
    candidates = rows[[vocabulary.index(word) for word in ("the", "cat", "saw", "dog")]]

    def loss(output: Tensor) -> Tensor:
        logits = output[0, :4] @ candidates.T / math.sqrt(384)
        return F.cross_entropy(logits, torch.tensor([1, 2, 0, 3]))

    found, plain = backward(chosen, "next_token"), plain_pass(chosen, loss)
    assert found.loss_value == pytest.approx(plain.loss.item(), rel=1e-10)
    same(found, plain)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "autocast"])
@pytest.mark.parametrize("kernel", ["explicit", "chunked"])
def test_other_number_formats_are_near(dtype: str, kernel: str) -> None:
    chosen, exact = (experiment(dtype=name, kernel=kernel, mask=("causal",)) for name in (dtype, "float64"))
    plain = plain_pass(exact, lambda output: loss_of(exact, "mse", output))
    found = backward(chosen, "mse")
    for name in ("q", "k", "v", "out"):
        wanted = plain.parameters[name][1].norm().item()
        assert found.parameter[name].norm == pytest.approx(wanted, rel=1e-5 if dtype == "float32" else 0.03)


def test_dropout_follows_the_seed_and_hides_gradients() -> None:
    one, again, other = (backward(experiment(dropout=0.4, seed=seed), "mse") for seed in (3, 3, 4))
    assert one.parameters == again.parameters
    assert one.parameter["v"].norm != other.parameter["v"].norm
    dropped = one.tensor["weights"].zeros  # a dropped weight gets no gradient
    assert 0.2 < dropped < 0.6
    assert backward(experiment(), "mse").tensor["weights"].zeros == 0


@pytest.mark.parametrize(
    ("fields", "loss", "words"),
    [
        ({}, "hinge", "loss is hinge; it must be one of sum, mse, next_token"),
        ({"text": "alone"}, "next_token", "every sequence is one token long"),
        ({"memory_text": "two"}, "next_token", "queries and keys are two sequences"),
        ({"source": "random", "k_len": 4}, "next_token", "two sequences"),
    ],
)
def test_a_loss_that_cannot_be_had_says_why(fields: dict[str, Any], loss: str, words: str) -> None:
    fields = {name: value for name, value in (SMALL | fields).items() if name != "text" or "source" not in fields}
    with pytest.raises(MhaError, match=words) as caught:
        backward(Experiment.from_fields(fields), loss)
    assert caught.value.field == "loss"
    assert caught.value.try_


def test_too_large_a_pass_is_refused_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"source": "random", "batch": 1, "q_len": 1009, "embed_dim": 14, "num_heads": 7}
    chosen = Experiment.from_fields(fields)
    need = backward_bytes(chosen, measure(chosen.source), "sum")
    assert need > 2 * 2 * 7 * 1009**2 * 4  # scores and weights, and a gradient for each
    monkeypatch.setenv("MHA_LAB_MEMORY_BUDGET", str(need - 1))
    with pytest.raises(MhaError, match=f"a backward pass needs {need:,} bytes") as caught:
        backward(chosen)
    for suggestion in caught.value.try_:
        backward(Experiment.from_fields(chosen.to_fields() | dict(suggestion.changes)))
    assert caught.value.try_


@pytest.mark.parametrize(
    "fields", [{}, {"mask": ("causal",)}, {"dropout": 0.1, "kernel": "chunked", "mask": ("causal",)}]
)
@pytest.mark.parametrize("loss", ["sum", "next_token"])
def test_the_estimate_is_not_exceeded(fields: dict[str, Any], loss: str) -> None:
    chosen = Experiment.from_fields(
        {"source": "random", "batch": 1, "q_len": 307, "embed_dim": 22, "num_heads": 11} | fields
    )
    used = peak_extra_bytes(lambda: backward(chosen, loss))
    need = backward_bytes(chosen, measure(chosen.source), loss)
    assert 0.3 * need < used <= need
