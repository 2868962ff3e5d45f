"""Where lines end."""

from __future__ import annotations

import numpy as np
import pytest

from psnb._src.data.formats.text import cut_lines


@pytest.mark.parametrize("size", [0, 1, 8, 31, 32, 33, 64, 96])
def test_what_lies_behind_the_data_is_not_read(size: int) -> None:
    everything = np.full(size + 8, ord("\n"), np.uint8)
    everything[:size] = ord("x")
    starts, ends = np.empty((2, 4), np.int64)
    assert cut_lines(everything[:size], 1 << 40, starts, ends) == (0, 0)
