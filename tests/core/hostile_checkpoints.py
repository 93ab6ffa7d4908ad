"""Malformed and hostile checkpoint files, in seeded families; and a process that opens them all under a memory limit.

    python -m tests.core.hostile_checkpoints FOLDER

writes them into FOLDER, opens each and reads its tensors, and prints one line of JSON per file and one at the end. What
the pickles with code would make, if run, is the file FOLDER/canary.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import resource
import struct
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

Made = tuple[str, bytes]  # file name and content; the part of the name before the first "-" is the family
SEVEN = torch.arange(7, dtype=torch.float32)
EXTRA_BYTES = 3 * 2**30
MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
LEGACY_HEAD = MAGIC + b"\x80\x02M\xe9\x03.\x80\x02}."  # the version 1001, and nothing about the machine


# ---- containers


def zip_of(data: bytes, more: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    """A file of torch.save around a pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        records = {"data.pkl": data, "version": b"3\n", "byteorder": b"little", **(more or {})}
        for name, content in records.items():
            archive.writestr(f"archive/{name}", content)
    return out.getvalue()


def legacy_of(data: bytes, keys: bytes = b"\x80\x02].", after: bytes = b"") -> bytes:
    """The same as an old file, whose storages have a sixth entry."""
    return LEGACY_HEAD + data.replace(b"tQ", b"NtQ") + keys + after


