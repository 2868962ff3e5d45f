"""The optimizers: SGD, Momentum, Adagrad, Adam, RMSProp and FTRL.

Each is a kernel, and the description that calls it; see `psnb._src.server.optimizer`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

from psnb._src.server import kernels
from psnb._src.server.optimizer import Array, Optimizer, Slots, above_zero, epsilons
from psnb._src.server.schedules import (
    SCHEDULES,
    LearningRate,
    Schedule,
    refusal,
    require_number,
)


@njit(cache=True, nogil=True)
def _sgd_rows(values, rows, gradients, rate, decay):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        ahead = rows[min(i + kernels.AHEAD, rows.size - 1)]
        for line in range(kernels.lines(values)):
            kernels.ask_for(values, ahead, line)
        row = rows[i]
        for j in range(values.shape[1]):
            values[row, j] -= rate * (gradients[i, j] + decay * values[row, j])


@dataclass(frozen=True)
class SGD(Optimizer):
    """Plain stochastic gradient descent: ``w -= learning_rate * g``."""

    def _update(
        self, values: Array, slots: Slots, rows: Array, gradients: Array, rate: float, step: int
    ) -> None:
        scalar = values.dtype.type
        _sgd_rows(values, rows, gradients, scalar(rate), scalar(self.weight_decay))


@njit(cache=True, nogil=True)
def _momentum_rows(  # type: ignore[no-untyped-def]
    values, velocity, rows, gradients, rate, momentum, new, decay, nesterov
):
    for i in range(rows.size):
        ahead = rows[min(i + kernels.AHEAD, rows.size - 1)]
        for line in range(kernels.lines(values)):
            kernels.ask_for(values, ahead, line)
            kernels.ask_for(velocity, ahead, line)
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

    slots = ("velocity",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dampening > 1 or (self.nesterov and self.dampening):
            raise refusal(self, "dampening", "1 at most, and 0 with nesterov=True")

    def _update(
        self, values: Array, slots: Slots, rows: Array, gradients: Array, rate: float, step: int
    ) -> None:
        new = 1.0 - self.dampening if step else 1.0
        numbers = map(values.dtype.type, (rate, self.momentum, new, self.weight_decay))
        _momentum_rows(values, slots["velocity"], rows, gradients, *(*numbers, self.nesterov))


# numpy's error model: the inner loop does not check for a division by zero, and so runs three times
# as fast; the optimizer makes sure that there is none.
@njit(cache=True, nogil=True, error_model="numpy")
def _adagrad_rows(  # type: ignore[no-untyped-def]
    values, accumulator, rows, gradients, rate, decay, inside, outside
):
    for i in range(rows.size):
        ahead = rows[min(i + kernels.AHEAD, rows.size - 1)]
        for line in range(kernels.lines(values)):
            kernels.ask_for(values, ahead, line)
            kernels.ask_for(accumulator, ahead, line)
        row = rows[i]
        for j in range(values.shape[1]):
            gradient = gradients[i, j] + decay * values[row, j]
            accumulator[row, j] += gradient * gradient
            root = np.sqrt(accumulator[row, j] + inside) + outside
            values[row, j] -= rate * gradient / root


@dataclass(frozen=True)
class Adagrad(Optimizer):
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

    def _update(
        self, values: Array, slots: Slots, rows: Array, gradients: Array, rate: float, step: int
    ) -> None:
        scalar = values.dtype.type
        rate /= 1.0 + self.learning_rate_decay * step
        numbers = *map(scalar, (rate, self.weight_decay)), *epsilons(self, scalar)
        _adagrad_rows(values, slots["accumulator"], rows, gradients, *numbers)


# numpy's error model: see Adagrad.
@njit(cache=True, nogil=True, error_model="numpy")
def _adam_rows(  # type: ignore[no-untyped-def]
    values,
    first,
    second,
    highest,
    rows,
    gradients,
    rate,
    first_kept,
    first_new,
    second_kept,
    second_new,
    root_correction,
    decay,
    shrink,
    epsilon,
):
    # `highest` is an array or None: numba compiles a loop for each, so the usual one has no test.
    for i in range(rows.size):
        ahead = rows[min(i + kernels.AHEAD, rows.size - 1)]
        for line in range(kernels.lines(values)):
            kernels.ask_for(values, ahead, line)
            kernels.ask_for(first, ahead, line)
            kernels.ask_for(second, ahead, line)
            if highest is not None:
                kernels.ask_for(highest, ahead, line)
        row = rows[i]
        for j in range(values.shape[1]):
            gradient = gradients[i, j] + decay * values[row, j]
            mean = first_kept * first[row, j] + first_new * gradient
            square = second_kept * second[row, j] + second_new * gradient * gradient
            first[row, j] = mean
            second[row, j] = square
            if highest is not None:
                square = max(square, highest[row, j])
                highest[row, j] = square
            step = rate * mean / (np.sqrt(square) * root_correction + epsilon)
            values[row, j] -= step + shrink * values[row, j]


@dataclass(frozen=True)
class Adam(Optimizer):
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

    def _update(
        self, values: Array, slots: Slots, rows: Array, gradients: Array, rate: float, step: int
    ) -> None:
        scalar, decay = values.dtype.type, self.weight_decay
        # In double precision: 1 - 0.999 ** t would lose four of float32's seven digits.
        rate_now = rate / (1.0 - self.beta_1 ** (step + 1))
        root_correction = (1.0 - self.beta_2 ** (step + 1)) ** -0.5
        kept_and_new = self.beta_1, 1.0 - self.beta_1, self.beta_2, 1.0 - self.beta_2
        decays = (0.0, rate * decay) if self.decoupled else (decay, 0.0)
        numbers = rate_now, *kept_and_new, root_correction, *decays
        epsilon = self.epsilon * (root_correction if self.epsilon_hat else 1.0)
        _adam_rows(
            *(values, slots["first_moment"], slots["second_moment"]),
            *(slots.get("highest_second_moment"), rows, gradients),
            *(*map(scalar, numbers), above_zero(epsilon, scalar)),
        )


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
    decay,
    inside,
    outside,
    centered,
    moving,
):
    for i in range(rows.size):
        ahead = rows[min(i + kernels.AHEAD, rows.size - 1)]
        for line in range(kernels.lines(values)):
            kernels.ask_for(values, ahead, line)
            kernels.ask_for(square, ahead, line)
            kernels.ask_for(mean, ahead, line)
            kernels.ask_for(velocity, ahead, line)
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

    @property
    def slots(self) -> tuple[str, ...]:
        mean = ("mean_gradient",) if self.centered else ()
        velocity = ("velocity",) if self.momentum else ()
        return ("mean_square", *mean, *velocity)

    def _update(
        self, values: Array, slots: Slots, rows: Array, gradients: Array, rate: float, step: int
    ) -> None:
        scalar, unused = values.dtype.type, np.empty((0, 0), values.dtype)
        numbers = rate, self.rho, 1.0 - self.rho, self.momentum, self.weight_decay
        _rmsprop_rows(
            *(values, slots["mean_square"], slots.get("mean_gradient", unused)),
            *(slots.get("velocity", unused), rows, gradients),
            *(*map(scalar, numbers), *epsilons(self, scalar), self.centered, self.momentum > 0),
        )


# numpy's error model: see Adagrad.
@njit(cache=True, nogil=True, error_model="numpy")
def _ftrl_rows(  # type: ignore[no-untyped-def]
    values, accumulator, linear, rows, gradients, inverse_rate, l1, pull, power, decay, half
):
    zero = l1 * 0
    for i in range(rows.size):
        ahead = rows[min(i + kernels.AHEAD, rows.size - 1)]
        for line in range(kernels.lines(values)):
            kernels.ask_for(values, ahead, line)
            kernels.ask_for(accumulator, ahead, line)
            kernels.ask_for(linear, ahead, line)
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

    def _update(
        self, values: Array, slots: Slots, rows: Array, gradients: Array, rate: float, step: int
    ) -> None:
        scalar = values.dtype.type
        if rate <= 4 * np.finfo(scalar).tiny:  # its inverse would be infinite
            return
        pull = self.beta / rate + 2.0 * self.l2
        numbers = 1.0 / rate, self.l1, pull, -self.learning_rate_power, self.weight_decay
        _ftrl_rows(
            *(values, slots["accumulator"], slots["linear"], rows, gradients),
            *(*map(scalar, numbers), self.learning_rate_power == -0.5),
        )


OPTIMIZERS: dict[str, type] = {
    **{each.__name__: each for each in (FTRL, SGD, Adagrad, Adam, Momentum, RMSProp)},
    **SCHEDULES,
}
"""Functions of users are not among them: only their name is known."""
