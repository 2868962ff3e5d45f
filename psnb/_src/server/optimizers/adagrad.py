"""Adagrad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit

from psnb._src.server import prefetching
from psnb._src.server.optimizers.hyperparameters import require_number
from psnb._src.server.optimizers.optimizer import Optimizer, above_zero


# numpy's error model: the inner loop does not check for a division by zero, and so runs three times
# as fast; the optimizer makes sure that there is none.
@njit(cache=True, nogil=True, error_model="numpy")
def _adagrad_rows(values, accumulator, rows, gradients, rate, epsilon, decay):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        ahead = rows[min(i + prefetching.AHEAD, rows.size - 1)]
        for line in range(prefetching.lines(values)):
            prefetching.ask_for(values, ahead, line)
            prefetching.ask_for(accumulator, ahead, line)
        row = rows[i]
        for j in range(values.shape[1]):
            gradient = gradients[i, j] + decay * values[row, j]
            accumulator[row, j] += gradient * gradient
            values[row, j] -= rate * gradient / (np.sqrt(accumulator[row, j]) + epsilon)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi, Hazan, Singer, JMLR 12, 2011), with TensorFlow's initial accumulator.

    ``a += g * g; w -= learning_rate * g / (sqrt(a) + epsilon)``

    Parameters
    ----------
    learning_rate : float or callable
        Step size.
    initial_accumulator_value : float
        Where every accumulator starts; above 0 damps the first steps.
    epsilon : float
        Keeps the division defined; above 0.
    """

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(self, "initial_accumulator_value")
        require_number(self, "epsilon", positive=True)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("accumulator",)

    def initial_slot(self, name: str) -> float:
        return self.initial_accumulator_value

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
        _adagrad_rows(
            values,
            slots["accumulator"],
            rows,
            gradients,
            scalar(rate),
            above_zero(self.epsilon, scalar),
            scalar(self.weight_decay),
        )
