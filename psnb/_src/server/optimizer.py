"""What all optimizers have in common: a frozen description, and how a table applies it. Pure.

The state of an optimizer (the *slots*, the step) belongs to the table. The optimizer sees every
table as a matrix: a dense variable is one row, an embedding table has one row for each id. So each
optimizer needs one kernel for both. A kernel works in place, without the GIL, on distinct rows of
float32 or float64. It gets hyperparameters of the same dtype, or it would compute in the wider one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from psnb._src.server import kernels
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import scratch
from psnb._src.server.presence import Piece
from psnb._src.server.row_index import GrowingArray
from psnb._src.server.states import ROW_USE
from psnb._src.utils.checks import is_integer, is_number, to_config
from psnb._src.utils.text import NAME, shown, text_of, truncate
from psnb.errors import ConfigurationError

# Checks of hyperparameters, for optimizers and schedules. Pure.


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


def refusal(owner: Any, name: str, what: str) -> ConfigurationError:
    """Return the error that says what a field must be."""
    return ConfigurationError(
        f"{type(owner).__name__}({name}={shown(getattr(owner, name))}): {name} must be {what}"
    )


# Learning-rate schedules, by the table's count of updates. Pure.
#
# A schedule is a frozen description and a function of the step: 0 for the first update of a table,
# one more for each that it has applied. Names and formulas are those of Keras and optax. Any other
# function of the step becomes a `RateFunction`.

LearningRate = float | Callable[[int], Any]
"""A number, a `Schedule`, or another function that returns a number for a step."""


@dataclass(frozen=True)
class Schedule(ABC):
    """A learning rate by step; an optimizer takes it as its ``learning_rate``."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""

    def describe(self) -> dict[str, Any]:
        """Return name and parameters as JSON can hold them."""
        return to_config(self)


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
        Fall at once after each ``decay_steps``, not a little at each step.

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
        require_number(self, "initial_learning_rate", positive=True)
        require_steps(self, "decay_steps")
        require_number(self, "decay_rate", positive=True)
        if self.decay_rate > 1:
            raise refusal(self, "decay_rate", "above 0 and not above 1")
        require_flag(self, "staircase")

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
        require_number(self, "initial_learning_rate", positive=True)
        require_steps(self, "decay_steps")
        require_number(self, "alpha")
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
        require_number(self, "initial_learning_rate", positive=True)
        require_steps(self, "decay_steps")
        require_number(self, "end_learning_rate")
        require_number(self, "power", positive=True)

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
        require_steps(self, "warmup_steps")
        require_number(self, "initial_learning_rate")

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


_BLOCK = 1 << 16
"""Numbers that are clipped at a time."""


