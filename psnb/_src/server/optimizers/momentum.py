"""SGD, Momentum and Lion: gradients, and their means. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from psnb._src.server import kernels
from psnb._src.server.optimizer import (
    Array,
    KernelOptimizer,
    Numbers,
    Scalar,
)
from psnb._src.server.schedules import LearningRate, refusal
from psnb._src.server.stored import again, narrow, noise, row_key, widen
from psnb._src.utils.foreign_names import explained_fields


@njit(cache=True, nogil=True)
def _sgd_rows(  # type: ignore[no-untyped-def]
    places, offsets, rows, ids, gradients, numbers, seeds, value, slot
):
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, names, own = rows[start:stop], ids[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, value)
        rate, decay = numbers[table, 0], numbers[table, 1]
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            kernels.ask_for_row(values, ahead)
            row = some[i]
            key = row_key(names[i], seeds[table])
            for j in range(values.shape[1]):
                old, bits = values[row, j], noise(key, j)
                weight = widen(old)
                weight -= rate * (own[i, j] + decay * weight)
                values[row, j] = narrow(weight, old, bits)


@explained_fields("Optimizer")
@dataclass(frozen=True)
class SGD(KernelOptimizer):
    """Plain stochastic gradient descent: ``w -= learning_rate * g``."""

    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        return rate, self.weight_decay

    def _run(self, *arguments: Array) -> None:
        _sgd_rows(*arguments)


@njit(cache=True, nogil=True)
def _momentum_rows(  # type: ignore[no-untyped-def]
    places, offsets, rows, ids, gradients, numbers, seeds, value, slot, nesterov
):
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, names, own = rows[start:stop], ids[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, value)
        velocity = kernels.at_place(places, table, kernels.SLOT, slot)
        rate, momentum = numbers[table, 0], numbers[table, 1]
        new, decay = numbers[table, 2], numbers[table, 3]
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            kernels.ask_for_row(values, ahead)
            kernels.ask_for_row(velocity, ahead)
            row = some[i]
            key = row_key(names[i], seeds[table])
            for j in range(values.shape[1]):
                old, before, bits = values[row, j], velocity[row, j], noise(key, j)
                weight = widen(old)
                gradient = own[i, j] + decay * weight
                moved = momentum * widen(before) + new * gradient
                velocity[row, j] = narrow(moved, before, again(bits))
                weight -= rate * (gradient + momentum * moved if nesterov else moved)
                values[row, j] = narrow(weight, old, bits)


@explained_fields("Optimizer")
@dataclass(frozen=True)
class Momentum(KernelOptimizer):
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

    slots = ("velocity",)
    squares = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dampening > 1 or (self.nesterov and self.dampening):
            raise refusal(self, "dampening", "1 at most, and 0 with nesterov=True")

    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        new = 1.0 - self.dampening if step else 1.0
        return rate, self.momentum, new, self.weight_decay

    def _run(self, *arguments: Array) -> None:
        _momentum_rows(*(*arguments, self.nesterov))


@njit(cache=True, nogil=True)
def _lion_rows(  # type: ignore[no-untyped-def]
    places, offsets, rows, ids, gradients, numbers, seeds, value, slot
):
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, names, own = rows[start:stop], ids[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, value)
        mean = kernels.at_place(places, table, kernels.SLOT, slot)
        rate, shrink = numbers[table, 0], numbers[table, 1]
        step_kept, step_new = numbers[table, 2], numbers[table, 3]
        mean_kept, mean_new = numbers[table, 4], numbers[table, 5]
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            kernels.ask_for_row(values, ahead)
            kernels.ask_for_row(mean, ahead)
            row = some[i]
            key = row_key(names[i], seeds[table])
            for j in range(values.shape[1]):
                old, before, bits = values[row, j], mean[row, j], noise(key, j)
                weight, known = widen(old), widen(before)
                sign = np.sign(step_kept * known + step_new * own[i, j])
                known = mean_kept * known + mean_new * own[i, j]
                mean[row, j] = narrow(known, before, again(bits))
                weight -= rate * sign + shrink * weight
                values[row, j] = narrow(weight, old, bits)


@explained_fields("Optimizer")
@dataclass(frozen=True)
class Lion(KernelOptimizer):
    """Lion (Chen et al., *Symbolic Discovery of Optimization Algorithms*, NeurIPS 2023).

    ``w -= learning_rate * (sign(beta_1 * m + (1 - beta_1) * g) + weight_decay * w);`` ``m = beta_2
    * m + (1 - beta_2) * g``. Each number moves by the learning rate, however small its gradient is,
    so rates are a third to a tenth of Adam's, and decays as many times larger. One array of state
    where Adam has two.

    Parameters
    ----------
    learning_rate : float or callable
        Step size.
    beta_1, beta_2 : float
        How much of the mean of gradients counts in a step, and how much of it stays; below 1.

    Examples
    --------
    >>> import numpy as np
    >>> import psnb
    >>> optimizer = psnb.Lion(0.5, beta_2=0.75)
    >>> w, mean = np.zeros((1, 2)), np.zeros((1, 2))
    >>> optimizer.apply(w, {"mean_gradient": mean}, np.array([0]), np.array([[4.0, -0.1]]), 0)
    >>> w.tolist(), mean.tolist()
    ([[-0.5, 0.5]], [[1.0, -0.025]])
    """

    learning_rate: LearningRate = 0.0001
    beta_1: float = 0.9
    beta_2: float = 0.99

    slots = ("mean_gradient",)
    squares = False

    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        kept_and_new = self.beta_1, 1.0 - self.beta_1, self.beta_2, 1.0 - self.beta_2
        return rate, rate * self.weight_decay, *kept_and_new

    def _run(self, *arguments: Array) -> None:
        _lion_rows(*arguments)
