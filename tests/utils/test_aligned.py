"""Arrays at addresses that XLA takes as they are."""

from __future__ import annotations

import numpy as np
import pytest

from psnb._src.client.sparse_shards import Ids
from psnb._src.utils.memory import aligned


@pytest.mark.parametrize("shape", [(0, 4), (1,), (3, 5), (1000, 16)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_an_array_begins_at_64_bytes(shape: tuple[int, ...], dtype: str) -> None:
    arrays = [aligned(shape, np.dtype(dtype)) for _ in range(20)]
    assert {array.ctypes.data % 64 for array in arrays if array.size} <= {0}
    assert {(array.shape, array.dtype) for array in arrays} == {(shape, np.dtype(dtype))}


def test_rows_of_repeated_ids_begin_there() -> None:
    ids = Ids(np.zeros(1000, np.int64), "t", None, None)
    found = [ids.spread(np.ones((1, 3), np.float32)) for _ in range(20)]
    assert {rows.ctypes.data % 64 for rows in found} == {0}
