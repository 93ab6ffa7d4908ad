"""Peak extra memory of one call: the most that was allocated at one time, above what there was before.

Torch's profiler notes every allocation of its CPU allocator in order, inside C++ as well, so that the S x S matrix of a
fused call would show. Its recording belongs to one thread: other sessions of a server neither disturb it nor appear in
it. Not seen: what oneDNN and BLAS take from the system themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import (  # type: ignore[attr-defined]  # exported without being listed
    ProfilerConfig,
    ProfilerState,
    _disable_profiler_legacy,
    _enable_profiler_legacy,
)


def peak_extra_bytes(call: Callable[[], object]) -> int:
    """Measure the peak of one call in bytes, results included.

    The older of torch's two profilers is used: the newer one is one for the whole process and prints while it starts.
    """
    experimental = torch._C._profiler._ExperimentalConfig()
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, experimental))
    result = None
    try:
        result = call()  # kept until the recording ends: its own bytes count
    finally:
        threads = _disable_profiler_legacy()
    del result
    now = peak = 0
    for records in threads:
        for record in records:
            if str(record.kind()) == "memory_alloc":  # negative where memory is given back
                now += record.cpu_memory_usage()
                peak = max(peak, now)
    return peak
