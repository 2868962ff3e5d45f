"""The optimizers: SGD, Momentum, Adagrad, Adam, Lion, RMSProp and FTRL.

Each is a kernel, and the description that calls it; see `psnb._src.server.optimizer`.
"""

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
    above_zero,
    epsilons,
)
from psnb._src.server.schedules import (
    SCHEDULES,
    LearningRate,
    Schedule,
    refusal,
    require_number,
)
from psnb._src.utils.foreign_names import explained_fields


@njit(cache=True, nogil=True)
def _sgd_rows(places, offsets, rows, gradients, numbers):  # type: ignore[no-untyped-def]
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, own = rows[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, gradients)
        rate, decay = numbers[table, 0], numbers[table, 1]
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            for line in range(kernels.lines(values)):
                kernels.ask_for(values, ahead, line)
            row = some[i]
            for j in range(values.shape[1]):
                values[row, j] -= rate * (own[i, j] + decay * values[row, j])


@explained_fields("Optimizer")
@dataclass(frozen=True)
class SGD(KernelOptimizer):
    """Plain stochastic gradient descent: ``w -= learning_rate * g``."""

    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        return rate, self.weight_decay

    def _run(self, *arguments: Array) -> None:
        _sgd_rows(*arguments)


@njit(cache=True, nogil=True)
def _momentum_rows(places, offsets, rows, gradients, numbers, nesterov):  # type: ignore[no-untyped-def]
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, own = rows[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, gradients)
        velocity = kernels.at_place(places, table, kernels.SLOT, gradients)
        rate, momentum = numbers[table, 0], numbers[table, 1]
        new, decay = numbers[table, 2], numbers[table, 3]
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            for line in range(kernels.lines(values)):
                kernels.ask_for(values, ahead, line)
                kernels.ask_for(velocity, ahead, line)
            row = some[i]
            for j in range(values.shape[1]):
                gradient = own[i, j] + decay * values[row, j]
                moved = momentum * velocity[row, j] + new * gradient
                velocity[row, j] = moved
                values[row, j] -= rate * (gradient + momentum * moved if nesterov else moved)


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dampening > 1 or (self.nesterov and self.dampening):
            raise refusal(self, "dampening", "1 at most, and 0 with nesterov=True")

    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        new = 1.0 - self.dampening if step else 1.0
        return rate, self.momentum, new, self.weight_decay

    def _run(self, *arguments: Array) -> None:
        _momentum_rows(*(*arguments, self.nesterov))


# numpy's error model: the inner loop does not check for a division by zero, and so runs three times
# as fast; the optimizer makes sure that there is none.
@njit(cache=True, nogil=True, error_model="numpy")
def _adagrad_rows(places, offsets, rows, gradients, numbers):  # type: ignore[no-untyped-def]
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, own = rows[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, gradients)
        accumulator = kernels.at_place(places, table, kernels.SLOT, gradients)
        rate, decay = numbers[table, 0], numbers[table, 1]
        inside, outside = numbers[table, 2], numbers[table, 3]
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            for line in range(kernels.lines(values)):
                kernels.ask_for(values, ahead, line)
                kernels.ask_for(accumulator, ahead, line)
            row = some[i]
            for j in range(values.shape[1]):
                gradient = own[i, j] + decay * values[row, j]
                accumulator[row, j] += gradient * gradient
                root = np.sqrt(accumulator[row, j] + inside) + outside
                values[row, j] -= rate * gradient / root


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


# numpy's error model: see Adagrad.
@njit(cache=True, nogil=True, error_model="numpy")
def _adam_rows(places, offsets, rows, gradients, numbers, amsgrad):  # type: ignore[no-untyped-def]
    # `amsgrad` is True or None: numba compiles a loop for each, so the usual one has no test.
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, own = rows[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, gradients)
        first = kernels.at_place(places, table, kernels.SLOT, gradients)
        second = kernels.at_place(places, table, kernels.SLOT + 1, gradients)
        highest = second
        if amsgrad is not None:
            highest = kernels.at_place(places, table, kernels.SLOT + 2, gradients)
        rate, root_correction, decay = numbers[table, 0], numbers[table, 5], numbers[table, 6]
        first_kept, first_new = numbers[table, 1], numbers[table, 2]
        second_kept, second_new = numbers[table, 3], numbers[table, 4]
        shrink, epsilon = numbers[table, 7], numbers[table, 8]
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            for line in range(kernels.lines(values)):
                kernels.ask_for(values, ahead, line)
                kernels.ask_for(first, ahead, line)
                kernels.ask_for(second, ahead, line)
                if amsgrad is not None:
                    kernels.ask_for(highest, ahead, line)
            row = some[i]
            for j in range(values.shape[1]):
                gradient = own[i, j] + decay * values[row, j]
                mean = first_kept * first[row, j] + first_new * gradient
                square = second_kept * second[row, j] + second_new * gradient * gradient
                first[row, j] = mean
                second[row, j] = square
                if amsgrad is not None:
                    square = max(square, highest[row, j])
                    highest[row, j] = square
                step = rate * mean / (np.sqrt(square) * root_correction + epsilon)
                values[row, j] -= step + shrink * values[row, j]


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


