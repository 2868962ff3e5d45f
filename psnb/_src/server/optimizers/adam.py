"""Adam and RMSProp: means of squared gradients. Pure."""

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
    above_zero,
    epsilons,
)
from psnb._src.server.schedules import LearningRate
from psnb._src.server.stored import again, narrow, noise, row_key, widen
from psnb._src.utils.foreign_names import explained_fields


# numpy's error model: see Adagrad.
@njit(cache=True, nogil=True, error_model="numpy")
def _adam_rows(  # type: ignore[no-untyped-def]
    places, offsets, rows, ids, gradients, numbers, seeds, value, slot, amsgrad
):
    # `amsgrad` is True or None: numba compiles a loop for each, so the usual one has no test.
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, names, own = rows[start:stop], ids[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, value)
        first = kernels.at_place(places, table, kernels.SLOT, slot)
        second = kernels.at_place(places, table, kernels.SLOT + 1, slot)
        highest = second
        if amsgrad is not None:
            highest = kernels.at_place(places, table, kernels.SLOT + 2, slot)
        rate, root_correction, decay = numbers[table, 0], numbers[table, 5], numbers[table, 6]
        first_kept, first_new = numbers[table, 1], numbers[table, 2]
        second_kept, second_new = numbers[table, 3], numbers[table, 4]
        shrink, epsilon = numbers[table, 7], numbers[table, 8]
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            kernels.ask_for_row(values, ahead)
            kernels.ask_for_row(first, ahead)
            kernels.ask_for_row(second, ahead)
            if amsgrad is not None:
                kernels.ask_for_row(highest, ahead)
            row = some[i]
            key = row_key(names[i], seeds[table])
            for j in range(values.shape[1]):
                old, bits = values[row, j], noise(key, j)
                before, before_second = first[row, j], second[row, j]
                weight = widen(old)
                gradient = own[i, j] + decay * weight
                mean = first_kept * widen(before) + first_new * gradient
                square = second_kept * widen(before_second) + second_new * gradient * gradient
                more = again(bits)
                first[row, j] = narrow(mean, before, more)
                more = again(more)
                second[row, j] = narrow(square, before_second, more)
                if amsgrad is not None:
                    most = highest[row, j]
                    square = max(square, widen(most))
                    highest[row, j] = narrow(square, most, more)
                step = rate * mean / (np.sqrt(square) * root_correction + epsilon)
                weight -= step + shrink * weight
                values[row, j] = narrow(weight, old, bits)


@explained_fields("Optimizer")
@dataclass(frozen=True)
class Adam(KernelOptimizer):
    """Adam (Kingma, Ba, ICLR 2015); with ``weight_decay`` AdamW (Loshchilov, Hutter, ICLR 2019).

    With ``amsgrad`` AMSGrad (Reddi, Kale, Kumar, ICLR 2018).

    ``m = beta_1 * m + (1 - beta_1) * g; v = beta_2 * v + (1 - beta_2) * g * g;`` ``w -=
    learning_rate * (m̂ / (sqrt(v̂) + epsilon) + weight_decay * w)``, where the hats divide by ``1 -
    beta ** t`` and ``t`` is the table's count of updates, including this one. It is not the row's
    count, so the first step of a row that is seen late is smaller than in a table of its own.
    AMSGrad has the largest ``v`` so far in place of ``v``.

    Parameters
    ----------
    learning_rate : float or callable
        Step size.
    beta_1, beta_2 : float
        How much of the means of gradients and of their squares stays; below 1.
    epsilon : float
        Keeps the division defined; above 0.
    epsilon_hat : bool
        Add epsilon to ``sqrt(v)``, not to ``sqrt(v̂)``: the paper's faster form (before its section
        2.1), as in TensorFlow, Keras and ``torch.optim.SparseAdam``. The first steps of small
        gradients are smaller then.
    decoupled : bool
        If not, ``weight_decay * w`` is added to the gradient (L2), as in ``torch.optim.Adam``.
    amsgrad : bool
        Never let a step grow since its ``v`` has become smaller; takes one more array.

    Examples
    --------
    >>> import numpy as np
    >>> import psnb
    >>> optimizer = psnb.Adam(0.5, weight_decay=0.1, decoupled=False)
    >>> w, m, v = np.ones((1, 1)), np.zeros((1, 1)), np.zeros((1, 1))
    >>> slots = {"first_moment": m, "second_moment": v}
    >>> optimizer.apply(w, slots, np.array([0]), np.ones((1, 1)), 0)
    >>> round(w.item(), 6), round(m.item(), 6)  # the step is 0.5, whatever the gradient is
    (0.5, 0.11)
    """

    learning_rate: LearningRate = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    epsilon_hat: bool = False
    decoupled: bool = True
    amsgrad: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        highest = ("highest_second_moment",) if self.amsgrad else ()
        return ("first_moment", "second_moment", *highest)

    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        decay = self.weight_decay
        # In double precision: 1 - 0.999 ** t would lose four of float32's seven digits.
        rate_now = rate / (1.0 - self.beta_1 ** (step + 1))
        root_correction = (1.0 - self.beta_2 ** (step + 1)) ** -0.5
        kept_and_new = self.beta_1, 1.0 - self.beta_1, self.beta_2, 1.0 - self.beta_2
        decays = (0.0, rate * decay) if self.decoupled else (decay, 0.0)
        epsilon = self.epsilon * (root_correction if self.epsilon_hat else 1.0)
        last = *decays, above_zero(epsilon, scalar)
        return rate_now, *kept_and_new, root_correction, *last

    def _run(self, *arguments: Array) -> None:
        _adam_rows(*(*arguments, self.amsgrad or None))


