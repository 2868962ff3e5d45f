"""Tests of the memory that tables are given."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from psnb.server.memory import empty


def resident() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"Rss:\s+(\d+)", text)[1]) * 1024  # type: ignore[index]


@pytest.mark.parametrize("shape", [(0, 3), (5, 3), (3_000_000,), (1_000_001, 7)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_array_has_the_shape_and_can_be_written(shape: tuple[int, ...], dtype: str) -> None:
    array = empty(shape, np.dtype(dtype))
    assert (array.shape, array.dtype.name) == (shape, dtype)
    assert array.flags.c_contiguous
    array[...] = 7
    assert (array == 7).all()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from Linux's /proc")
def test_only_what_was_written_takes_memory_and_it_goes_with_the_array() -> None:
    size = 40_000_000
    np.full(size // 4, 1.0, np.float32)  # malloc has such a block now
    before = resident()
    array = empty((size // 4,), np.dtype(np.float32))
    array[: size // 40] = 1
    assert resident() - before < size / 5
    array[...] = 1
    assert resident() - before > 0.9 * size
    del array
    assert resident() - before < size / 5
