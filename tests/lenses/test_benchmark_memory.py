"""Peak extra memory against allocations whose size is known, and what the kernels promise of it."""

from __future__ import annotations

import threading

import pytest
import torch

from mha_core import MultiHeadAttention
from mha_core.kernels import CHUNK_ROWS
from mha_core.lenses.bench_memory import peak_extra_bytes


def test_a_product_takes_its_result() -> None:
    a, b = torch.zeros(211, 97), torch.zeros(97, 307)
    assert peak_extra_bytes(lambda: a @ b) == pytest.approx(211 * 307 * 4, abs=64)  # rounded to a cache line


def test_what_is_given_back_counts_at_its_peak_alone() -> None:
    a = torch.zeros(211, 97)
    one = a.numel() * 4
    assert peak_extra_bytes(lambda: ((a + 1) * 2).sum()) == pytest.approx(2 * one, abs=256)
    assert peak_extra_bytes(lambda: [float((a + 1).sum()) for _ in range(5)]) == pytest.approx(one, abs=256)


def test_a_call_that_allocates_nothing_and_one_that_fails() -> None:
    a = torch.zeros(211, 97)
    assert peak_extra_bytes(lambda: a.zero_()) == 0
    with pytest.raises(ZeroDivisionError):
        peak_extra_bytes(lambda: 1 / 0)
    assert peak_extra_bytes(lambda: a.clone()) == pytest.approx(a.numel() * 4, abs=64)  # recording goes on


def test_other_threads_do_not_count() -> None:
    started, stop = threading.Event(), threading.Event()

    def allocate() -> None:
        while not stop.is_set():
            torch.zeros(991, 997)
            started.set()

    other = threading.Thread(target=allocate)
    other.start()
    try:
        started.wait()
        small = torch.zeros(31, 37)
        assert all(peak_extra_bytes(lambda: small + 1) < 8192 for _ in range(50))
    finally:
        stop.set()
        other.join()


@torch.no_grad()
def test_the_kernels_keep_what_they_promise() -> None:
    heads, length = 8, 2053
    x = torch.zeros(1, length, 16)
    peaks = {}
    for kernel in ("explicit", "chunked", "sdpa"):
        layer = MultiHeadAttention(16, heads, kernel=kernel).eval()
        peaks[kernel] = peak_extra_bytes(lambda layer=layer: layer(x, need_weights=False))
    matrices = heads * length * length * 4
    assert peaks["explicit"] >= matrices
    assert heads * CHUNK_ROWS * length * 4 <= peaks["chunked"] <= matrices / 4
    assert peaks["sdpa"] <= matrices / 16


@torch.no_grad()
def test_a_long_chunked_pass_takes_a_sixteenth() -> None:
    heads, length = 2, 8192
    x = torch.zeros(1, length, 8)
    layer = MultiHeadAttention(8, heads, kernel="chunked").eval()
    assert peak_extra_bytes(lambda: layer(x, need_weights=False)) <= heads * length * length * 4 / 16
