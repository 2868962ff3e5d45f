"""Learning-rate schedules, by the table's count of updates. Pure.

A schedule is a frozen description and a function of the step: 0 for the first update of a table,
one more for each that it has applied. Names and formulas are as in Keras and optax. Any other
function of the step becomes a `RateFunction`. The checks of fields are those of optimizers, too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from psnb._src.utils.checks import is_integer
from psnb._src.utils.config import Described
from psnb._src.utils.text import NAME, shown, text_of, truncate
from psnb.errors import ConfigurationError


def require_number(
    owner: Any, name: str, *, positive: bool = False, below: float | None = None
) -> None:
    """Make a field of a frozen dataclass a float, or raise ConfigurationError.

    It must be finite, not below 0 (or above 0, if ``positive``) and, if given, below ``below``.
    """
    value = getattr(owner, name)
    what = "finite and above 0" if positive else "finite and not below 0"
    good = is_finite(value) and (value > 0 if positive else value >= 0)
    if below is not None:
        what += f", below {below:g}"
        good = good and value < below
    if not good:
        raise refusal(owner, name, f"a number, {what}")
    object.__setattr__(owner, name, float(value))  # not a numpy or JAX number: for JSON and pickles


def is_finite(value: Any) -> bool:
    """Return whether something is a finite real number, of NumPy or JAX too; a bool is not."""
    try:
        return not isinstance(value, bool) and np.ndim(value) == 0 and math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False


def require_steps(owner: Any, name: str) -> None:
    """Make a field of a frozen dataclass an int of 1 or more, or raise ConfigurationError."""
    value = getattr(owner, name)
    if not is_integer(value) or value < 1:
        raise refusal(owner, name, "a whole number of steps, 1 or more")
    object.__setattr__(owner, name, int(value))


def require_flag(owner: Any, name: str) -> None:
    """Make a field of a frozen dataclass a bool, or raise ConfigurationError."""
    value = getattr(owner, name)
    if not isinstance(value, bool | np.bool):
        raise refusal(owner, name, "True or False")
    object.__setattr__(owner, name, bool(value))


def require_fields(
    owner: Any, positive: Sequence[str] = (), below_1: Sequence[str] = (), but: Sequence[str] = ()
) -> None:
    """Require of each field what its type says: a flag, a number of steps, or a number."""
    for each in fields(owner):
        if each.type == "bool":
            require_flag(owner, each.name)
        elif each.type == "int":
            require_steps(owner, each.name)
        elif each.type == "float" and each.name not in but:
            below = 1 if each.name in below_1 else None
            require_number(owner, each.name, positive=each.name in positive, below=below)


def refusal(owner: Any, name: str, what: str) -> ConfigurationError:
    """Return the error that says what a field must be."""
    return ConfigurationError(
        f"{type(owner).__name__}({name}={shown(getattr(owner, name))}): {name} must be {what}"
    )


LearningRate = float | Callable[[int], Any]
"""A number, a `Schedule`, or another function that returns a number for a step."""


@dataclass(frozen=True)
class Schedule(Described, ABC):
    """A learning rate by step; an optimizer takes it as its ``learning_rate``."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""


@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """``initial_learning_rate * decay_rate ** (step / decay_steps)``.

    Parameters
    ----------
    initial_learning_rate : float
        Where it starts; above 0.
    decay_steps : int
        Steps in which it falls by one ``decay_rate``.
    decay_rate : float
        Above 0, 1 at most.
    staircase : bool
        Fall in one step after each ``decay_steps``, not a little at each step.

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.
    """

    initial_learning_rate: float
    decay_steps: int
    decay_rate: float
    staircase: bool = False

    def __post_init__(self) -> None:
        require_fields(self, ("initial_learning_rate", "decay_rate"))
        if self.decay_rate > 1:
            raise refusal(self, "decay_rate", "above 0 and not above 1")

    def __call__(self, step: int) -> float:
        falls = step // self.decay_steps if self.staircase else step / self.decay_steps
        return float(self.initial_learning_rate * self.decay_rate**falls)


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """Half a cosine from the initial rate down to ``alpha`` of it (Loshchilov, Hutter, 2017).

    Parameters
    ----------
    initial_learning_rate : float
        Where it starts; above 0.
    decay_steps : int
        After these it stays.
    alpha : float
        What is left then, as a fraction of the initial rate; 0 to 1.

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.
    """

    initial_learning_rate: float
    decay_steps: int
    alpha: float = 0.0

    def __post_init__(self) -> None:
        require_fields(self, ("initial_learning_rate",))
        if self.alpha > 1:
            raise refusal(self, "alpha", "0 to 1")

    def __call__(self, step: int) -> float:
        done = min(step, self.decay_steps) / self.decay_steps
        cosine = 0.5 * (1.0 + math.cos(math.pi * done))
        return self.initial_learning_rate * ((1.0 - self.alpha) * cosine + self.alpha)


