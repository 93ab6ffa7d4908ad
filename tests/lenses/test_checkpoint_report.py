"""Flags and the whole report, on small files with one thing wrong each."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mha_core.errors import MhaError
from mha_core.lenses.checkpoint_flags import between_heads
from mha_core.lenses.checkpoint_report import Report, outline, report
from mha_core.sources.checkpoints.file import Checkpoint, open_checkpoint
from tests.lenses.checkpoints import StateDict, bert, torch_layer, trained_bert, write
from tests.lenses.trained_layers import minilm

Q, K, V, OUT = (
    f"encoder.layer.0.attention.{name}.weight" for name in ("self.query", "self.key", "self.value", "output.dense")
)


def examined(folder: Path, state: StateDict, heads: int | None = 5) -> Report:
    return report(open_checkpoint(write(folder, state)), heads)


def kinds(found: Report) -> list[tuple[str, str]]:
    return [(flag.kind, flag.severity) for flag in found.flags]


def test_a_sound_file_has_no_flags(tmp_path: Path) -> None:
    found = examined(tmp_path, bert())
    assert found.flags == ()
    assert [layer.number for layer in found.layers] == [0, 1]
    first = found.layers[0]
    assert [stats.role for stats in first.matrices] == ["q", "k", "v", "out"]
    assert [stats.tensor for stats in first.matrices] == [Q, K, V, OUT]
    assert all("std 0.02" in likeness.sentence for likeness in first.resemblances)
    assert [len(stats.heads) for stats in first.matrices] == [5] * 4


def _nan(state: StateDict) -> None:
    state[K][8, 3] = math.nan  # row 8 of 35 is of head 1
    state[K][30, 3] = math.inf  # head 4


def _equal(state: StateDict) -> None:
    state[V] = state[K].clone()


def _nearly_equal(state: StateDict) -> None:
    state[K] = state[Q] * (1 + 1e-7)


def _zeros(state: StateDict) -> None:
    state[Q].zero_()


def _zero_out(state: StateDict) -> None:
    state[OUT].zero_()


def _constant(state: StateDict) -> None:
    state[V].fill_(0.25)


def _dead(state: StateDict) -> None:
    state[OUT][:, 14:21] = 0  # head 2


def _twins(state: StateDict) -> None:
    state[Q][7:14] = state[Q][21:28]  # heads 1 and 3


def _codes(state: StateDict) -> None:
    state[V] = (state[V] * 1000).to(torch.int8)


def _huge(state: StateDict) -> None:
    state[Q][0, 0] = 1e5


def _saturated(state: StateDict) -> None:
    state[Q][0, 0] = 65504.0
    for name in list(state):
        state[name] = state[name].half()


def _mask(state: StateDict) -> None:
    state["encoder.layer.0.attention.bias"] = torch.ones(1, 1, 11, 11, dtype=torch.uint8).tril()


@pytest.mark.parametrize(
    ("spoil", "kind", "severity", "words"),
    [
        (_nan, "not_finite", "problem", "1 NaN and 1 infinite numbers, in heads 1, 4"),
        (_equal, "equal_blocks", "problem", "k equals v bit for bit"),
        (_nearly_equal, "equal_blocks", "problem", "q equals k within rounding"),
        (_zeros, "zeros", "problem", "q is all zeros"),
        (_zero_out, "zeros", "note", "by design"),
        (_constant, "constant", "problem", "every number of v is 0.25"),
        (_dead, "dead_heads", "problem", "zero in head 2"),
        (_twins, "identical_heads", "problem", "heads 1, 3 of q are identical"),
        (_codes, "dtype", "problem", "stored as int8"),
        (_huge, "overflow", "note", "would overflow in float16"),
        (_saturated, "overflow", "problem", "float16's largest number"),
        (_mask, "mask_buffer", "note", "ones on and below the diagonal"),
    ],
)
def test_each_thing_wrong_is_flagged(
    tmp_path: Path, spoil: Callable[[StateDict], None], kind: str, severity: str, words: str
) -> None:
    state = bert()
    spoil(state)
    found = [flag for flag in examined(tmp_path, state).flags if flag.kind == kind and words in flag.sentence]
    assert [flag.severity for flag in found] == [severity]
    assert found[0].where.startswith("encoder.layer.0.attention")


ODD = (torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float64, torch.bfloat16)


@pytest.mark.parametrize(
    ("dtype", "size"), [*((dtype, 0.3) for dtype in ODD), (torch.float32, 1e-30), (torch.bfloat16, 1e30)]
)
def test_no_format_and_no_size_of_numbers_breaks_the_report(tmp_path: Path, dtype: torch.dtype, size: float) -> None:
    """Every place in turn: one matrix, a bias, a fused matrix, a buffer named like a mask."""
    state = bert(layers=1, width=6)
    state |= {"enc.0.self_attn.in_proj_weight": torch.ones(18, 6), "enc.0.self_attn.out_proj.weight": torch.ones(6, 6)}
    state |= {"encoder.layer.0.attention.self.key.bias": torch.ones(6), "enc.mask": torch.ones(7, 7)}
    for name in state:
        drawn = torch.randn(state[name].shape, generator=torch.Generator().manual_seed(1)) * size
        fits = drawn.clamp(-100, 100) if not dtype.is_floating_point else drawn
        found = examined(tmp_path, state | {name: fits.to(dtype)}, 3)
        assert len(found.layers) == 2
        odd_weights = name != "enc.mask" and not dtype.is_floating_point
        assert any(
            flag.where == name and flag.kind == "dtype" and flag.severity == "problem" for flag in found.flags
        ) == (odd_weights)


def test_a_number_of_heads_that_does_not_fit_is_flagged(tmp_path: Path) -> None:
    found = examined(tmp_path, bert(layers=1), 4)
    assert ("head_count", "problem") in kinds(found)
    assert found.layers[0].heads is None
    assert "4 heads do not fit 35 rows" in found.flags[0].sentence
    write(tmp_path, bert(layers=1))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "num_attention_heads": 3}))
    by_config = report(open_checkpoint(tmp_path / "model.safetensors"))
    assert any(flag.kind == "head_count" and "3" in flag.sentence for flag in by_config.flags)


def test_without_heads_the_matrices_are_still_described(tmp_path: Path) -> None:
    (layer,) = examined(tmp_path, bert(layers=1), None).layers
    assert layer.heads is None
    assert [len(stats.heads) for stats in layer.matrices] == [0] * 4
    assert layer.layer.possible_heads
    assert all("std 0.02" in likeness.sentence for likeness in layer.resemblances)


def test_nn_multihead_attention_is_named_as_packed(tmp_path: Path) -> None:
    (layer,) = examined(tmp_path, torch_layer()).layers
    said = {s.role: likeness.sentence for s, likeness in zip(layer.matrices, layer.resemblances, strict=True)}
    assert all("Xavier uniform on a packed (180, 60) matrix" in said[role] for role in "qkv")
    assert "torch's default" in said["out"]
    assert layer.fused is not None
    assert layer.fused.packing is None
    assert "uncertain" in layer.fused.verdict


def test_a_turned_trained_matrix_is_suspected(tmp_path: Path) -> None:
    state = trained_bert()
    assert examined(tmp_path, state, 12).flags == ()
    turned = {name: value.t().contiguous() for name, value in state.items()}
    found = examined(tmp_path, turned, 12)
    assert len(found.flags) == 8
    assert {flag.kind for flag in found.flags} == {"transposed"}


def test_heads_show_between_rows_and_not_by_chance() -> None:
    fresh = torch.randn(60, 41, generator=torch.Generator().manual_seed(0))
    assert between_heads(fresh, 6) < 3
    scaled = fresh * torch.linspace(1, 2, 6).repeat_interleave(10)[:, None]
    by_hand = scaled.double().norm(dim=1).log().reshape(6, 10)
    wanted = 10 * by_hand.mean(1).var() / by_hand.var(1).mean()
    assert between_heads(scaled, 6) == pytest.approx(wanted.item())
    assert wanted > 20
    assert all(between_heads(layer["q"], 12) > 20 * between_heads(layer["q"].t(), 12) for layer in minilm())


def test_a_file_without_attention_says_so(tmp_path: Path) -> None:
    found = examined(tmp_path, {"fc.weight": torch.ones(3, 5)})
    assert found.layers == ()
    assert [flag.kind for flag in found.flags] == ["no_layers"]


def test_one_layer_by_number_or_name(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path, bert(layers=3)))
    for choice in (2, "2", outline(checkpoint).layers[2].name):
        (layer,) = report(checkpoint, 5, layer=choice).layers
        assert layer.number == 2
    for choice in (3, "none", "²"):
        with pytest.raises(MhaError) as caught:
            report(checkpoint, 5, layer=choice)
        assert caught.value.field == "layer"


def test_only_one_layer_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(write(tmp_path, bert(layers=3)))
    read: list[str] = []
    whole = Checkpoint.tensor
    monkeypatch.setattr(Checkpoint, "tensor", lambda self, name: (read.append(name), whole(self, name))[1])
    outline(checkpoint)
    assert read == []
    report(checkpoint, 5, layer=1)
    assert len(read) == 4
    assert all(name.startswith("encoder.layer.1.") for name in read)


def test_trained_layers_are_called_trained(tmp_path: Path) -> None:
    found = examined(tmp_path, trained_bert(), 12)
    assert len(found.layers) == 2
    assert {likeness.kind for layer in found.layers for likeness in layer.resemblances} == {"none"}
