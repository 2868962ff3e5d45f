"""The rows that datasets in memory are measured on: as of a click log."""

from __future__ import annotations

import numpy as np

COUNT, BATCH, BUFFER, REPETITIONS = 100_000, 512, 10_000, 5


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return 26 int32, 13 float32 and a label a row."""
    numbers = np.random.default_rng(0)
    return (
        numbers.integers(0, 1 << 20, (COUNT, 26), np.int32),
        numbers.random((COUNT, 13), np.float32),
        numbers.integers(0, 2, COUNT).astype(np.float32),
    )
