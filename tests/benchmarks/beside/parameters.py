"""The sizes of the work on closures and single parameters, and a server for peers without one.

A closure reads 16 MB and adds a thousandth of it, negated; or looks up rows and takes a thousandth
of each away: a step of SGD, in psnb by the server.
"""

from __future__ import annotations

import os

import numpy as np

AT_ONCE = 1000
"""Empty closures that are scheduled before one waits for them."""

FLOATS = 4_000_000
DENSE_MB = 2 * 4 * FLOATS / 1e6
"""Read and added, in a step."""

DENSE_STEPS = 8
ROWS, DIM, IDS = 1_000_000, 16, 26 * 512
ROW_STEPS = 40
RATE = 1e-3


def random_ids(rng: np.random.Generator) -> np.ndarray:
    """Return the ids of a step."""
    return rng.integers(ROWS, size=IDS)


class Server:
    """A parameter server in a few lines: an actor of Dask, or of Ray."""

    def __init__(self) -> None:
        self.values = np.zeros(FLOATS, np.float32)
        self.table = np.zeros((ROWS, DIM), np.float32)

    def pid(self) -> int:
        """Return the process that it is in."""
        return os.getpid()

    def read(self) -> np.ndarray:
        """Return the variable."""
        return self.values

    def add(self, change: np.ndarray) -> None:
        """Add to the variable."""
        self.values += change

    def lookup(self, ids: np.ndarray) -> np.ndarray:
        """Return rows."""
        return self.table[ids]

    def subtract(self, ids: np.ndarray, changes: np.ndarray) -> None:
        """Take changes away from rows; of an id that is there twice, both."""
        np.subtract.at(self.table, ids, changes)
