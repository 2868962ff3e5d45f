"""Gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit

from psnb._src.server import prefetching
from psnb._src.server.optimizers.hyperparameters import refusal, require_flag, require_number
from psnb._src.server.optimizers.optimizer import Optimizer


@njit(cache=True, nogil=True)
def _momentum_rows(  # type: ignore[no-untyped-def]
    values, velocity, rows, gradients, rate, momentum, new, nesterov, decay
):
    for i in range(rows.size):
        ahead = rows[min(i + prefetching.AHEAD, rows.size - 1)]
        for line in range(prefetching.lines(values)):
            prefetching.ask_for(values, ahead, line)
            prefetching.ask_for(velocity, ahead, line)
        row = rows[i]
        for j in range(values.shape[1]):
            gradient = gradients[i, j] + decay * values[row, j]
            moved = momentum * velocity[row, j] + new * gradient
            velocity[row, j] = moved
            values[row, j] -= rate * (gradient + momentum * moved if nesterov else moved)


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Gradient descent with momentum (Polyak, 1964; Sutskever et al., ICML 2013, for Nesterov's).

    ``v = momentum * v + (1 - dampening) * g; w -= learning_rate * v``, with ``nesterov``
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
    dampening : float
        How much of a gradient is left out of the velocity, 1 at most; as in PyTorch, not in the
        first update of a table, and not with ``nesterov``.

    Examples
    --------
    >>> import numpy as np
    >>> import psnb
    >>> optimizer = psnb.Momentum(1.0, momentum=0.5, dampening=0.5)
    >>> w, velocity = np.zeros((1, 1)), np.zeros((1, 1))
    >>> for step in range(2):  # as a server does
    ...     optimizer.apply(w, {"velocity": velocity}, np.array([0]), np.ones((1, 1)), step)
    >>> w.item()  # -1, then -(0.5 * 1 + 0.5 * 1)
    -2.0
    """

    momentum: float = 0.9
    nesterov: bool = False
    dampening: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(self, "momentum", below=1)
        require_flag(self, "nesterov")
        require_number(self, "dampening")
        if self.dampening > 1 or (self.nesterov and self.dampening):
            raise refusal(self, "dampening", "1 at most, and 0 with nesterov=True")

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
            scalar(1.0 - self.dampening if step else 1.0),
            self.nesterov,
            scalar(self.weight_decay),
        )