class Workspace(NamedTuple):
    """Memory of a table, in which gradients are made ready for the kernel, some rows at a time.

    So an update needs no memory that its table does not have yet, and a block stays in the
    processor's caches from the clipping to the update.

    Attributes
    ----------
    rows : numpy.ndarray
        int64, of one axis.
    numbers : numpy.ndarray
        One axis, of the dtype of the values.
    """

    rows: np.ndarray
    numbers: np.ndarray

    @classmethod
    def of_rows(cls, dim: int, dtype: np.dtype) -> Workspace:
        """Make one for rows of ``dim`` numbers."""
        rows = max(1, _BLOCK // max(1, dim))
        return cls(scratch(rows, np.int64), scratch(rows * dim, dtype))

    @classmethod
    def of_variable(cls, size: int, dtype: np.dtype) -> Workspace:
        """Make one for a matrix of one row, which may be divided into columns."""
        return cls(np.zeros(1, np.int64), scratch(min(size, _BLOCK), dtype))

    def parts(
        self, rows: np.ndarray, gradients: np.ndarray, *, gaps: bool
    ) -> Iterator[_GradientPart]:
        """Yield parts of the gradients, with ``gaps`` of those rows that are not below 0 alone."""
        if rows.size == 1:
            dim = gradients.shape[1]
            for start in range(0, dim, self.numbers.size):
                columns = slice(start, min(dim, start + self.numbers.size))
                room = self.numbers[: columns.stop - start].reshape(1, -1)
                yield _GradientPart(columns, rows, gradients[:, columns], room)
            return
        numbers = self.numbers.reshape(self.rows.size, -1)
        for start in range(0, rows.size, self.rows.size):
            some, part = rows[start : start + self.rows.size], gradients[start:][: self.rows.size]
            room = numbers[: some.size]
            if gaps:
                count = kernels.found_first(read_only(some), read_only(part), self.rows, numbers)
                some, part = self.rows[:count], numbers[:count]
                room = part
            yield _GradientPart(slice(None), some, part, room)


class _GradientPart(NamedTuple):
    """Some columns of some rows, valid until the next: ``room`` is memory for as many numbers."""

    columns: slice
    rows: np.ndarray
    gradients: np.ndarray
    room: np.ndarray


@dataclass(frozen=True)
class Optimizer(ABC):
    """How a parameter server turns gradients into updates.

    One push to a table is one step. In an embedding table only the rows that were pushed change:
    the others neither decay nor move by their momentum (as in TensorFlow's lazy optimizers). Each
    shard of a variable or embedding counts its own steps; a push without ids of a shard is not a
    step there.

    Parameters
    ----------
    learning_rate : float or callable
        Step size, finite and not below 0; or a function of the step, 0 for the first update: a
        `Schedule`, one of optax's, or any other that can be pickled. See below.
    weight_decay : float
        Pulls parameters towards zero: ``weight_decay * w`` is added to the gradient (L2, as in
        PyTorch), after clipping. `Adam` applies it separately from the gradient (decoupled, AdamW).
    clipnorm : float, optional
        A gradient with a larger Euclidean norm is scaled down to it. The norm is that of the whole
        push to one variable or embedding, over all servers, with the gradients of equal ids summed.
    clipvalue : float, optional
        Each element of the (summed) gradient is clipped to ``[-clipvalue, clipvalue]``, after
        ``clipnorm``.
    maximize : bool
        Follow gradients upwards: they are negated, before weights decay (as in PyTorch).

    Raises
    ------
    ConfigurationError
        If a hyperparameter is out of its range, or a function has no rate for step 0.

    Notes
    -----
    Servers call the function of a learning rate (in mode `Geo`, workers do), so the modules that it
    needs must be there: jax, for those of optax. It must be fast, because a server does nothing
    else meanwhile. It is called once for an update, when that reaches the server, before anything
    of it is applied; a copy on another server takes the same rate. (So while closures commit to
    several servers, it may be asked for one step more than once. And for step 0 whenever
    hyperparameters are set, for reads that show a closure its own pushes, and for a dashboard that
    shows the rate.) If it raises, or
    returns no number that is finite and not below 0, the whole commit is refused with
    ConfigurationError. A checkpoint has the function's name only.
    """

    learning_rate: LearningRate = 0.01
    _: KW_ONLY
    weight_decay: float = 0.0
    clipnorm: float | None = None
    clipvalue: float | None = None
    maximize: bool = False

    def __post_init__(self) -> None:
        require_rate(self)
        require_number(self, "weight_decay")
        require_flag(self, "maximize")
        for name in ("clipnorm", "clipvalue"):
            if getattr(self, name) is not None:
                require_number(self, name, positive=True)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state arrays, each of the parameter's shape and dtype."""
        return ()

    def initial_slot(self, name: str) -> float:
        """Return the value that every element of the slot starts with."""
        return 0.0

    @property
    def by_element(self) -> bool:
        """Whether each number changes by the numbers at its place alone, so that rows may."""
        return True

    @property
    def changes_gradients(self) -> bool:
        """Whether gradients may have to be clipped or negated first."""
        return self.clipnorm is not None or self.clipvalue is not None or self.maximize

    def apply(
        self,
        values: np.ndarray,
        slots: Mapping[str, np.ndarray],
        rows: np.ndarray,
        gradients: np.ndarray,
        step: int,
        norm: float | None = None,
        rate: float | None = None,
        workspace: Workspace | None = None,
        *,
        gaps: bool = False,
    ) -> None:
        """Update rows in place.

        Parameters
        ----------
        values : numpy.ndarray
            The parameters, ``(rows, dim)``, float32 or float64.
        slots : mapping of str to numpy.ndarray
            The state, each like ``values``.
        rows : numpy.ndarray
            int64 ``(n,)``, distinct.
        gradients : numpy.ndarray
            ``(n, dim)`` of the dtype of ``values``; not changed.
        step : int
            How many updates the table has had before this one.
        norm : float, optional
            For ``clipnorm``: the Euclidean norm of the whole gradient that these rows are a part
            of; if it is left out, these rows are the whole gradient.
        rate : float, optional
            The learning rate of this update, if it was computed before.
        workspace : Workspace, optional
            If it `changes_gradients`, or with ``gaps``; made if there is none.
        gaps : bool
            Whether some of ``rows`` are below 0: their gradients are left out.

        Raises
        ------
        ConfigurationError
            If the learning rate cannot be computed; nothing was changed.
        """
        if rate is None:
            rate = rate_at(self.learning_rate, step)
        if not (gaps or self.changes_gradients):
            self._update(values, slots, rows, read_only(gradients), rate, step)
            return
        if workspace is None:
            workspace = Workspace.of_rows(values.shape[1], values.dtype)
        scale = -1.0 if self.maximize else 1.0
        if self.clipnorm is not None:
            if norm is None:
                norm = _norm(rows, gradients, workspace) if gaps else kernels.norm(gradients)
            if norm > self.clipnorm:
                scale *= self.clipnorm / norm
        if scale == 1.0 and self.clipvalue is None and not gaps:
            self._update(values, slots, rows, read_only(gradients), rate, step)
            return
        for columns, some, part, room in workspace.parts(rows, gradients, gaps=gaps):
            if scale != 1.0:
                part = np.multiply(part, values.dtype.type(scale), out=room)
            if self.clipvalue is not None:
                bound = values.dtype.type(self.clipvalue)
                part = np.clip(part, -bound, bound, out=room)
            self._update(
                values[:, columns],
                {name: slot[:, columns] for name, slot in slots.items()},
                some,
                read_only(part),
                rate,
                step,
            )

    @abstractmethod
    def _update(
        self,
        values: np.ndarray,
        slots: Mapping[str, np.ndarray],
        rows: np.ndarray,
        gradients: np.ndarray,
        rate: float,
        step: int,
    ) -> None:
        """Run the kernel; see `apply`."""

    def describe(self) -> dict[str, Any]:
        """Return name and hyperparameters as JSON can hold them."""
        return to_config(self)


def _norm(rows: np.ndarray, gradients: np.ndarray, workspace: Workspace) -> float:
    """Return the norm of the gradients of rows not below 0."""
    parts = workspace.parts(rows, gradients, gaps=True)
    return math.sqrt(sum(kernels.square_norm(part.gradients) for part in parts))


def above_zero(value: float, scalar: type[np.floating[Any]]) -> np.floating[Any]:
    """Return a value above 0 as a scalar above 0, even if it is too small for float32.

    An epsilon of 0 would let a row without gradient divide 0 by 0.
    """
    return max(scalar(value), np.finfo(scalar).tiny)


def epsilons(
    value: float, scalar: type[np.floating[Any]], *, in_root: bool
) -> tuple[np.floating[Any], np.floating[Any]]:
    """Return what is added in the root and outside of it: an epsilon, `above_zero`, and nothing."""
    epsilon = above_zero(value, scalar)
    return (epsilon, scalar(0)) if in_root else (scalar(0), epsilon)


# Updater: the optimizer of one table, which may be tuned live, and the count of its updates.
#
# Pure. Not thread-safe; the server's one thread uses it, like the table that it belongs to.


class Updater:
    """Applies gradients to a table's rows.

    Parameters
    ----------
    name : str
        The table's name, for messages.
    optimizer : Optimizer or None
        The optimizer; without one, pushes are refused.
    make_workspace : callable
        Makes the memory in which gradients are clipped or negated.
    gaps : bool
        Whether some rows may be below 0: their gradients are left out.

    Attributes
    ----------
    step : int
        Updates applied: one for each push. Part of checkpoints.
    skipped : int
        Updates (of a dense table) or rows (of a sparse one) left out because they were not finite.
    """

    def __init__(
        self,
        name: str,
        optimizer: Optimizer | None,
        make_workspace: Callable[[], Workspace],
        *,
        gaps: bool = False,
    ) -> None:
        self._name, self._gaps = name, gaps
        self._make_workspace = make_workspace
        self._workspace: Workspace | None = None
        self._optimizer: Optimizer | None = None
        self.optimizer = optimizer
        self.step = 0
        self.skipped = 0

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer, as it is now."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer | None) -> None:
        # First: there may be no memory. What changes gradients has it before it is used.
        if self._workspace is None and optimizer and (self._gaps or optimizer.changes_gradients):
            self._workspace = self._make_workspace()
        self._optimizer = optimizer

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state arrays."""
        return self.optimizer.slots if self.optimizer else ()

    def initial_slot(self, name: str) -> float:
        """Return the value that every element of the slot starts with."""
        return self._required().initial_slot(name)

    def check(self) -> None:
        """Raise ConfigurationError if there is no optimizer."""
        self._required()

    def apply(
        self,
        values: np.ndarray,
        slots: Mapping[str, np.ndarray],
        rows: np.ndarray,
        gradients: np.ndarray,
        norm: float | None,
        rate: float | None,
    ) -> None:
        """Take one step; see `Optimizer.apply`. The given rate is for functions of users only.

        It is not a step if there are rows, and all are below 0.
        """
        optimizer = self._required()
        if not self.rate_is_users():
            rate = None
        gaps = self._gaps and rows.size > 0 and int(rows.min()) < 0
        if gaps and int(rows.max()) < 0:
            return
        optimizer.apply(
            *(values, slots, rows, gradients, self.step, norm, rate, self._workspace), gaps=gaps
        )
        self.step += 1

    def apply_runs(
        self,
        values: np.ndarray,
        slots: Mapping[str, np.ndarray],
        gradient: np.ndarray,
        runs: Sequence[tuple[Piece, int]],
        norm: float | None,
        rate: float | None,
    ) -> None:
        """Take one step of some numbers of a variable; all arrays have one axis.

        Of each run which numbers, where their gradients are, and how many updates they have had.
        The rate is that of the variable's count of updates.
        """
        optimizer = self._required()
        if rate is None or not self.rate_is_users():
            rate = rate_at(optimizer.learning_rate, self.step)
        if norm is None and optimizer.clipnorm is not None:
            norm = kernels.norm(gradient.reshape(1, -1))
        for (columns, part), count in runs:
            optimizer.apply(
                values[columns].reshape(1, -1),
                {name: slot[columns].reshape(1, -1) for name, slot in slots.items()},
                np.zeros(1, np.int64),
                gradient[part].reshape(1, -1),
                count,
                norm,
                rate,
                self._workspace,
            )
        self.step += 1

    def rate_is_users(self) -> bool:
        """Return whether a user's function gives the learning rate.

        Raises
        ------
        ConfigurationError
            If there is no optimizer.
        """
        return is_users(self._required().learning_rate)

    def rate(self, ahead: int) -> float:
        """Return the learning rate of the next update, or of one ``ahead`` updates after it.

        Raises
        ------
        ConfigurationError
            If there is no optimizer, or its schedule fails.
        """
        rate = self._required().learning_rate
        try:
            return rate_at(rate, self.step + ahead)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{self._name!r}: {error}. Nothing was changed; set another: "
                "parameter.optimizer.learning_rate = ..."
            ) from error

    def tune(self, hyperparameters: Mapping[str, Any]) -> None:
        """Change hyperparameters, from the next update on.

        Raises
        ------
        ConfigurationError
            If one is out of its range, or would need other optimizer state; nothing was changed.
        """
        self.optimizer = tuned(self._required(), self._name, hyperparameters)

    def _required(self) -> Optimizer:
        if self.optimizer is None:
            raise ConfigurationError(
                f"{self._name!r} has no optimizer, so gradients cannot be pushed to it: "
                "make it with optimizer=psnb.SGD(...) or another one, or use assign_sub"
            )
        return self.optimizer


def tuned(optimizer: Optimizer, name: str, hyperparameters: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer with other hyperparameters that work with its present state.

    Raises
    ------
    ConfigurationError
        If one is out of its range, or would need other state.
    """
    changed = replace(optimizer, **hyperparameters)
    if changed.slots != optimizer.slots:
        raise ConfigurationError(
            f"{name!r} was made with {optimizer!r}, whose state is {list(optimizer.slots)}; "
            f"{', '.join(f'{key}={value!r}' for key, value in hyperparameters.items())} needs "
            f"{list(changed.slots)}: make another variable or embedding with it"
        )
    return changed


# How a table records the use of its rows: shows, clicks, days unseen. Pure.
#
# After PaddlePaddle's ``CtrCommonAccessor``.


@dataclass(frozen=True)
class CtrAccessor:
    """How rows of click-through-rate tables are scored, decayed and deleted.

    The names and defaults of Paddle's ``CtrCommonAccessor``. Differences: decay and the count of
    days are `Embedding.end_day`, deletion is `Embedding.shrink` (Paddle decays while it shrinks,
    and counts days while it saves); gradients are summed, not divided by shows (``show_scale``); a
    row is made whole at once (``embedx_threshold``); checkpoints have all rows
    (``base_threshold``, ``delta_threshold``, ``delta_keep_days``).

    A row's score is ``nonclk_coeff * (show - click) + click_coeff * click``.

    Parameters
    ----------
    nonclk_coeff : float
        What a show without a click counts.
    click_coeff : float
        What a click counts.
    show_click_decay_rate : float
        The factor on shows and clicks at the end of a day, 0 to 1.
    delete_threshold : float
        `Embedding.shrink` removes rows with a lower score.
    delete_after_unseen_days : float
        It also removes rows that were not pushed for more days than this.

    Raises
    ------
    ConfigurationError
        If a parameter is not a number in its range.
    """

    nonclk_coeff: float = 0.1
    click_coeff: float = 1.0
    show_click_decay_rate: float = 0.98
    delete_threshold: float = 0.8
    delete_after_unseen_days: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not is_number(value) or value < 0:
                raise ConfigurationError(f"{shown(self)}: {name} must be a number and not below 0")
        if self.show_click_decay_rate > 1:
            raise ConfigurationError(f"{shown(self)}: show_click_decay_rate must be 1 at most")

    def describe(self) -> dict[str, Any]:
        """Return name and parameters as JSON can hold them."""
        return to_config(self)

    def score(self, show: np.ndarray, click: np.ndarray) -> np.ndarray:
        """Return the score of rows with these shows and clicks."""
        scores: np.ndarray = self.nonclk_coeff * (show - click) + self.click_coeff * click
        return scores


class RowUse:
    """Shows, clicks and days unseen of a table's rows: 12 bytes a row. Not thread-safe.

    Parameters
    ----------
    accessor : CtrAccessor
        How they are scored and decayed.
    """

    def __init__(self, accessor: CtrAccessor) -> None:
        self.accessor = accessor
        self._all = GrowingArray(3, np.dtype(np.float32))

    @property
    def _use(self) -> np.ndarray:
        return self._all.rows

    @property
    def room(self) -> int:
        """How many rows there may be without more memory."""
        return self._all.room

    def reserve(self, rows: int) -> None:
        """Get the memory of ``rows`` rows; see `GrowingArray.reserve`."""
        self._all.reserve(rows)

    def grow(self, rows: int) -> None:
        """Add rows until there are ``rows``; new ones are all zeros."""
        before = len(self._use)
        self._all.grow(rows)
        self._use[before:] = 0

    def clear(self) -> None:
        """Drop all rows; the room stays."""
        self._all.clear()

    def record(self, rows: np.ndarray, shows: np.ndarray, clicks: np.ndarray) -> None:
        """Add shows and clicks to rows, which may repeat; they are seen today. Not to -1."""
        kernels.record_use(self._use, read_only(rows), read_only(shows), read_only(clicks))

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return show, click and days unseen of rows, float32 ``(n, 3)``; zeros for -1."""
        found = np.zeros((rows.size, 3), np.float32)
        there = rows >= 0
        found[there] = self._use[rows[there]]
        return found

    def end_day(self) -> None:
        """Let shows and clicks decay, and count a day unseen."""
        self._use[:, :2] *= self.accessor.show_click_decay_rate
        self._use[:, 2] += 1

    def kept(self, threshold: float, days: float) -> np.ndarray:
        """Return which rows `Embedding.shrink` keeps, bool ``(count,)``."""
        show, click, unseen = self._use.T
        kept: np.ndarray = (self.accessor.score(show, click) >= threshold) & (unseen <= days)
        return kept

    def keep(self, kept: np.ndarray, room: int) -> None:
        """Drop the rows that are not ``kept`` (bool); see `GrowingArray.keep`."""
        self._all.keep(kept, room)

    def state(self, rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        """Return the records of some rows, in the form that `load` takes."""
        return {name: self.column(name, rows) for name in ROW_USE}

    def column(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        """Return one of these: ``show``, ``click`` or ``unseen_days``."""
        return self._use[rows, ROW_USE.index(name)].copy()

    def load(self, rows: np.ndarray, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `state` returned, for these rows."""
        for i, name in enumerate(ROW_USE):
            self._use[rows, i] = state[name]

    def nbytes(self) -> int:
        """Return the bytes that it takes."""
        return self._use.nbytes