@njit(cache=True, nogil=True)
def _lion_rows(places, offsets, rows, gradients, numbers):  # type: ignore[no-untyped-def]
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, own = rows[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, gradients)
        mean = kernels.at_place(places, table, kernels.SLOT, gradients)
        rate, shrink = numbers[table, 0], numbers[table, 1]
        step_kept, step_new = numbers[table, 2], numbers[table, 3]
        mean_kept, mean_new = numbers[table, 4], numbers[table, 5]
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            for line in range(kernels.lines(values)):
                kernels.ask_for(values, ahead, line)
                kernels.ask_for(mean, ahead, line)
            row = some[i]
            for j in range(values.shape[1]):
                sign = np.sign(step_kept * mean[row, j] + step_new * own[i, j])
                mean[row, j] = mean_kept * mean[row, j] + mean_new * own[i, j]
                values[row, j] -= rate * sign + shrink * values[row, j]


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

    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        kept_and_new = self.beta_1, 1.0 - self.beta_1, self.beta_2, 1.0 - self.beta_2
        return rate, rate * self.weight_decay, *kept_and_new

    def _run(self, *arguments: Array) -> None:
        _lion_rows(*arguments)


# numpy's error model: see Adagrad.
@njit(cache=True, nogil=True, error_model="numpy")
def _rmsprop_rows(  # type: ignore[no-untyped-def]
    places, offsets, rows, gradients, numbers, centered, moving
):
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, own = rows[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, gradients)
        square = kernels.at_place(places, table, kernels.SLOT, gradients)
        mean = kernels.at_place(places, table, kernels.SLOT + 1 if centered else 0, gradients)
        at = kernels.SLOT + (2 if centered else 1)
        velocity = kernels.at_place(places, table, at if moving else 0, gradients)
        rate, kept, new = numbers[table, 0], numbers[table, 1], numbers[table, 2]
        momentum, decay = numbers[table, 3], numbers[table, 4]
        inside, outside = numbers[table, 5], numbers[table, 6]
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            for line in range(kernels.lines(values)):
                kernels.ask_for(values, ahead, line)
                kernels.ask_for(square, ahead, line)
                kernels.ask_for(mean, ahead, line)
                kernels.ask_for(velocity, ahead, line)
            row = some[i]
            for j in range(values.shape[1]):
                gradient = own[i, j] + decay * values[row, j]
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


# numpy's error model: see Adagrad.
@njit(cache=True, nogil=True, error_model="numpy")
def _ftrl_rows(places, offsets, rows, gradients, numbers, half):  # type: ignore[no-untyped-def]
    for table in range(places.size):
        start, stop = offsets[table], offsets[table + 1]
        some, own = rows[start:stop], gradients[start:stop]
        values = kernels.at_place(places, table, kernels.VALUES, gradients)
        accumulator = kernels.at_place(places, table, kernels.SLOT, gradients)
        linear = kernels.at_place(places, table, kernels.SLOT + 1, gradients)
        inverse_rate, l1, pull = numbers[table, 0], numbers[table, 1], numbers[table, 2]
        power, decay = numbers[table, 3], numbers[table, 4]
        zero = l1 * 0
        if inverse_rate < zero:  # it would be infinite: nothing changes
            continue
        for i in range(some.size):
            ahead = some[min(i + kernels.AHEAD, some.size - 1)]
            for line in range(kernels.lines(values)):
                kernels.ask_for(values, ahead, line)
                kernels.ask_for(accumulator, ahead, line)
                kernels.ask_for(linear, ahead, line)
            row = some[i]
            for j in range(values.shape[1]):
                gradient = own[i, j] + decay * values[row, j]
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
                # No strength: no gradient so far had a square above 0, so there is nothing to
                # divide by.
                values[row, j] = (clipped - z) / strength if strength > zero else zero


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


OPTIMIZERS: dict[str, type] = {
    **{each.__name__: each for each in (FTRL, SGD, Adagrad, Adam, Lion, Momentum, RMSProp)},
    **SCHEDULES,
}
"""Functions of users are not among them: only their name is known."""
