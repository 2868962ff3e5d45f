"""RMSProp, plain, centered and with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit

from psnb._src.server import prefetching
from psnb._src.server.optimizers.hyperparameters import require_flag, require_number
from psnb._src.server.optimizers.optimizer import Optimizer, epsilons
from psnb._src.server.optimizers.schedules import LearningRate


# numpy's error model: see Adagrad.
@njit(cache=True, nogil=True, error_model="numpy")
def _rmsprop_rows(  # type: ignore[no-untyped-def]
    values,
    square,
    mean,
    velocity,
    rows,
    gradients,
    rate,
    kept,
    new,
    momentum,
    inside,
    outside,
    decay,
    centered,
    moving,
):
    for i in range(rows.size):
        ahead = rows[min(i + prefetching.AHEAD, rows.size - 1)]
        for line in range(prefetching.lines(values)):
            prefetching.ask_for(values, ahead, line)
            prefetching.ask_for(square, ahead, line)
            prefetching.ask_for(mean, ahead, line)
            prefetching.ask_for(velocity, ahead, line)
        row = rows[i]
        for j in range(values.shape[1]):
            gradient = gradients[i, j] + decay * values[row, j]
            variance = kept * square[row, j] + new * gradient * gradient
            square[row, j] = variance
            if centered:
                average = kept * mean[row, j] + new * gradient
                mean[row, j] = average
                # Rounding may make a tiny variance negative.
                variance = max(variance - average * average, kept * 0)
            step = rate * gradient / (np.sqrt(variance + inside) + outside)
            if moving:
                step += momentum * velocity[row, j]
                velocity[row, j] = step
            values[row, j] -= step


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """RMSProp (Tieleman, Hinton, 2012; centered: Graves, 2013), as in TensorFlow and Paddle.

    ``s = rho * s + (1 - rho) * g * g; v = momentum * v + learning_rate * g / sqrt(s + epsilon);``
    ``w -= v``. Centered, the square of the mean gradient is taken from ``s`` in the root. The
    velocity has the learning rate of its time in it, PyTorch's and optax's the present one: the
    same as long as the learning rate is.

    Parameters
    ----------
    learning_rate : float or callable
        Step size.
    rho : float
        How much of the mean of squares stays; below 1.
    momentum : float
        How much of the velocity stays; below 1. Without it no velocity is kept.
    epsilon : float
        Keeps the division defined; above 0.
    centered : bool
        Divide by the deviation of the gradients instead of their root mean square.
    epsilon_in_root : bool
        If not, divide by ``sqrt(s) + epsilon``, as PyTorch does.

    Examples
    --------
    >>> import numpy as np
    >>> import psnb
    >>> optimizer = psnb.RMSProp(1.0, rho=0.75, epsilon=0.5, epsilon_in_root=False)
    >>> w, square = np.zeros((1, 1)), np.zeros((1, 1))
    >>> optimizer.apply(w, {"mean_square": square}, np.array([0]), np.ones((1, 1)), 0)
    >>> w.item()  # -1 / (sqrt(0.25) + 0.5)
    -1.0
    """

    learning_rate: LearningRate = 0.001
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False
    epsilon_in_root: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(self, "rho", below=1)
        require_number(self, "momentum", below=1)
        require_number(self, "epsilon", positive=True)
        require_flag(self, "centered")
        require_flag(self, "epsilon_in_root")

    @property
    def slots(self) -> tuple[str, ...]:
        mean = ("mean_gradient",) if self.centered else ()
        velocity = ("velocity",) if self.momentum else ()
        return ("mean_square", *mean, *velocity)

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
        unused = np.empty((0, 0), values.dtype)
        _rmsprop_rows(
            values,
            slots["mean_square"],
            slots.get("mean_gradient", unused),
            slots.get("velocity", unused),
            rows,
            gradients,
            scalar(rate),
            scalar(self.rho),
            scalar(1.0 - self.rho),
            scalar(self.momentum),
            *epsilons(self.epsilon, scalar, in_root=self.epsilon_in_root),
            scalar(self.weight_decay),
            self.centered,
            self.momentum > 0,
        )
