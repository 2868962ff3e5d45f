"""Memory at addresses that XLA takes as they are, or that goes back whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from psnb._src.client.ids import Ids
from psnb._src.utils.memory import aligned, in_pages, lasting

GROWTH = """
import numpy as np, psutil
from psnb._src.server.tables.row_index import GrowingRowIndex

def insert(index, rows):
    for first in range(0, rows, 100_000):
        ids = np.arange(first, first + 100_000, dtype=np.uint64)
        index.locate(ids * np.uint64(0x9E3779B97F4A7C15))

insert(GrowingRowIndex(), 100_000)  # compiles
process = psutil.Process()
before = process.memory_info().rss
index = GrowingRowIndex()
insert(index, 3_000_000)
print((process.memory_info().rss - before) / index.nbytes())
"""


@pytest.mark.parametrize("make", [aligned, lasting])
@pytest.mark.parametrize("shape", [(0, 4), (1,), (3, 5), (1000, 16), (40_000, 16)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_an_array_begins_at_64_bytes(
    make: Callable[..., np.ndarray], shape: tuple[int, ...], dtype: str
) -> None:
    arrays = [make(shape, np.dtype(dtype)) for _ in range(20)]
    assert {array.ctypes.data % 64 for array in arrays if array.size} <= {0}
    assert {(array.shape, array.dtype) for array in arrays} == {(shape, np.dtype(dtype))}


def test_rows_of_repeated_ids_begin_there() -> None:
    ids = Ids(np.zeros(1000, np.uint64), None)
    rows = np.ones((ids.asked.size, 3), np.float32)
    found = [ids.spread(rows) for _ in range(20)]
    assert {rows.ctypes.data % 64 for rows in found} == {0}


@pytest.mark.parametrize("huge", [False, True])
@pytest.mark.parametrize("shape", [(0,), (5,), (3, 1_000_000)])
def test_pages_are_zero_and_can_be_written(shape: tuple[int, ...], huge: bool) -> None:
    found = in_pages(shape, np.dtype(np.uint64), huge=huge)
    assert (found.shape, found.dtype, found.any()) == (shape, np.uint64, False)
    found += 7
    assert (found == 7).all()


def test_no_two_share_it() -> None:
    one, other = (in_pages((3_000_000,), np.dtype(np.int32), huge=True) for _ in range(2))
    one += 1
    assert not other.any()


def test_memory_that_there_is_not_is_an_error_of_memory() -> None:
    with pytest.raises(MemoryError, match="there are no 1125899906842624 bytes"):
        lasting((1 << 50,), np.dtype(np.uint8))


def test_a_hash_map_leaves_nothing_behind_when_it_grows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True, timeout=120
    )
    assert float(done.stdout) < 1.15
