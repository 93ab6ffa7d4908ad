"""The rows of the cost against torch's counter, hand numbers, and the tensors that a forward pass really makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mha_core import AttentionConfig, Experiment, MhaError, MultiHeadAttention
from mha_core.experiment import give, precision
from mha_core.lenses.cost import Cost, cost
from mha_core.lenses.cost_rows import CostSizes, cost_rows
from mha_core.lenses.roofline import step_of


def experiment(**fields: Any) -> Experiment:
    return Experiment.from_fields({"source": "random"} | fields)


def steps(found: Cost) -> dict[str, Any]:
    return {row.step: row for row in found.rows}


def counted(layer: MultiHeadAttention, inputs: tuple[Tensor, ...], with_input: bool) -> tuple[int, int]:
    """Forward and backward FLOPs that torch's counter sees on real tensors."""
    leaves = [tensor.detach().requires_grad_(with_input) for tensor in inputs]
    with FlopCounterMode(display=False) as counter:
        output, _ = layer(*leaves)
        forward = counter.get_total_flops()
        output.sum().backward()
    return forward, counter.get_total_flops() - forward


@st.composite
def layers(draw: st.DrawFn) -> tuple[dict[str, Any], int, int, int, bool]:
    """Fields of a layer, B, Sq, Sk, and whether key and value are the query itself."""
    heads, rotary = draw(st.sampled_from((1, 2, 3, 4, 6))), draw(st.booleans())
    kv_heads = draw(st.sampled_from([count for count in range(1, heads + 1) if heads % count == 0]))
    fused, widths = draw(st.booleans()), draw(st.booleans())
    fields = {
        "embed_dim": heads * draw(st.sampled_from((2, 4, 6) if rotary else (1, 2, 3, 5, 7))),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_size": draw(st.sampled_from((None, 2, 10) if rotary else (None, 1, 11))),
        "bias": draw(st.booleans()),
        "rope_theta": 100.0 if rotary else None,
        "kernel": draw(st.sampled_from(("explicit", "explicit", "chunked"))),
        "head_split": draw(st.sampled_from(("view", "einops"))),
    }
    if fused:
        fields |= {"projection": "fused", "qkv_layout": draw(st.sampled_from(("stacked", "interleaved")))}
    elif widths:
        fields |= {"kdim": draw(st.sampled_from((5, 11))), "vdim": draw(st.sampled_from((None, 13)))}
    itself = not (widths and not fused) and draw(st.booleans())
    q_len = draw(st.sampled_from((1, 2, 5, 7)))
    return (
        fields,
        draw(st.sampled_from((1, 2, 3))),
        q_len,
        q_len if itself else draw(st.sampled_from((1, 3, 11))),
        itself,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layers(), st.booleans())
def test_products_are_those_the_counter_sees(
    case: tuple[dict[str, Any], int, int, int, bool], with_input: bool
) -> None:
    """Forward and backward, with and without the gradient of the input, on real tensors."""
    fields, batch, q_len, k_len, itself = case
    layer = MultiHeadAttention(**fields)
    query = torch.randn(batch, q_len, layer.config.embed_dim)
    others = (k_len, layer.config.key_dim), (k_len, layer.config.value_dim)
    inputs = (query,) if itself else (query, *(torch.randn(batch, *shape) for shape in others))
    forward, backward = counted(layer, inputs, with_input)
    rows = cost_rows(layer.config, CostSizes(batch, q_len, k_len, 0), input_gradient=with_input)
    assert forward > 0
    assert sum(row.matmul_flops for row in rows) == forward
    assert sum(row.backward_matmul_flops for row in rows) == backward


