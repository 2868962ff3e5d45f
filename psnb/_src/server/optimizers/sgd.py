"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit

from psnb._src.server import prefetching
from psnb._src.server.optimizers.optimizer import Optimizer


@njit(cache=True, nogil=True)
def _sgd_rows(values, rows, gradients, rate, decay):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        ahead = rows[min(i + prefetching.AHEAD, rows.size - 1)]
        for line in range(prefetching.lines(values)):
            prefetching.ask_for(values, ahead, line)
        row = rows[i]
        for j in range(values.shape[1]):
            values[row, j] -= rate * (gradients[i, j] + decay * values[row, j])


@dataclass(frozen=True)
class SGD(Optimizer):
    """Plain stochastic gradient descent: ``w -= learning_rate * g``."""

    def _update(
        self,
        values: np.ndarray,
        slots: Mapping[str, np.ndarray],
        rows: np.ndarray,
        gradients: np.ndarray,
        rate: float,
        step: int,
    ) -> None:
        scalar = values.dtype.type
        _sgd_rows(values, rows, gradients, scalar(rate), scalar(self.weight_decay))