def safetensors_of(header: Any, content: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + content


def saved(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


# ---- pickles by hand


def word(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def number(value: int) -> bytes:
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(numel: int = 7, key: str = "0", kind: str = "FloatStorage", tail: bytes = b"") -> bytes:
    return (
        b"(" + word("storage") + f"ctorch\n{kind}\n".encode() + word(key) + word("cpu") + number(numel) + tail + b"tQ"
    )


def tensor(
    stored: bytes | None = None,
    offset: int = 0,
    shape: tuple[int, ...] = (7,),
    strides: tuple[int, ...] = (1,),
    tail: bytes = b"\x89N",
) -> bytes:
    start = b"ctorch._utils\n_rebuild_tensor_v2\n(" + (storage() if stored is None else stored)
    return start + number(offset) + numbers(shape) + numbers(strides) + tail + b"tR"


def call(name: str, args: bytes) -> bytes:
    module, _, function = name.rpartition(".")
    return f"c{module}\n{function}\n(".encode() + args + b"tR"


def dict_of(value: bytes, key: bytes | None = None) -> bytes:
    return b"\x80\x02}(" + (word("w") if key is None else key) + value + b"u."


NUMBERS = {"data/0": SEVEN.numpy().tobytes()}
KEYS = b"\x80\x02](" + word("0") + b"e."
LEGACY_NUMBERS = struct.pack("<q", 7) + NUMBERS["data/0"]


def in_both(name: str, data: bytes) -> Iterator[Made]:
    yield f"{name}-zip.pt", zip_of(data, NUMBERS)
    yield f"{name}-legacy.pt", legacy_of(data, KEYS, LEGACY_NUMBERS)


# ---- families


class _Calls:
    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, Any]:
        return self.function, self.args


def code(canary: str) -> Iterator[Made]:
    python = f"open({canary!r}, 'w').close()"
    payloads = {
        "system": _Calls(os.system, f"touch {canary}"),
        "eval": _Calls(eval, python),
        "exec": _Calls(exec, python),
        "open": _Calls(open, canary, "w"),
        "getattr": _Calls(getattr, _Calls(__import__, "os"), "system"),
        "loads": _Calls(pickle.loads, pickle.dumps(_Calls(eval, python))),
        "load": _Calls(torch.load, canary),
        "chain": [_Calls(_Calls, eval, python), _Calls(map, _Calls(getattr, "", "join"), [python])],
    }
    for name, payload in payloads.items():
        for protocol in range(6):
            data = pickle.dumps({"w": payload}, protocol)
            yield f"code-{name}-{protocol}-bare.pt", data
            yield f"code-{name}-{protocol}-zip.bin", zip_of(data)
            yield f"code-{name}-{protocol}-legacy.pth", legacy_of(data)
    for name, data in {
        "inst": b"(S'" + f"touch {canary}".encode() + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nX" + struct.pack("<I", len(canary) + 6) + f"touch {canary}".encode() + b"o.",
        "parameter": b"\x80\x02ctorch.nn.parameter\nParameter\ncos\nsystem\n\x81.",
        "subclass": dict_of(call("torch._tensor._rebuild_from_type_v2", b"cos\nsystem\n(" + word(canary) + b"tNN")),
        "wrapper": dict_of(call("torch._utils._rebuild_wrapper_subclass", b"N" * 8)),
    }.items():
        yield from in_both(f"code-{name}", data)


def truncated(whole: dict[str, bytes]) -> Iterator[Made]:
    for name, content in whole.items():
        for part in range(24):
            yield f"cut-{part}-{name}", content[: 1 + (len(content) - 2) * part // 23]
        yield f"longer-{name}", content + b"\0" * 1000


def flipped(whole: dict[str, bytes], seed: int) -> Iterator[Made]:
    chance = random.Random(seed)
    for name, content in whole.items():
        for trial in range(40):
            changed = bytearray(content)
            for _ in range(1 + trial % 3):
                changed[chance.randrange(min(len(changed), 900))] ^= 1 << chance.randrange(8)
            yield f"flip-{trial}-{name}", bytes(changed)


def headers() -> Iterator[Made]:
    def one(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "data_offsets": offsets}

    for length in (0, 1, 7, 8, 2**20, 10 * 2**30, 2**31, 2**32, 2**63, 2**64 - 1):
        yield f"length-{length}.safetensors", safetensors_of({"a": one()}, b"1234", length)
    wrong: dict[str, tuple[Any, bytes]] = {
        "twice": (b'{"a":%b,"a":%b}' % ((json.dumps(one()).encode(),) * 2), b"1234"),
        "overlap": ({"a": one(), "b": one()}, b"1234"),
        "shifted": ({"a": one(), "b": one(offsets=(2, 6))}, b"123456"),
        "hole": ({"a": one(), "b": one(offsets=(8, 12))}, b"1" * 12),
        "beyond": ({"a": one(shape=(100,), offsets=(0, 400))}, b"1234"),
        "negative": ({"a": one(offsets=(-4, 0))}, b"1234"),
        "backwards": ({"a": one(offsets=(4, 0))}, b"1234"),
        "no-such-type": ({"a": one("F99")}, b"1234"),
        "six-bits": ({"a": one("F6_E2M3", (4,), (0, 3))}, b"123"),
        "type-list": ({"a": one([])}, b"1234"),
        "product": ({"a": one(shape=(2**40, 2**40))}, b"1234"),
        "empty-product": ({"a": one(shape=(2**60, 0, 2**60), offsets=(0, 0))}, b""),
        "longest-axis": ({"a": one(shape=(2**63, 0), offsets=(0, 0))}, b""),
        "axes": ({"a": one(shape=(1,) * 100_000)}, b"1234"),
        "deep": (b'{"a":' * 5000 + b"1" + b"}" * 5000, b""),
        "deep-notes": (b'{"__metadata__":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}}", b""),
        "not-unicode": (b'{"\xff\xfe":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"),
        "surrogate": (b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"),
        "control": ({"<b>\x00\n\x1b[31m": one()}, b"1234"),
        "markup": ({"<img src=x onerror=alert(1)>": one()}, b"1234"),
        "long-name": ({"x" * 2**20: one()}, b"1234"),
        "no-name": ({"": one()}, b"1234"),
        "many": ({f"t{i}": one("U8", (0,), (0, 0)) for i in range(210_000)}, b""),
        "list": ([1], b""),
        "number": (b"{1}", b""),
        "nothing": ({}, b""),
        "nothing-but-numbers": ({}, b"123"),
        "float-shape": ({"a": one(shape=(1.5,))}, b"1234"),
        "null": ({"a": None}, b"1234"),
    }
    for name, (header, content) in wrong.items():
        yield f"header-{name}.safetensors", safetensors_of(header, content)


def claims() -> Iterator[Made]:
    """Pickles that call nothing forbidden, and ask for too much or contradict themselves."""
    huge = 2**45
    nested = b")" + b"\x85" * 200_000  # a tuple in a tuple in ...
    shared = b")" + b"q\x00h\x00\x86" * 60  # doubled 60 times: 2**60 elements
    pickles = {
        "storage": dict_of(tensor(storage(2**38))),
        "storage-huge": dict_of(tensor(storage(2**62))),
        "storage-negative": dict_of(tensor(storage(-7))),
        "storage-key": dict_of(tensor(storage(key="../../0"))),
        "storage-missing": dict_of(tensor(storage(key="9"))),
        "storage-twice": dict_of(tensor(storage(7)) + word("v") + tensor(storage(5))),
        "storage-format": dict_of(tensor(storage(14, kind="HalfStorage")) + word("v") + tensor()),
        "storage-view": dict_of(tensor(storage(tail=b"(" + word("v") + number(0) + number(3) + b"t"))),
        "storage-word": dict_of(b"(" + word("module") + b"NNNNtQ"),
        "storage-number": dict_of(b"K\x01Q"),
        "beyond": dict_of(tensor(shape=(8,))),
        "offset": dict_of(tensor(offset=1)),
        "offset-negative": dict_of(tensor(offset=-1)),
        "strides": dict_of(tensor(shape=(3, 3), strides=(3, 1))),
        "strides-negative": dict_of(tensor(strides=(-1,))),
        "strides-short": dict_of(tensor(shape=(7, 1), strides=(1,))),
        "strides-zero": dict_of(tensor(shape=(huge,), strides=(0,))),
        "strides-zeros": dict_of(tensor(shape=(2**20, 2**19), strides=(0, 0))),
        "shape-huge": dict_of(tensor(shape=(2**39, 2**39, 0), strides=(1, 1, 1))),
        "shape-longer": dict_of(tensor(shape=(2**200,))),
        "axes": dict_of(tensor(shape=(1,) * 5000, strides=(1,) * 5000)),
        "hooks": dict_of(tensor(tail=b"\x89}(K\x01K\x02u")),
        "grad": dict_of(tensor(storage(kind="LongStorage"), tail=b"\x88N")),
        "marks": dict_of(tensor(tail=b"\x89N}(" + word("x") + b"\x88u")),
        "quantised": dict_of(
            call(
                "torch._utils._rebuild_qtensor",
                storage(7, kind="QInt8Storage") + number(0) + numbers((huge,)) + numbers((0,)) + b"NNN",
            )
        ),
        "meta": dict_of(
            call(
                "torch._utils._rebuild_meta_tensor_no_storage",
                b"ctorch\nfloat32\n" + numbers((huge, huge)) + numbers((1, 1)) + b"\x89",
            )
        ),
        "sparse": dict_of(call("torch._utils._rebuild_sparse_tensor", b"N" + tensor())),
        "constructor": dict_of(call("torch.Tensor", number(huge))),
        "constructor-old": dict_of(call("torch.FloatTensor", number(huge))),
        "bytes": dict_of(call("builtins.bytearray", number(huge))),
        "untyped": dict_of(call("torch.storage.UntypedStorage", number(huge))),
        "device": dict_of(call("torch.device", word("no such device"))),
        "codec": dict_of(call("_codecs.encode", word("a" * 100_000) + word("idna"))),
        "size": dict_of(call("torch.Size", numbers((2**200,)))),
        "set": dict_of(call("builtins.set", b"](" + shared + b"e")),
        "counter": dict_of(call("collections.Counter", word("abc"))),
        "ordered": dict_of(call("collections.OrderedDict", b"](" + shared + b"e")),
        "called-tuple": b"\x80\x02" + shared + b")R.",
        "key-deep": dict_of(b"K\x01", nested),
        "key-shared": dict_of(b"K\x01", shared),
        "key-list": dict_of(b"K\x01", b"]"),
        "deep-tuple": dict_of(nested),
        "deep-list": dict_of(b"]" * 100_000 + b"a" * 99_999),
        "deep-dict": dict_of((b"}" + word("a")) * 5_000 + b"K\x01" + b"s" * 5_000),
        "shared-dict": b"\x80\x02}" + b"".join(
            b"q\x00}(" + word("a") + b"h\x00" + word("b") + b"h\x00u" for _ in range(40)
        ) + b".",
        "itself": b"\x80\x02}q\x00" + word("a") + b"h\x00s.",
        "itself-list": b"\x80\x02}" + word("a") + b"]q\x00h\x00as.",
        "marks-many": b"\x80\x02" + b"(" * 300_000 + b".",
        "dicts-many": b"\x80\x02" + b"}" * 3_100_000 + b".",
        "tensors-many": dict_of(b"](" + (tensor() + b"q\x01") + b"h\x01" * 400_000 + b"e"),
        "names-many": b"\x80\x02}(" + b"".join(word(str(i)) + b"h\x00" for i in range(100)) + b"u.",
        "word-long": b"\x80\x02X\xff\xff\xff\xff.",
        "memo": b"\x80\x02h\x07.",
        "memo-huge": b"\x80\x02Nr\xff\xff\xff\xff.",
        "empty-stack": b"\x80\x02.",
        "pop-mark": b"\x80\x02t.",
        "items-odd": b"\x80\x02}(K\x01u.",
        "no-stop": b"\x80\x02}",
        "protocol": b"\x80\xff}.",
        "state": dict_of(call("collections.OrderedDict", b"") + b"K\x01b"),
        "name-control": dict_of(tensor(), word("a\x00\n")),
        "name-surrogate": dict_of(tensor(), b"X\x03\0\0\0\xed\xa0\x80"),
        "name-long": dict_of(tensor(), word("x" * 2**20)),
        "name-bytes": dict_of(tensor(), b"U\x02\xff\xfe"),
    }  # fmt: skip
    for name, data in pickles.items():
        yield from in_both(f"claim-{name}", data)
    good = dict_of(tensor())
    yield "claim-legacy-keys.pt", legacy_of(good, b"\x80\x02].", LEGACY_NUMBERS)
    yield "claim-legacy-count.pt", legacy_of(good, KEYS, struct.pack("<q", 2**60) + NUMBERS["data/0"])
    yield "claim-legacy-short.pt", legacy_of(good, KEYS, LEGACY_NUMBERS[:-1])
    yield "claim-legacy-version.pt", MAGIC + b"\x80\x02K\x01.\x80\x02}." + good + KEYS + LEGACY_NUMBERS


def archives() -> Iterator[Made]:
    good = dict_of(tensor())
    whole = zip_of(good, NUMBERS)
    yield "zip-bomb.pt", zip_of(good + b"\0" * 50_000_000, NUMBERS, zipfile.ZIP_DEFLATED)
    yield "zip-bomb-numbers.pt", zip_of(good, {"data/0": b"\0" * 50_000_000}, zipfile.ZIP_DEFLATED)
    yield "zip-bzip2.pt", zip_of(good, NUMBERS, zipfile.ZIP_BZIP2)
    directory = whole.index(b"PK\1\2")
    for at, code_ in ((20, "<I"), (24, "<I"), (42, "<I"), (10, "<H"), (8, "<H"), (28, "<H"), (30, "<H")):
        changed = bytearray(whole)
        struct.pack_into(code_, changed, directory + at, 2 ** (8 * struct.calcsize(code_)) - 1)
        yield f"zip-field-{at}.pt", bytes(changed)
    for at in range(10, 22, 2):
        changed = bytearray(whole)
        struct.pack_into("<H", changed, len(whole) - 22 + at - 2, 0xFFFF)
        yield f"zip-end-{at}.pt", bytes(changed)
    last = whole.rindex(b"PK\1\2")
    changed = bytearray(whole)
    struct.pack_into("<I", changed, last + 42, 0)
    yield "zip-overlap.pt", bytes(changed)
    yield "zip-before.pt", b"PK\3\4" + whole
    yield "zip-behind.pt", whole + whole
    yield "zip-comment.pt", whole[:-2] + b"\x04\x00abcd"
    yield "zip-empty.pt", b"PK\5\6" + b"\0" * 18
    yield "zip-no-entry.pt", b"PK\3\4" + b"PK\5\6" + b"\0" * 18
    yield "zip-other.pt", zip_of(good).replace(b"data.pkl", b"date.pkl")
    yield "zip-script.pt", zip_of(good, {"constants.pkl": b""})
    yield "zip-case.pt", zip_of(good, {**NUMBERS, "DATA.PKL": good})
    yield "zip-order.pt", zip_of(good, {**NUMBERS, "byteorder": b"middle"})
    yield "zip-alignment.pt", zip_of(good, {**NUMBERS, ".storage_alignment": b"x"})
    yield "zip-version.pt", zip_of(good, {**NUMBERS, "version": b"x" * 500})
    yield "zip-record.pt", zip_of(good, {**NUMBERS, ".format_version": b"1" * 10_000_000})
    yield "zip-short.pt", zip_of(good, {"data/0": b"123"})
    yield "zip-without-numbers.pt", zip_of(good)
    yield "zip-empty-pickle.pt", zip_of(b"")


def others() -> Iterator[Made]:
    lists: dict[str, Any] = {
        "list": [SEVEN], "tensor": SEVEN, "text": "abc", "number": 3, "none": None, "empty": {}, "numbers": {"a": 1},
        "module": torch.nn.Linear(3, 5), "optimizer": torch.optim.Adam([torch.nn.Parameter(SEVEN)]).state_dict(),
        "set": {1, 2}, "array": {"a": SEVEN.numpy()}, "deep": {"a": {"b": {"c": [SEVEN]}}},
    }  # fmt: skip
    for name, value in lists.items():
        yield f"value-{name}.pt", saved(value)
        yield f"value-{name}-legacy.pt", saved(value, _use_new_zipfile_serialization=False)
    chance = random.Random(11)
    for size in (1, 2, 7, 8, 9, 22, 513, 5000):
        for ending in ("safetensors", "pt", "bin", "json"):
            yield f"noise-{size}.{ending}", chance.randbytes(size)
    texts = {
        "page": b"<!DOCTYPE html><html><body>404</body></html>", "xml": b"<?xml version='1.0'?><Error/>",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "words": b"Not found",
        "gguf": b"GGUF\x03\0\0\0" + b"\0" * 40, "h5": b"\x89HDF\r\n\x1a\n" + b"\0" * 90, "npy": b"\x93NUMPY\1\0",
        "gzip": b"\x1f\x8b\x08" + b"\0" * 30, "empty": b"", "zeros": b"\0" * 1000, "pickle": pickle.dumps({"a": 1}),
        "tar": b"storages" + b"\0" * 1016,
    }  # fmt: skip
    for name, content in texts.items():
        for ending in ("safetensors", "pt", "bin"):
            yield f"text-{name}.{ending}", content
    yield "text-graph.onnx", b"\x08\x07\x12\x07pytorch"
    yield "text-flax.msgpack", b"\x81\xa1a\x01"


def indices() -> Iterator[Made]:
    for number_, weight_map in enumerate(
        (
            None, [], {}, "a", {"w": 1}, {"w": None}, {"w": ["a"]}, {"w": "../x.pt"}, {"w": "/etc/passwd"}, {"w": ""},
            {"w": "."}, {"w": ".."}, {"w": "a/b.pt"}, {"w": "a\\b.pt"}, {"w": "missing.safetensors"}, {"w": "a\0b"},
            {"w": "x" * 5000}, {"w": "link.safetensors"}, {"w": "index-0.index.json"}, {"w": "folder"},
            {"\ud800": "control-good.safetensors"}, {"w": "control-good.safetensors"}, {"w": "text-empty.pt"},
        )
    ):  # fmt: skip
        yield f"index-{number_}.index.json", json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    raw = {
        "deep": b'{"a":' * 50_000, "cut": b'{"weight_map": {"a"', "latin": b'{"weight_map": {"\xff": "a"}}',
        "number": b'{"weight_map": ' + b"9" * 10_000 + b"}", "brace": b"{", "nan": b'{"weight_map": NaN}',
        "many": json.dumps({"weight_map": {str(i): f"{i}.pt" for i in range(2000)}}).encode(),
    }  # fmt: skip
    for name, content in raw.items():
        yield f"index-{name}.index.json", content


def controls() -> dict[str, bytes]:
    """Files that are as they should be, by hand and by torch; what is changed elsewhere is changed from these."""
    header = {"a": {"dtype": "F32", "shape": [7], "data_offsets": [0, 28]}}
    return {
        "control-hand.pt": zip_of(dict_of(tensor()), NUMBERS),
        "control-hand-old.pt": legacy_of(dict_of(tensor()), KEYS, LEGACY_NUMBERS),
        "control-zip.pt": saved({"a": SEVEN, "b": SEVEN.view(7, 1)}),
        "control-old.pt": saved({"a": SEVEN, "b": SEVEN.view(7, 1)}, _use_new_zipfile_serialization=False),
        "control-good.safetensors": safetensors_of(header, NUMBERS["data/0"]),
    }


def all_files(canary: str) -> Iterator[Made]:
    whole = controls()
    yield from whole.items()
    yield from code(canary)
    yield from truncated({name: whole[name] for name in list(whole)[2:]})
    yield from flipped({name: whole[name] for name in list(whole)[2:]}, seed=5)
    for family in (headers, claims, archives, others, indices):
        yield from family()
    for name, content in whole.items():
        for ending in ("safetensors", "bin", "json", "txt"):
            yield f"ending-{name}.{ending}", content


# ---- the process that opens them


def _outcome(path: Path) -> dict[str, Any]:
    from mha_core.errors import MhaError
    from mha_core.sources.checkpoints.file import open_checkpoint

    start = time.perf_counter()
    try:
        opened = open_checkpoint(path)
        for name in list(opened.tensors)[:20]:
            shape = tuple(opened.tensor(name).shape)
            assert shape == opened.shapes[name], f"{path.name}: {name} has {shape}, listed {opened.shapes[name]}"
        outcome: dict[str, Any] = {"opened": len(opened.tensors), "notes": opened.notes}
    except MhaError as error:
        outcome = {"message": str(error), "field": error.field}
    return {"file": path.name, "seconds": time.perf_counter() - start, **outcome}


def main(folder: Path) -> None:
    """Write and open every file."""
    import mha_core.sources.checkpoints.file

    torch.set_num_threads(1)
    (folder / "folder").mkdir()
    (folder / "link.safetensors").symlink_to("/etc/hostname")
    for name, content in all_files(str(folder / "canary")):
        (folder / name).write_bytes(content)
    del content
    paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    torch.save({"a": SEVEN}, folder / "link.pt")
    virtual_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (virtual_bytes + EXTRA_BYTES,) * 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in paths:
        sys.stdout.write(json.dumps(_outcome(path)) + "\n")
        sys.stdout.flush()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    sys.stdout.write(json.dumps({"grown_bytes": grown, "module": mha_core.sources.checkpoints.file.__name__}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