def test_hand_numbers() -> None:
    """B 2, Sq 3, Sk 5, E 6, H 3, D 2, Hkv 1, kdim 7, vdim 11, causal, rotary, bias, dropout."""
    found = cost(
        experiment(
            batch=2,
            q_len=3,
            k_len=5,
            embed_dim=6,
            num_heads=3,
            num_kv_heads=1,
            kdim=7,
            vdim=11,
            positions="rotary",
            mask=("causal",),
            dropout=0.5,
        )
    )
    scores, pairs = 2 * 3 * 3 * 5, 2 * 3 * (3 + 4 + 5)
    assert [row.step for row in found.rows] == [
        "q projection",
        "k projection",
        "v projection",
        "rotary",
        "share k, v",
        "q·kᵀ",
        "scale",
        "mask",
        "softmax",
        "dropout",
        "weights·v",
        "join heads",
        "output projection",
        "bias",
    ]
    forward = {row.step: (row.matmul_flops, row.elementwise_flops) for row in found.rows}
    assert forward == {
        "q projection": (2 * 2 * 3 * 6 * 6, 0),
        "k projection": (2 * 2 * 5 * 7 * 2, 0),
        "v projection": (2 * 2 * 5 * 11 * 2, 0),
        "rotary": (0, 3 * 2 * (3 * 6 + 5 * 2)),
        "share k, v": (0, 0),
        "q·kᵀ": (2 * scores * 2, 0),
        "scale": (0, scores),
        "mask": (0, scores),
        "softmax": (0, 5 * scores),
        "dropout": (0, 2 * scores),
        "weights·v": (2 * scores * 2, 0),
        "join heads": (0, 0),
        "output projection": (2 * 2 * 3 * 6 * 6, 0),
        "bias": (0, 2 * (3 * 6 + 2 * 5 * 2 + 3 * 6)),
    }
    needed = {row.step: row.needed_matmul_flops + row.needed_elementwise_flops for row in found.rows}
    of_pairs = {"q·kᵀ": 4, "scale": 1, "mask": 1, "softmax": 5, "dropout": 2, "weights·v": 4}
    assert needed == {step: of_pairs[step] * pairs if step in of_pairs else sum(forward[step]) for step in forward}
    backward = {row.step: (row.backward_matmul_flops, row.backward_elementwise_flops) for row in found.rows}
    other = {"softmax": 4 * scores, "share k, v": 2 * 2 * 5 * (3 - 1) * 2}
    assert backward == {step: (2 * products, other.get(step, rest)) for step, (products, rest) in forward.items()}
    assert found.totals["matmul_flops"] == sum(products for products, _ in forward.values())
    assert found.totals["elementwise_flops"] == sum(rest for _, rest in forward.values())


def test_what_is_left_out_has_no_row() -> None:
    found = cost(experiment(bias=False))
    assert not {"mask", "dropout", "rotary", "share k, v", "bias"} & set(steps(found))
    assert found.totals["needed_matmul_flops"] == found.totals["matmul_flops"]


def test_the_fused_kernel_computes_the_scores_again_in_backward() -> None:
    """Five products for two: 2.5 times the forward of attention (Dao 2023, section 4.1)."""
    plain, fused = (cost(experiment(q_len=7, kernel=kernel)) for kernel in ("explicit", "sdpa"))
    assert plain.totals["recompute_matmul_flops"] == 0
    attention = 2 * (2 * 2 * 8 * 7 * 7 * 64)
    backward = sum(steps(fused)[step].backward_matmul_flops for step in ("q·kᵀ", "weights·v"))
    assert backward + fused.totals["recompute_matmul_flops"] == 5 * attention // 2
    assert cost(experiment(q_len=7, kernel="chunked")).totals["recompute_matmul_flops"] == 0


def test_needed_is_counted_per_sequence() -> None:
    text = "one two three four five\none two\none two three"
    found = cost(Experiment.from_fields({"text": text, "mask": ("padding",), "embed_dim": 6, "num_heads": 3}))
    assert found.sizes.pairs == 5 * (5 + 2 + 3)
    assert steps(found)["q·kᵀ"].needed_matmul_flops == 2 * 3 * 2 * 5 * (5 + 2 + 3)
    assert steps(found)["q·kᵀ"].matmul_flops == 2 * 3 * 2 * 3 * 5 * 5


def tapped(chosen: Experiment, *, grad: bool) -> list[tuple[str, Tensor]]:
    """Every named tensor of a forward pass, all kept, so that none takes another's place by chance."""
    given_, seen = give(chosen), list[tuple[str, Tensor]]()

    def tap(name: str, tensor: Tensor) -> Tensor:
        seen.append((name, tensor))
        return tensor

    given_.layer.tap = tap
    inputs = given_.inputs
    with torch.set_grad_enabled(grad), precision(chosen):
        given_.layer(inputs.query, inputs.key, inputs.value, given_.mask)
    return seen


