"""Adagrad, by number and by row, and FTRL: sums of squared gradients. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

from psnb._src.server import kernels
from psnb._src.server.optimizer import (
    Array,
    KernelOptimizer,
    Numbers,
    Scalar,
    epsilons,
)
from psnb._src.server.schedules import LearningRate, Schedule, refusal, require_number
from psnb._src.server.stored import again, narrow, noise, row_key, widen
from psnb._src.utils.foreign_names import explained_fields


# numpy's error model: the inner loop does not check for a division by zero, and so runs three times
# as fast; the optimizer makes sure that there is none.
@njit(cache=True, nogil=True, error_model="numpy")
def _adagrad_rows(  # type: ignore[no-untyped-def]
    places, offsets, rows, ids, gradients, numbers, seeds, value, slot
):
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, names, own = rows[start:stop], ids[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, value)
        accumulator = kernels.at_place(places, table, kernels.SLOT, slot)
        rate, decay = numbers[table, 0], numbers[table, 1]
        inside, outside = numbers[table, 2], numbers[table, 3]
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            kernels.ask_for_row(values, ahead)
            kernels.ask_for_row(accumulator, ahead)
            row = some[i]
            key = row_key(names[i], seeds[table])
            for j in range(values.shape[1]):
                old, before, bits = values[row, j], accumulator[row, j], noise(key, j)
                weight = widen(old)
                gradient = own[i, j] + decay * weight
                squares = widen(before) + gradient * gradient
                accumulator[row, j] = narrow(squares, before, again(bits))
                weight -= rate * gradient / (np.sqrt(squares + inside) + outside)
                values[row, j] = narrow(weight, old, bits)


@explained_fields("Optimizer")
@dataclass(frozen=True)
class Adagrad(KernelOptimizer):
    """Adagrad (Duchi, Hazan, Singer, JMLR 12, 2011).

    ``a += g * g; w -= learning_rate / (1 + learning_rate_decay * t) * g / (sqrt(a) + epsilon)``,
    where ``t`` counts the table's updates from 0. Accumulators start at 0, as PyTorch's and
    Paddle's: the first steps are as long as the learning rate, however small the gradients are.
    TensorFlow, Keras and optax start them at 0.1: ``initial_accumulator_value=0.1`` takes the same
    steps, which are much smaller where a loss is a mean.

    Parameters
    ----------
    learning_rate : float or callable
        Step size.
    initial_accumulator_value : float
        Where every accumulator starts; above 0 damps the first steps.
    epsilon : float
        Keeps the division defined; above 0. PyTorch's is 1e-10.
    learning_rate_decay : float
        PyTorch's ``lr_decay``.
    epsilon_in_root : bool
        Divide by ``sqrt(a + epsilon)``, as Keras and optax do.

    Examples
    --------
    >>> import numpy as np
    >>> import psnb
    >>> optimizer = psnb.Adagrad(1.0, epsilon=1e-10, learning_rate_decay=0.5)
    >>> w, accumulator = np.zeros((1, 1)), np.zeros((1, 1))
    >>> for step in range(2):  # as a server does
    ...     optimizer.apply(w, {"accumulator": accumulator}, np.array([0]), np.ones((1, 1)), step)
    >>> round(w.item(), 6)  # -1, then -1 / (1 + 0.5) / sqrt(2)
    -1.471405
    """

    initial_accumulator_value: float = 0.0
    epsilon: float = 1e-7
    learning_rate_decay: float = 0.0
    epsilon_in_root: bool = False

    slots = ("accumulator",)

    def initial_slot(self, name: str) -> float:
        return self.initial_accumulator_value

    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        rate /= 1.0 + self.learning_rate_decay * step
        return rate, self.weight_decay, *epsilons(self, scalar)

    def _run(self, *arguments: Array) -> None:
        _adagrad_rows(*arguments)


# Sums may be taken in any order, or these loops take four times as long. Each is by itself, and
# gets whole arrays: so it becomes a part of its caller, and no view of a row is made.
@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _sum_of_squares(gradients, i):  # type: ignore[no-untyped-def]
    total = gradients.dtype.type(0)
    for j in range(gradients.shape[1]):
        total += gradients[i, j] * gradients[i, j]
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _sum_of_decayed(gradients, i, values, row, decay):  # type: ignore[no-untyped-def]
    total = gradients.dtype.type(0)
    for j in range(gradients.shape[1]):
        number = gradients[i, j] + decay * widen(values[row, j])
        total += number * number
    return total


# numpy's error model: see Adagrad.
@njit(cache=True, nogil=True, error_model="numpy")
def _row_wise_adagrad_rows(  # type: ignore[no-untyped-def]
    places, offsets, rows, ids, gradients, numbers, seeds, value, slot
):
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, names, own = rows[start:stop], ids[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, value)
        accumulator = kernels.at_place(places, table, kernels.SLOT, slot)
        rate, decay = numbers[table, 0], numbers[table, 1]
        inside, outside = numbers[table, 2], numbers[table, 3]
        share = numbers.dtype.type(1.0 / values.shape[1])
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            kernels.ask_for_row(values, ahead)
            kernels.ask_for_row(accumulator, ahead)
            row = some[i]
            key = row_key(names[i], seeds[table])
            if decay == 0:  # mostly; then the row is not needed yet
                squares = _sum_of_squares(own, i)
            else:
                squares = _sum_of_decayed(own, i, values, row, decay)
            before = accumulator[row, 0]
            total = widen(before) + squares * share
            accumulator[row, 0] = narrow(total, before, again(noise(key, 0)))
            rate_now = rate / (np.sqrt(total + inside) + outside)
            for j in range(values.shape[1]):
                old = values[row, j]
                weight = widen(old)
                weight -= rate_now * (own[i, j] + decay * weight)
                values[row, j] = narrow(weight, old, noise(key, j))


@explained_fields("Optimizer")
@dataclass(frozen=True)
class RowWiseAdagrad(KernelOptimizer):
    """Adagrad with one accumulator a row, for embeddings (DLRM, Naumov et al., 2019; FBGEMM).

    ``a += mean(g * g); w -= learning_rate * g / (sqrt(a) + epsilon)``, where the mean is taken over
    the row. A row of 32 numbers takes 4 bytes of state where `Adagrad` takes 128, at about the same
    quality in recommenders. As ``EXACT_ROWWISE_ADAGRAD`` of FBGEMM and ``RowWiseAdagrad`` of
    TorchRec. Variables have no rows: they need another optimizer.

    Parameters
    ----------
    learning_rate : float or callable
        Step size.
    initial_accumulator_value : float
        Where every accumulator starts; above 0 damps the first steps.
    epsilon : float
        Keeps the division defined; above 0.
    epsilon_in_root : bool
        Divide by ``sqrt(a + epsilon)``.

    Examples
    --------
    >>> import numpy as np
    >>> import psnb
    >>> optimizer = psnb.RowWiseAdagrad(1.0, epsilon=1e-10)
    >>> w, accumulator = np.zeros((1, 2)), np.zeros((1, 1))
    >>> gradient = np.array([[3.0, 1.0]])
    >>> optimizer.apply(w, {"accumulator": accumulator}, np.array([0]), gradient, 0)
    >>> accumulator.item(), w.round(4).tolist()  # the root of 5 is 2.2361
    (5.0, [[-1.3416, -0.4472]])
    """

    initial_accumulator_value: float = 0.0
    epsilon: float = 1e-8
    epsilon_in_root: bool = False

    slots = ("accumulator",)
    row_wise = frozenset({"accumulator"})

    def initial_slot(self, name: str) -> float:
        return self.initial_accumulator_value

    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        return rate, self.weight_decay, *epsilons(self, scalar)

    def _run(self, *arguments: Array) -> None:
        _row_wise_adagrad_rows(*arguments)


# numpy's error model: see Adagrad.
@njit(cache=True, nogil=True, error_model="numpy")
def _ftrl_rows(  # type: ignore[no-untyped-def]
    places, offsets, rows, ids, gradients, numbers, seeds, value, slot, half
):
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, names, own = rows[start:stop], ids[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, value)
        accumulator = kernels.at_place(places, table, kernels.SLOT, slot)
        linear = kernels.at_place(places, table, kernels.SLOT + 1, slot)
        inverse_rate, l1, pull = numbers[table, 0], numbers[table, 1], numbers[table, 2]
        power, decay = numbers[table, 3], numbers[table, 4]
        zero = l1 * 0
        if inverse_rate < zero:  # it would be infinite: nothing changes
            continue
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            kernels.ask_for_row(values, ahead)
            kernels.ask_for_row(accumulator, ahead)
            kernels.ask_for_row(linear, ahead)
            row = some[i]
            key = row_key(names[i], seeds[table])
            for j in range(values.shape[1]):
                old, bits = values[row, j], noise(key, j)
                code, code_linear = accumulator[row, j], linear[row, j]
                weight, before = widen(old), widen(code)
                gradient = own[i, j] + decay * weight
                after = before + gradient * gradient
                more = again(bits)
                accumulator[row, j] = narrow(after, code, more)
                if half:  # the usual case: a square root is many times as fast as a power
                    low, high = np.sqrt(before), np.sqrt(after)
                else:
                    low, high = before**power, after**power
                z = widen(code_linear) + gradient - (high - low) * inverse_rate * weight
                linear[row, j] = narrow(z, code_linear, again(more))
                strength = high * inverse_rate + pull
                clipped = min(max(z, -l1), l1)
                # No strength: no gradient so far had a square above 0, so there is nothing to
                # divide by.
                weight = (clipped - z) / strength if strength > zero else zero
                values[row, j] = narrow(weight, old, bits)


@explained_fields("Optimizer")
@dataclass(frozen=True)
class FTRL(KernelOptimizer):
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

    slots = ("accumulator", "linear")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.learning_rate, Schedule):
            require_number(self, "learning_rate", positive=True)
        try:
            good = math.isfinite(self.learning_rate_power) and self.learning_rate_power <= 0
        except (TypeError, OverflowError):
            good = False
        if not good:
            raise refusal(self, "learning_rate_power", "a number, finite and not above 0")
        object.__setattr__(self, "learning_rate_power", float(self.learning_rate_power))

    def initial_slot(self, name: str) -> float:
        return self.initial_accumulator_value if name == "accumulator" else 0.0

    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        moves = rate > 4 * np.finfo(scalar).tiny
        pull = self.beta / rate + 2.0 * self.l2 if moves else 0.0
        inverse = 1.0 / rate if moves else -1.0
        return inverse, self.l1, pull, -self.learning_rate_power, self.weight_decay

    def _run(self, *arguments: Array) -> None:
        _ftrl_rows(*(*arguments, self.learning_rate_power == -0.5))
