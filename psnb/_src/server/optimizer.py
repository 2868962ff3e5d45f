"""What all optimizers have in common: a frozen description, and how a table applies it. Pure.

The state of an optimizer (the *slots*, the step) belongs to the table. The optimizer sees every
table as a matrix: a dense variable is one row, an embedding table has one row for each id. So each
optimizer needs one kernel for both. A kernel works in place, without the GIL, on distinct rows of
float32 or float64, of any number of tables (`psnb._src.server.kernels`). It gets hyperparameters
of the same dtype, or it would compute in the wider one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np

from psnb._src.server import kernels
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import scratch
from psnb._src.server.schedules import (
    LearningRate,
    rate_at,
    require_fields,
    require_number,
    require_rate,
)
from psnb._src.utils.config import Described
from psnb.errors import InvalidArrayError

OPTIMIZABLE = (np.dtype(np.float32), np.dtype(np.float64))
"""The dtypes that optimizers work on."""

Array = np.ndarray

Slots = Mapping[str, np.ndarray]
"""The state of an optimizer, each array like the parameters."""

Matrices = Callable[[], tuple[np.ndarray, Slots]]
"""Returns the values and slots of a table."""

Scalar = type[np.floating[Any]]

Numbers = tuple[Any, ...]
"""The hyperparameters of a kernel."""

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
class Optimizer(Described, ABC):
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
        PyTorch), after clipping. `Adam` and `Lion` apply it apart from the gradient (decoupled, as
        AdamW).
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
        below_1 = "momentum", "rho", "beta_1", "beta_2"
        require_fields(self, ("epsilon",), below_1, but=("learning_rate_power",))
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
        if rows.size == 1 and not gaps:  # its columns may be divided
            values, slots = values[rows[0]][None], {n: s[rows[0]][None] for n, s in slots.items()}
            rows = np.zeros(1, np.int64)
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

    def apply_to_tables(
        self,
        matrices: Sequence[Matrices],
        places: Array,
        offsets: Array,
        rows: Array,
        gradients: Array,
        rates: Sequence[float],
        steps: Sequence[int],
    ) -> None:
        """Update rows of several tables, whose gradients need not be changed first.

        Those from ``offsets[i]`` to ``offsets[i + 1]`` are of table ``i``, at ``places[i]``
        (int64), with the rate and step there.
        """
        for at, (rate, step) in enumerate(zip(rates, steps, strict=True)):
            of = slice(offsets[at], offsets[at + 1])
            self._update(*matrices[at](), rows[of], read_only(gradients[of]), rate, step)

    @abstractmethod
    def _update(
        self, values: Array, slots: Slots, rows: Array, gradients: Array, rate: float, step: int
    ) -> None:
        """Update rows; see `apply`."""


class KernelOptimizer(Optimizer):
    """An optimizer with a kernel."""

    def apply_to_tables(
        self,
        matrices: Sequence[Matrices],
        places: Array,
        offsets: Array,
        rows: Array,
        gradients: Array,
        rates: Sequence[float],
        steps: Sequence[int],
    ) -> None:
        pairs = list(zip(rates, steps, strict=True))
        scalar = gradients.dtype.type
        known = {pair: self._numbers(*pair, scalar) for pair in set(pairs)}
        numbers = np.array([known[pair] for pair in pairs], gradients.dtype)
        self._run(places, read_only(offsets), rows, read_only(gradients), numbers)

    def _update(
        self, values: Array, slots: Slots, rows: Array, gradients: Array, rate: float, step: int
    ) -> None:
        place = np.zeros(kernels.PLACE, np.int64)
        arrays = values, *(slots[name] for name in self.slots)
        # Kernels get addresses only.
        kind, shape = gradients.dtype, (rows.size, values.shape[1])
        if gradients.shape != shape or not all(
            each.flags.c_contiguous and (each.dtype, each.shape) == (kind, values.shape)
            for each in arrays
        ):
            raise InvalidArrayError(
                f"{type(self).__name__}.apply: expected contiguous values and slots of one shape, "
                f"a gradient for each of {rows.size} rows, and one dtype; found gradients of "
                f"{kind} and shape {gradients.shape}, and values and slots "
                f"{[(each.dtype.name, each.shape, each.strides) for each in arrays]}"
            )
        place[kernels.VALUES : kernels.VALUES + len(arrays)] = [*map(kernels.address, arrays)]
        places, offsets = np.array([kernels.address(place)]), np.array([0, rows.size])
        of = places, offsets, rows, gradients
        self.apply_to_tables([lambda: (values, slots)], *of, [rate], [step])

    @abstractmethod
    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        """Return the hyperparameters at a step, for the kernel."""

    @abstractmethod
    def _run(self, *arguments: Array) -> None:
        """Run the kernel on places, offsets, rows, gradients, and the numbers of each table."""


def _norm(rows: np.ndarray, gradients: np.ndarray, workspace: Workspace) -> float:
    """Return the norm of the gradients of rows not below 0."""
    parts = workspace.parts(rows, gradients, gaps=True)
    return math.sqrt(sum(kernels.square_norm(part.gradients) for part in parts))


def above_zero(value: float, scalar: Scalar) -> np.floating[Any]:
    """Return a value above 0 as a scalar above 0, even if it is too small for float32.

    An epsilon of 0 would let a row without gradient divide 0 by 0.
    """
    return max(scalar(value), np.finfo(scalar).tiny)


def epsilons(optimizer: Any, scalar: Scalar) -> tuple[np.floating[Any], np.floating[Any]]:
    """Return what is added in the root and outside of it: an epsilon, `above_zero`, and nothing."""
    epsilon, nothing = above_zero(optimizer.epsilon, scalar), scalar(0)
    return (epsilon, nothing) if optimizer.epsilon_in_root else (nothing, epsilon)