MADE = ("q_proj", "k_proj", "v_proj", "q_rotated", "k_rotated", "k_shared", "v_shared", "scores", "masked", "weights")
MADE += ("dropped", "context", "joined", "output")
LAYER = {"batch": 2, "q_len": 7, "k_len": 11, "embed_dim": 36, "num_heads": 6, "num_kv_heads": 3}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "autocast"])
def test_bytes_are_those_of_the_tensors(dtype: str) -> None:
    chosen = experiment(**LAYER, dtype=dtype, positions="rotary", mask=("causal",), dropout=0.1)
    found, real = cost(chosen), dict.fromkeys(steps(cost(chosen)), 0)
    for name, tensor in tapped(chosen, grad=True):
        if name in MADE:
            real[step_of(name, chosen.attention)] += tensor.nbytes
    assert {row.step: row.bytes for row in found.rows} == real
    assert found.parameter_bytes == sum(parameter.nbytes for parameter in give(chosen).layer.parameters())


@pytest.mark.parametrize("mask", [(), ("causal",)])
@pytest.mark.parametrize("projection", ["separate", "fused"])
def test_without_gradients_steps_share_memory(mask: tuple[str, ...], projection: str) -> None:
    chosen = experiment(**LAYER, mask=mask, projection=projection)
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for _, tensor in tapped(chosen, grad=False)
    }
    assert cost(chosen).inference_bytes == sum(storages.values())


def test_the_chunked_kernel_holds_one_chunk() -> None:
    chosen = experiment(batch=1, q_len=600, embed_dim=8, num_heads=2, kernel="chunked", mask=("causal",))
    largest: dict[str, int] = {}
    for name, tensor in tapped(chosen, grad=False):
        largest[name] = max(largest.get(name, 0), tensor.nbytes)
    found = steps(cost(chosen))
    assert found["q·kᵀ"].bytes == largest["scores"] == 2 * 256 * 600 * 4
    assert found["softmax"].bytes == largest["weights"]


def test_the_fused_kernel_holds_no_scores() -> None:
    found = steps(cost(experiment(q_len=7, kernel="sdpa", mask=("causal",))))
    assert [found[step].bytes for step in ("q·kᵀ", "mask", "softmax")] == [0, 0, 0]


def test_any_length_is_answered() -> None:
    """Far beyond the memory budget; nothing is allocated."""
    found = cost(experiment(batch=1, q_len=65_536, mask=("causal", "local"), window=128, direction="back"))
    assert found.totals["matmul_flops"] == 65_536 * 8 * 512 * 512 + 4 * 512 * 65_536**2
    assert found.sizes.pairs == 65_536 * 129 - 128 * 129 // 2


def test_every_row_says_its_formula_and_source() -> None:
    found = cost(experiment(positions="rotary", num_kv_heads=2, mask=("causal",), dropout=0.1))
    assert all(row.formula and row.backward_formula and row.source for row in found.rows)


def letters(config: AttentionConfig, sizes: CostSizes) -> dict[str, int]:
    named = {"B": sizes.batch, "Sq": sizes.q_len, "Sk": sizes.k_len, "E": config.embed_dim, "H": config.num_heads}
    named |= {"Hkv": config.kv_heads, "D": config.head_dim, "kdim": config.key_dim, "vdim": config.value_dim}
    return named | {"P": sizes.pairs}


@pytest.mark.parametrize("head_size", [None, 10])
def test_formulas_in_letters_give_the_numbers(head_size: int | None) -> None:
    """The formula that is shown, read as arithmetic, is the number beside it, dense and needed."""
    layer = LAYER | {"head_size": head_size, "kdim": 13, "vdim": 17}
    chosen = experiment(**layer, positions="rotary", mask=("causal",), dropout=0.1)
    found = cost(chosen)
    names = letters(found.config, found.sizes)
    for row in found.rows:
        dense, _, needed = row.formula.removesuffix(": copies").partition("; needed ")
        for formula, number in (
            (dense, row.matmul_flops + row.elementwise_flops),
            (needed or dense, row.needed_matmul_flops + row.needed_elementwise_flops),
        ):
            assert eval(formula.replace("·", "*"), {}, names) == number, row.step


def test_a_custom_mask_that_does_not_fit_is_refused() -> None:
    with pytest.raises(MhaError, match="the custom mask is 1 x 2"):
        cost(experiment(q_len=3, mask=("custom",), custom_mask=("10",)))