# numpy's error model: see Adagrad.
@njit(cache=True, nogil=True, error_model="numpy")
def _rmsprop_rows(  # type: ignore[no-untyped-def]
    places, offsets, rows, ids, gradients, numbers, seeds, value, slot, centered, moving
):
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, names, own = rows[start:stop], ids[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, value)
        square = kernels.at_place(places, table, kernels.SLOT, slot)
        mean = kernels.at_place(places, table, kernels.SLOT + 1 if centered else 0, slot)
        at = kernels.SLOT + (2 if centered else 1)
        velocity = kernels.at_place(places, table, at if moving else 0, slot)
        rate, kept, new = numbers[table, 0], numbers[table, 1], numbers[table, 2]
        momentum, decay = numbers[table, 3], numbers[table, 4]
        inside, outside = numbers[table, 5], numbers[table, 6]
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            kernels.ask_for_row(values, ahead)
            kernels.ask_for_row(square, ahead)
            kernels.ask_for_row(mean, ahead)
            kernels.ask_for_row(velocity, ahead)
            row = some[i]
            key = row_key(names[i], seeds[table])
            for j in range(values.shape[1]):
                old, before, bits = values[row, j], square[row, j], noise(key, j)
                weight = widen(old)
                gradient = own[i, j] + decay * weight
                variance = kept * widen(before) + new * gradient * gradient
                more = again(bits)
                square[row, j] = narrow(variance, before, more)
                if centered:
                    more = again(more)
                    before = mean[row, j]
                    average = kept * widen(before) + new * gradient
                    mean[row, j] = narrow(average, before, more)
                    # Rounding may make a tiny variance negative.
                    variance = max(variance - average * average, kept * 0)
                step = rate * gradient / (np.sqrt(variance + inside) + outside)
                if moving:
                    before = velocity[row, j]
                    step += momentum * widen(before)
                    velocity[row, j] = narrow(step, before, again(more))
                weight -= step
                values[row, j] = narrow(weight, old, bits)


@explained_fields("Optimizer")
@dataclass(frozen=True)
class RMSProp(KernelOptimizer):
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

    @property
    def slots(self) -> tuple[str, ...]:
        mean = ("mean_gradient",) if self.centered else ()
        velocity = ("velocity",) if self.momentum else ()
        return ("mean_square", *mean, *velocity)

    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        numbers = rate, self.rho, 1.0 - self.rho, self.momentum, self.weight_decay
        return *numbers, *epsilons(self, scalar)

    def _run(self, *arguments: Array) -> None:
        _rmsprop_rows(*(*arguments, self.centered, self.momentum > 0))
