"""Kept uploads: keys by content, names made harmless, the oldest dropped, many threads at once."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from mha_core.errors import MhaError
from mha_core.sources.checkpoints import store
from mha_core.sources.checkpoints.file import open_checkpoint


def content(number: int, length: int = 5) -> bytes:
    out = io.BytesIO()
    torch.save({"w": torch.full((length,), float(number))}, out)
    return out.getvalue()


@pytest.fixture(autouse=True)
def _empty_store() -> Iterator[None]:
    store._files.clear()
    yield
    store._files.clear()


def folders() -> set[str]:
    """What lies on the disk."""
    assert store._folder is not None
    return {path.name for path in Path(store._folder.name).iterdir()}


def test_what_is_kept_is_found_by_its_content() -> None:
    given = content(3)
    key = store.keep("weights.pt", given)
    assert key == hashlib.sha256(given).hexdigest()[:16]
    assert len(key) == store.KEY_LENGTH
    assert store.kept(key).read_bytes() == given
    assert open_checkpoint(store.kept(key)).name == "weights.pt"
    assert store.keep("again.bin", given) == key
    assert store.kept(key).name == "weights.pt"


@pytest.mark.parametrize(
    ("name", "kept_as"),
    [
        ("../../etc/x.pt", "x.pt"),
        ("C:\\a\\b.bin", "b.bin"),
        (".hidden.pt", "hidden.pt"),
        ("<b>ö.safetensors", "b_.safetensors"),
        ("", "checkpoint"),
        ("a\0b\n.pt", "a_b_.pt"),
        ("x" * 5000 + ".pt", "x" * 77 + ".pt"),
    ],
)
def test_names_are_made_harmless(name: str, kept_as: str) -> None:
    path = store.kept(store.keep(name, content(5)))
    assert path.name == kept_as
    assert re.fullmatch(r"[A-Za-z0-9._-]+", path.name)
    assert store._folder is not None
    assert path.parent.parent == Path(store._folder.name)


def test_what_cannot_be_read_is_not_kept() -> None:
    store.keep("a.pt", content(1))
    before = folders()
    for bad in (b"", b"<html>", content(7)[:-30]):
        with pytest.raises(MhaError) as caught:
            store.keep("a.pt", bad)
        assert caught.value.field == "checkpoint"
        assert str(store._folder) not in str(caught.value)
    assert folders() == before


def test_the_least_recently_used_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [store.keep(f"{number}.pt", content(number)) for number in range(store.MAX_FILES)]
    store.kept(keys[0])
    gone = store._files[keys[1]]
    store.keep("more.pt", content(99))
    assert store.kept(keys[0]).exists()
    assert not gone.exists()
    with pytest.raises(MhaError, match="not on this server: upload it again"):
        store.kept(keys[1])
    size = len(content(0))
    monkeypatch.setattr(store, "MAX_TOTAL_BYTES", 3 * size)
    last = store.keep("last.pt", content(100))
    assert store.kept(last).exists()
    assert sum(path.stat().st_size for path in store._files.values()) <= 3 * size
    with pytest.raises(MhaError, match="uploads of at most"):
        store.keep("large.pt", content(1, 10_007))


@pytest.mark.parametrize("key", ["", "0" * 16, "../../etc/passwd"])
def test_keys_that_are_none(key: str) -> None:
    with pytest.raises(MhaError, match="upload it again"):
        store.kept(key)


def test_a_file_removed_by_somebody_else_is_kept_again() -> None:
    key = store.keep("a.pt", content(13))
    store.kept(key).unlink()
    with pytest.raises(MhaError, match="upload it again"):
        store.kept(key)
    assert store.keep("a.pt", content(13)) == key
    assert store.kept(key).exists()


def test_many_threads_keep_at_once() -> None:
    given = [content(number % 11) for number in range(66)]
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda c: store.keep("a.pt", c), given))
    assert keys == [hashlib.sha256(c).hexdigest()[:16] for c in given]
    assert len(store._files) == store.MAX_FILES
    there = {path.parent.name for path in store._files.values()}
    assert there <= folders()
    assert all(path.is_file() for path in store._files.values())
