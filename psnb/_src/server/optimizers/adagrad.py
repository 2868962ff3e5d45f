"""Adagrad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit

from psnb._src.server import prefetching
from psnb._src.server.optimizers.hyperparameters import require_flag, require_number
from psnb._src.server.optimizers.optimizer import Optimizer, epsilons


# numpy's error model: the inner loop does not check for a division by zero, and so runs three times
# as fast; the optimizer makes sure that there is none.
@njit(cache=True, nogil=True, error_model="numpy")
def _adagrad_rows(  # type: ignore[no-untyped-def]
    values, accumulator, rows, gradients, rate, inside, outside, decay
):
    for i in range(rows.size):
        ahead = rows[min(i + prefetching.AHEAD, rows.size - 1)]
        for line in range(prefetching.lines(values)):
            prefetching.ask_for(values, ahead, line)
            prefetching.ask_for(accumulator, ahead, line)
        row = rows[i]
        for j in range(values.shape[1]):
            gradient = gradients[i, j] + decay * values[row, j]
            accumulator[row, j] += gradient * gradient
            root = np.sqrt(accumulator[row, j] + inside) + outside
            values[row, j] -= rate * gradient / root


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi, Hazan, Singer, JMLR 12, 2011), with TensorFlow's initial accumulator.

    ``a += g * g; w -= learning_rate / (1 + learning_rate_decay * t) * g / (sqrt(a) + epsilon)``,
    where ``t`` counts the table's updates from 0. PyTorch starts accumulators at 0, so its first
    steps are as long as the learning rate: ``initial_accumulator_value=0, epsilon=1e-10``.

    Parameters
    ----------
    learning_rate : float or callable
        Step size.
    initial_accumulator_value : float
        Where every accumulator starts; above 0 damps the first steps.
    epsilon : float
        Keeps the division defined; above 0.
    learning_rate_decay : float
        PyTorch's ``lr_decay``.
    epsilon_in_root : bool
        Divide by ``sqrt(a + epsilon)``, as Keras and optax do.

    Examples
    --------
    >>> import numpy as np
    >>> import psnb
    >>> optimizer = psnb.Adagrad(1.0, 0.0, 1e-10, learning_rate_decay=0.5)
    >>> w, accumulator = np.zeros((1, 1)), np.zeros((1, 1))
    >>> for step in range(2):  # as a server does
    ...     optimizer.apply(w, {"accumulator": accumulator}, np.array([0]), np.ones((1, 1)), step)
    >>> round(w.item(), 6)  # -1, then -1 / (1 + 0.5) / sqrt(2)
    -1.471405
    """

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7
    learning_rate_decay: float = 0.0
    epsilon_in_root: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(self, "initial_accumulator_value")
        require_number(self, "epsilon", positive=True)
        require_number(self, "learning_rate_decay")
        require_flag(self, "epsilon_in_root")

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
            scalar(rate / (1.0 + self.learning_rate_decay * step)),
            *epsilons(self.epsilon, scalar, in_root=self.epsilon_in_root),
            scalar(self.weight_decay),
        )
