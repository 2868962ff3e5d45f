"""FTRL-Proximal, for sparse linear models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit

from psnb._src.server import prefetching
from psnb._src.server.optimizers.hyperparameters import refusal, require_number
from psnb._src.server.optimizers.optimizer import Optimizer
from psnb._src.server.optimizers.schedules import LearningRate, Schedule


# numpy's error model: see Adagrad.
@njit(cache=True, nogil=True, error_model="numpy")
def _ftrl_rows(  # type: ignore[no-untyped-def]
    values, accumulator, linear, rows, gradients, inverse_rate, l1, pull, half, power, decay
):
    zero = l1 * 0
    for i in range(rows.size):
        ahead = rows[min(i + prefetching.AHEAD, rows.size - 1)]
        for line in range(prefetching.lines(values)):
            prefetching.ask_for(values, ahead, line)
            prefetching.ask_for(accumulator, ahead, line)
            prefetching.ask_for(linear, ahead, line)
        row = rows[i]
        for j in range(values.shape[1]):
            gradient = gradients[i, j] + decay * values[row, j]
            before = accumulator[row, j]
            after = before + gradient * gradient
            accumulator[row, j] = after
            if half:  # the usual case: a square root is many times as fast as a power
                low, high = np.sqrt(before), np.sqrt(after)
            else:
                low, high = before**power, after**power
            z = linear[row, j] + gradient - (high - low) * inverse_rate * values[row, j]
            linear[row, j] = z
            strength = high * inverse_rate + pull
            clipped = min(max(z, -l1), l1)
            # No strength: no gradient so far had a square above 0, so there is nothing to divide
            # by.
            values[row, j] = (clipped - z) / strength if strength > zero else zero


@dataclass(frozen=True)
class FTRL(Optimizer):
    """FTRL-Proximal (McMahan et al., *Ad Click Prediction: a View from the Trenches*, KDD 2013).

    ``n' = n + g * g; z += g - (n' ** p - n ** p) / learning_rate * w;``
    ``w = -sign(z) * max(|z| - l1, 0) / ((beta + n' ** p) / learning_rate + 2 * l2)``, where ``p``
    is ``-learning_rate_power``: the paper's algorithm with TensorFlow's ``2 * l2`` where it has
    ``l2``. Weights that gradients do not move by more than ``l1`` are exactly 0.

    ``z`` starts with 0, as in TensorFlow, so a weight's initial value all but vanishes with its
    first update: start with zeros.

    Parameters
    ----------
    learning_rate : float or callable
        Step size (the paper's alpha); above 0. A step whose schedule says 0 changes nothing.
    learning_rate_power : float
        -0.5 makes steps smaller as Adagrad does, 0 leaves them; 0 or below.
    initial_accumulator_value : float
        Where ``n`` starts; the paper has 0.
    l1, l2 : float
        Regularization.
    beta : float
        Damps the first steps; the paper has 1.
    """

    learning_rate: LearningRate = 0.001
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.learning_rate, Schedule):
            require_number(self, "learning_rate", positive=True)
        for name in ("initial_accumulator_value", "l1", "l2", "beta"):
            require_number(self, name)
        try:
            good = math.isfinite(self.learning_rate_power) and self.learning_rate_power <= 0
        except (TypeError, OverflowError):
            good = False
        if not good:
            raise refusal(self, "learning_rate_power", "a number, finite and not above 0")
        object.__setattr__(self, "learning_rate_power", float(self.learning_rate_power))

    @property
    def slots(self) -> tuple[str, ...]:
        return ("accumulator", "linear")

    def initial_slot(self, name: str) -> float:
        return self.initial_accumulator_value if name == "accumulator" else 0.0

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
        if rate <= 4 * np.finfo(scalar).tiny:  # its inverse would be infinite
            return
        _ftrl_rows(
            values,
            slots["accumulator"],
            slots["linear"],
            rows,
            gradients,
            scalar(1.0 / rate),
            scalar(self.l1),
            scalar(self.beta / rate + 2.0 * self.l2),
            self.learning_rate_power == -0.5,
            scalar(-self.learning_rate_power),
            scalar(self.weight_decay),
        )