@dataclass(frozen=True)
class PolynomialDecay(Schedule):
    """From the initial rate to the end rate along ``(1 - step / decay_steps) ** power``.

    Parameters
    ----------
    initial_learning_rate : float
        Where it starts; above 0.
    decay_steps : int
        After these it stays.
    end_learning_rate : float
        Where it ends.
    power : float
        1 is a straight line; above 0.

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.
    """

    initial_learning_rate: float
    decay_steps: int
    end_learning_rate: float = 0.0
    power: float = 1.0

    def __post_init__(self) -> None:
        require_fields(self, ("initial_learning_rate", "power"))

    def __call__(self, step: int) -> float:
        left = 1.0 - min(step, self.decay_steps) / self.decay_steps
        span = self.initial_learning_rate - self.end_learning_rate
        return float(span * left**self.power + self.end_learning_rate)


@dataclass(frozen=True)
class PiecewiseConstant(Schedule):
    """One rate after the other.

    Parameters
    ----------
    boundaries : sequence of int
        Ascending: the step with which the next rate begins, as in optax and PyTorch. (In Keras it
        begins one step later.)
    values : sequence of float
        The rates, one more than boundaries.

    Raises
    ------
    ConfigurationError
        If the boundaries do not ascend, or a rate is not a number in its range.
    """

    boundaries: Sequence[int]
    values: Sequence[float]

    def __post_init__(self) -> None:
        try:
            boundaries = tuple(int(each) for each in self.boundaries)
            values = tuple(float(each) for each in self.values)
        except (TypeError, ValueError, OverflowError):
            raise refusal(self, "values", "numbers, and boundaries steps") from None
        if list(boundaries) != sorted(set(boundaries)) or any(each < 1 for each in boundaries):
            raise refusal(self, "boundaries", "ascending steps, 1 or more")
        if len(values) != len(boundaries) + 1:
            raise refusal(self, "values", f"{len(boundaries) + 1}, one more than boundaries")
        if not all(math.isfinite(each) and each >= 0 for each in values):
            raise refusal(self, "values", "numbers, finite and not below 0")
        object.__setattr__(self, "boundaries", boundaries)
        object.__setattr__(self, "values", values)

    def __call__(self, step: int) -> float:
        return self.values[sum(step >= boundary for boundary in self.boundaries)]


@dataclass(frozen=True)
class Warmup(Schedule):
    """A linear warm-up to another rate or schedule, which then begins with its own step 0.

    Parameters
    ----------
    learning_rate : float or callable
        The rate, schedule or function after the warm-up; the line ends at its first value.
    warmup_steps : int
        Length of the line.
    initial_learning_rate : float
        Where the line begins.

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.
    """

    learning_rate: LearningRate
    warmup_steps: int
    initial_learning_rate: float = 0.0

    def __post_init__(self) -> None:
        require_rate(self)
        require_fields(self)

    def __call__(self, step: int) -> float:
        if step >= self.warmup_steps:
            return rate_at(self.learning_rate, step - self.warmup_steps)
        rise = rate_at(self.learning_rate, 0) - self.initial_learning_rate
        return self.initial_learning_rate + rise * step / self.warmup_steps


@dataclass(frozen=True, repr=False)
class RateFunction(Schedule):
    """A function of the step that is not a `Schedule`: the user's, or one of optax's.

    Parameters
    ----------
    function : callable
        Takes the step, returns the rate.
    """

    function: Callable[[int], Any]

    def __call__(self, step: int) -> Any:
        return self.function(step)

    def __repr__(self) -> str:
        # Without the address, which is another one in each process.
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        module = getattr(named, "__module__", None) or "builtins"
        return f"{module}.{named.__qualname__}"

    def describe(self) -> dict[str, Any]:
        return {"name": type(self).__name__, "function": repr(self)}


_EXACT = (ExponentialDecay, CosineDecay, PolynomialDecay, PiecewiseConstant)

SCHEDULES: dict[str, type[Schedule]] = {each.__name__: each for each in (*_EXACT, Warmup)}
"""All of psnb but `RateFunction`, by name."""


def is_users(learning_rate: LearningRate) -> bool:
    """Return whether a user's function has a part in it, which may fail or differ by process."""
    if type(learning_rate) is Warmup:
        return is_users(learning_rate.learning_rate)
    return callable(learning_rate) and type(learning_rate) not in _EXACT


def rate_at(learning_rate: LearningRate, step: int) -> float:
    """Return the learning rate of a step, counted from 0.

    Raises
    ------
    ConfigurationError
        If a function raises, or returns no number that is finite and not below 0.
    """
    if not callable(learning_rate):
        return learning_rate
    try:
        rate = learning_rate(step)
    except Exception as error:  # whatever a user's function may raise
        why = truncate(text_of(error, repr))
        raise ConfigurationError(
            f"the learning rate {_name(learning_rate)} fails for step {step}: {why}"
        ) from error
    if not is_finite(rate) or rate < 0:
        raise ConfigurationError(
            f"the learning rate {_name(learning_rate)} must be a number, finite and not below 0: "
            f"for step {step} it is {truncate(repr(rate))}"
        )
    return float(rate)


def _name(function: object) -> str:
    return truncate(text_of(function, repr), NAME)  # the end of a function's name says the most


def require_rate(owner: Any) -> None:
    """Make the field ``learning_rate`` a float or a `Schedule`, or raise ConfigurationError.

    A function must have a rate for step 0. For which others it has one, it alone knows.
    """
    rate = owner.learning_rate
    if not callable(rate):
        require_number(owner, "learning_rate")
        return
    if not isinstance(rate, Schedule):
        object.__setattr__(owner, "learning_rate", RateFunction(rate))
    rate_at(owner.learning_rate, 0)
