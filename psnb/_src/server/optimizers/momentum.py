"""Gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit

from psnb._src.server import prefetching
from psnb._src.server.optimizers.hyperparameters import require_flag, require_number
from psnb._src.server.optimizers.optimizer import Optimizer


@njit(cache=True, nogil=True)
def _momentum_rows(values, velocity, rows, gradients, rate, momentum, nesterov, decay):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        ahead = rows[min(i + prefetching.AHEAD, rows.size - 1)]
        for line in range(prefetching.lines(values)):
            prefetching.ask_for(values, ahead, line)
            prefetching.ask_for(velocity, ahead, line)
        row = rows[i]
        for j in range(values.shape[1]):
            gradient = gradients[i, j] + decay * values[row, j]
            moved = momentum * velocity[row, j] + gradient
            velocity[row, j] = moved
            values[row, j] -= rate * (gradient + momentum * moved if nesterov else moved)


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Gradient descent with momentum (Polyak, 1964; Sutskever et al., ICML 2013, for Nesterov's).

    ``v = momentum * v + g; w -= learning_rate * v``, with ``nesterov``
    ``w -= learning_rate * (g + momentum * v)``, as in PyTorch, Paddle and optax. (Keras keeps
    ``learning_rate * v``: the same as long as the learning rate is.)

    Parameters
    ----------
    learning_rate : float or callable
        Step size.
    momentum : float
        How much of the velocity stays; below 1.
    nesterov : bool
        Look a step ahead.
    """

    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(self, "momentum", below=1)
        require_flag(self, "nesterov")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",)

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
        _momentum_rows(
            values,
            slots["velocity"],
            rows,
            gradients,
            scalar(rate),
            scalar(self.momentum),
            self.nesterov,
            scalar(self.weight_decay),
        )
