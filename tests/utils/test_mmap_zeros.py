"""Memory that goes back whole, and a hash map that grows in it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from psnb._src.utils.memory import mmap_zeros

GROWTH = """
import numpy as np, psutil
from psnb._src.server.row_index import GrowingRowIndex

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


@pytest.mark.parametrize("count", [0, 5, 3_000_000])
def test_it_is_zero_and_can_be_written(count: int) -> None:
    found = mmap_zeros(count, np.dtype(np.uint64))
    assert (found.shape, found.dtype, found.any()) == ((count,), np.uint64, False)
    found += 7
    assert (found == 7).all()


def test_no_two_share_it() -> None:
    one, other = (mmap_zeros(3_000_000, np.dtype(np.int32)) for _ in range(2))
    one += 1
    assert not other.any()


def test_memory_that_there_is_not_is_an_error_of_memory() -> None:
    with pytest.raises(MemoryError, match="there are no 1125899906842624 bytes"):
        mmap_zeros(1 << 50, np.dtype(np.uint8))


def test_a_hash_map_leaves_nothing_behind_when_it_grows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True, timeout=120
    )
    assert float(done.stdout) < 1.15
