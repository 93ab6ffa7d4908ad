"""Checkpoints read against what torch and safetensors wrote: values, formats, nesting, shards, folders, laziness.

Axes of the tensors are primes. Hostile files are in test_checkpoint_hostile.py.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mha_core.errors import MhaError
from mha_core.sources.checkpoints.file import Checkpoint, TensorInfo, open_checkpoint

ROOT = Path(__file__).resolve().parents[2]


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 5
    return drawn > 0 if dtype == torch.bool else drawn.to(dtype)


MIXED = {
    "bf16": numbers(2, 3, dtype=torch.bfloat16),
    "f16": numbers(5, 7, dtype=torch.float16),
    "f32": numbers(11, 13),
    "f64": numbers(3, 5, 7, dtype=torch.float64),
    "f8": numbers(13, dtype=torch.float8_e4m3fn),
    "i64": numbers(17, dtype=torch.int64),
    "i8": numbers(2, 19, dtype=torch.int8),
    "bool": numbers(23, dtype=torch.bool),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 29),
}
FILES: dict[str, dict[str, Any]] = {"a.pt": {}, "a.pth": {"_use_new_zipfile_serialization": False}}


def same(read: Tensor, written: Tensor) -> bool:
    bits = torch.uint8
    equal_format = read.dtype == written.dtype and read.shape == written.shape
    return equal_format and torch.equal(
        read.contiguous().flatten().view(bits), written.contiguous().flatten().view(bits)
    )


def assert_reads(checkpoint: Checkpoint, written: dict[str, Tensor]) -> None:
    assert set(checkpoint.tensors) == set(written)
    assert dict(checkpoint.shapes) == {name: tuple(tensor.shape) for name, tensor in written.items()}
    for name, tensor in written.items():
        info = checkpoint.tensors[name]
        assert info == TensorInfo(tuple(tensor.shape), str(tensor.dtype)[6:], tensor.numel() * tensor.element_size())
        assert same(checkpoint.tensor(name), tensor), name


@pytest.mark.parametrize("name", FILES)
def test_torch_files_are_read_as_written(tmp_path: Path, name: str) -> None:
    written = {key: value for key, value in MIXED.items() if key != "f8" or name == "a.pt"}  # torch's old form has none
    torch.save(written, tmp_path / name, **FILES[name])
    checkpoint = open_checkpoint(tmp_path / name)
    assert (checkpoint.name, checkpoint.format, checkpoint.notes, checkpoint.config) == (name, "torch", (), None)
    assert_reads(checkpoint, written)


def test_safetensors_files_are_read_as_written(tmp_path: Path) -> None:
    save_file(MIXED, tmp_path / "m.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(str(tmp_path / "m.safetensors"))
    assert (checkpoint.format, checkpoint.notes) == ("safetensors", ())
    assert_reads(checkpoint, load_file(tmp_path / "m.safetensors"))


@pytest.mark.parametrize("name", FILES)
def test_a_real_module_reads_as_torch_reads_it(tmp_path: Path, name: str) -> None:
    layer = nn.TransformerEncoderLayer(14, 7, 22)
    torch.save(layer.state_dict(), tmp_path / name, **FILES[name])
    assert_reads(open_checkpoint(tmp_path / name), torch.load(tmp_path / name, weights_only=True))
    torch.save(dict(layer.named_parameters()), tmp_path / name, **FILES[name])
    parameters = open_checkpoint(tmp_path / name)
    assert_reads(parameters, {k: v.detach() for k, v in layer.named_parameters()})
    assert not parameters.tensor("linear1.weight").requires_grad


@pytest.mark.parametrize("name", FILES)
def test_views_and_shared_numbers(tmp_path: Path, name: str) -> None:
    base = numbers(7, 11)
    views = {
        "whole": base,
        "turned": base.t(),
        "part": base[2:5, 3:8],
        "steps": base[::3],
        "row": base[0].expand(3, 11),
    }
    torch.save(views, tmp_path / name, **FILES[name])
    checkpoint = open_checkpoint(tmp_path / name)
    assert_reads(checkpoint, views)
    checkpoint.tensor("whole").zero_()  # a copy: neither the file nor another tensor changes
    assert same(checkpoint.tensor("turned"), base.t())


@pytest.mark.parametrize("name", FILES)
def test_the_state_dict_of_a_trainer_is_found(tmp_path: Path, name: str) -> None:
    model = nn.Linear(5, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    saved = {
        "epoch": 3,
        "args": {"lr": 0.1, "names": ["a", "b"]},
        "model": model.state_dict(),
        "ema": {"weight": torch.zeros(3, 5)},
        "optimizer": optimizer.state_dict(),
        "optim_g": {"exp_avg": torch.ones(2)},
    }
    torch.save(saved, tmp_path / name, **FILES[name])
    checkpoint = open_checkpoint(tmp_path / name)
    assert_reads(checkpoint, dict(model.state_dict()))
    notes = " / ".join(checkpoint.notes)
    assert 'the state dict is the entry "model"' in notes
    assert "tensors in other entries are left out: 1" in notes
    assert "entries that are not tensors are left out: 3" in notes  # epoch, lr, names
    assert "optimizer" in notes


@pytest.mark.parametrize(
    ("saved", "names"),
    [
        ({"module": {"state_dict": {"w": MIXED["f32"]}}}, {"w"}),
        ({"state_dict": {"model.w": MIXED["f32"], "model.b": MIXED["f16"]}}, {"model.w", "model.b"}),
        ({"encoder": {"w": MIXED["f32"]}, "decoder": {"0": {"w": MIXED["f16"]}}}, {"encoder.w", "decoder.0.w"}),
        ({"model": MIXED["f32"], "w": MIXED["f16"]}, {"model", "w"}),
        ({"a": MIXED["f32"], "b": MIXED["f16"], "net": {"c": MIXED["f64"]}}, {"a", "b", "net.c"}),
        ({"ema": {"w": MIXED["f32"], "b": MIXED["f16"]}, "model": {"w": MIXED["f64"]}}, {"w", "b"}),
        ({"optimizer": MIXED["f32"], "w": MIXED["f16"]}, {"optimizer", "w"}),
        ({0: MIXED["f32"], "l": [MIXED["f16"]]}, {"0"}),
    ],
)
def test_nested_state_dicts(tmp_path: Path, saved: dict[Any, Any], names: set[str]) -> None:
    torch.save(saved, tmp_path / "n.pt")
    checkpoint = open_checkpoint(tmp_path / "n.pt")
    assert set(checkpoint.tensors) == names
    for name in names:
        checkpoint.tensor(name)


def test_tensors_that_are_not_plain_are_left_out_and_said(tmp_path: Path) -> None:
    plain = numbers(3, 5)
    odd = {
        "plain": plain,
        "sparse": plain.to_sparse(),
        "rows": plain.to_sparse_csr(),
        "quantised": torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
        "channels": torch.quantize_per_channel(plain, torch.ones(3), torch.zeros(3), 0, torch.qint8),
        "meta": torch.empty(3, device="meta"),
        "conjugated": torch.ones(2, dtype=torch.complex64).conj(),
        "repeated": torch.zeros(1).expand(2**20, 2**20),
        "complex": torch.ones(2, dtype=torch.complex64),
    }
    torch.save(odd, tmp_path / "odd.pt")
    checkpoint = open_checkpoint(tmp_path / "odd.pt")
    assert set(checkpoint.tensors) == {"plain", "complex"}
    notes = " / ".join(checkpoint.notes)
    for part in ("2 (sparse)", "2 (quantised)", "1 (meta", "1 (stored conj", "1 (stored numbers repeated"):
        assert f"tensors left out: {part}" in notes
    torch.save({"n": torch.nested.nested_tensor([plain, plain])}, tmp_path / "nested.pt")
    with pytest.raises(MhaError, match="tensors of a kind that is not read here"):
        open_checkpoint(tmp_path / "nested.pt")


def test_other_values_beside_the_weights_do_no_harm(tmp_path: Path) -> None:
    beside = [torch.Size([3]), torch.device("cuda:0"), b"bytes", torch.bfloat16, {1, 2}, 2**100, None, (1, (2,)), 1e300]
    torch.save({"w": MIXED["f32"], **{f"other{i}": value for i, value in enumerate(beside)}}, tmp_path / "a.pt")
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    assert_reads(checkpoint, {"w": MIXED["f32"]})
    assert checkpoint.notes == ("entries that are not tensors are left out: 9",)


def shard(folder: Path, ending: str = "safetensors") -> dict[str, Tensor]:
    weights = {"a.w": numbers(3, 5), "a.b": numbers(3, seed=5), "c.w": numbers(7, 11, seed=7)}
    first, second = {k: v for k, v in weights.items() if k[0] == "a"}, {"c.w": weights["c.w"]}
    for number, part in enumerate((first, second)):
        path = folder / f"model-{number}.{ending}"
        save_file(part, path) if ending == "safetensors" else torch.save(part, path)
    places = {name: f"model-{int(name[0] == 'c')}.{ending}" for name in weights}
    index = folder / f"model.{ending}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return weights


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_shards_are_one_checkpoint(tmp_path: Path, ending: str) -> None:
    weights = shard(tmp_path, ending)
    (tmp_path / "config.json").write_text('{"num_attention_heads": 7}')
    for path in (tmp_path, tmp_path / f"model.{ending}.index.json"):
        checkpoint = open_checkpoint(path)
        assert_reads(checkpoint, weights)
        assert (checkpoint.name, checkpoint.notes) == (path.name, ())
        assert checkpoint.config == {"num_attention_heads": 7}
    assert checkpoint.format == ("safetensors" if ending == "safetensors" else "torch")


def test_missing_shards_are_said(tmp_path: Path) -> None:
    shard(tmp_path)
    (tmp_path / "model-0.safetensors").unlink()
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.tensors) == {"c.w"}
    assert checkpoint.notes == ("1 of 2 files are not there, and with them 2 tensors",)
    with pytest.raises(MhaError, match=r"has no tensor 'a\.w'"):
        checkpoint.tensor("a.w")


def test_shards_may_be_links_inside_the_folder_or_the_hub_cache_but_not_elsewhere(tmp_path: Path) -> None:
    snapshot, blobs, outside = (tmp_path / "m" / part for part in ("snapshots/1", "blobs", "else"))
    for folder in (snapshot, blobs, outside):
        folder.mkdir(parents=True)
    weights = shard(snapshot)
    for number, home in enumerate((blobs, blobs)):
        (snapshot / f"model-{number}.safetensors").rename(home / str(number))
        (snapshot / f"model-{number}.safetensors").symlink_to(home / str(number))
    assert_reads(open_checkpoint(snapshot), weights)
    (blobs / "1").rename(outside / "1")
    (snapshot / "model-1.safetensors").unlink()
    (snapshot / "model-1.safetensors").symlink_to(outside / "1")
    with pytest.raises(MhaError, match="link out of its folder"):
        open_checkpoint(snapshot)


def test_a_folder_takes_the_usual_file_and_says_which(tmp_path: Path) -> None:
    with pytest.raises(MhaError, match="is a folder without a checkpoint"):
        open_checkpoint(tmp_path)
    torch.save({"w": numbers(5)}, tmp_path / "pytorch_model.bin")
    torch.save({"w": numbers(7)}, tmp_path / "another.pt")
    torch.save({"w": numbers(2)}, tmp_path / "optimizer.pt")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.shapes == {"w": (5,)}
    assert checkpoint.notes == ("pytorch_model.bin was taken; the folder also has another.pt",)
    save_file({"w": numbers(11)}, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).shapes == {"w": (11,)}
    assert "pytorch_model.bin" in open_checkpoint(tmp_path).notes[0]


@pytest.mark.parametrize(
    "content", [b"[1]", b"{", b'{"a": "' + b"x" * 2**20 + b'"}', b'{"a":' * 100_000, b"\xff", b'{"a": ' + b"9" * 9999]
)
def test_a_config_that_is_not_usable_is_a_note(tmp_path: Path, content: bytes) -> None:
    torch.save({"w": numbers(5)}, tmp_path / "a.pt")
    (tmp_path / "config.json").write_bytes(content)
    (tmp_path / "other.json").write_text('{"heads": 3}')
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    assert checkpoint.config is None
    assert checkpoint.notes == ("config.json is not used: it is not an object of JSON of at most 1.0 MiB",)
    assert open_checkpoint(tmp_path / "a.pt", config=tmp_path / "other.json").config == {"heads": 3}
    assert "nowhere.json is not used" in open_checkpoint(tmp_path / "a.pt", config=tmp_path / "nowhere.json").notes[0]


@pytest.mark.parametrize("path", ["/dev/zero", "nowhere.pt", "a\0b.pt", "x" * 300, "nowhere/../nothing"])
def test_paths_that_lead_to_no_file(path: str) -> None:
    with pytest.raises(MhaError, match=r"does not exist|not an ordinary file|not a possible path") as caught:
        open_checkpoint(path)
    assert (caught.value.field, "\0" in str(caught.value)) == ("checkpoint", False)


def test_the_budget_limits_what_is_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = {"big": numbers(31, 1009), "small": numbers(3)}
    torch.save(big, tmp_path / "new.pt")
    torch.save(big, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    save_file(big, tmp_path / "big.safetensors")
    monkeypatch.setenv("MHA_LAB_CHECKPOINT_BUDGET", "100000")
    for name, words in (("new.pt", "unpacks to"), ("old.pt", "takes")):
        with pytest.raises(MhaError, match=rf"{words} 12\d\.\d KiB, more than the 97.7 KiB"):
            open_checkpoint(tmp_path / name)
    checkpoint = open_checkpoint(tmp_path / "big.safetensors")
    assert same(checkpoint.tensor("small"), big["small"])
    with pytest.raises(MhaError, match=r"big takes 122\.2 KiB, more than"):
        checkpoint.tensor("big")
    monkeypatch.setenv("MHA_LAB_CHECKPOINT_BUDGET", "much")
    with pytest.raises(MhaError, match="a number of bytes"):
        open_checkpoint(tmp_path / "new.pt")


def test_a_large_safetensors_file_is_listed_without_being_read(tmp_path: Path) -> None:
    """300 MB that take no room on the disk; the process may grow by a tenth of that."""
    sizes = {"big": 300_000_000, "small": 28}
    header, end = {}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with (tmp_path / "sparse.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.seek(end - 28, 1)
        file.write(struct.pack("<7f", *range(7)))
    code = """
import resource, sys
from mha_core.sources.checkpoints.file import open_checkpoint
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
checkpoint = open_checkpoint(sys.argv[1])
print(checkpoint.tensors["big"].size_bytes, checkpoint.tensor("small").tolist(), peak() - before)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "sparse.safetensors")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    size_bytes, _, rest = done.partition(" ")
    assert size_bytes == "300000000"
    assert rest.startswith("[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]")
    assert int(rest.rpartition(" ")[2]) < 30_000  # KiB
