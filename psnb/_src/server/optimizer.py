"""What all optimizers have in common: a frozen description, and how a table applies it. Pure.

The state of an optimizer (the *slots*, the step) belongs to the table. The optimizer sees every
table as a matrix: a dense variable is one row, an embedding table has one row for each id. So each
optimizer needs one kernel for both. A kernel works in place, without the GIL, on distinct rows of
any number of tables (`psnb._src.server.kernels`). It computes in float32 or float64, the dtype of
gradients, and gets hyperparameters of it, or it would compute in the wider one. Rows and state may
be stored in half width (`psnb._src.server.stored`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

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
from psnb._src.transport import half_width
from psnb._src.utils.config import Described
from psnb.errors import InvalidArrayError

OPTIMIZABLE = (np.dtype(np.float32), np.dtype(np.float64))
"""The dtypes that optimizers work on."""

Array = np.ndarray

Slots = Mapping[str, np.ndarray]
"""The state of an optimizer, each array like the parameters, or of one column."""

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
    rows, ids : numpy.ndarray
        int64 and uint64, of one axis.
    numbers : numpy.ndarray
        One axis, of the dtype of the values.
    """

    rows: np.ndarray
    ids: np.ndarray
    numbers: np.ndarray

    @classmethod
    def of_rows(cls, dim: int, dtype: np.dtype) -> Workspace:
        """Make one for rows of ``dim`` numbers."""
        rows = max(1, _BLOCK // max(1, dim))
        found = scratch(rows, np.int64), scratch(rows, np.uint64)
        return cls(*found, scratch(rows * dim, dtype))

    @classmethod
    def of_variable(cls, size: int, dtype: np.dtype) -> Workspace:
        """Make one for a matrix of one row, which may be divided into columns."""
        return cls(np.zeros(1, np.int64), np.zeros(1, np.uint64), scratch(min(size, _BLOCK), dtype))

    def parts(
        self, rows: np.ndarray, ids: np.ndarray, gradients: np.ndarray, *, gaps: bool
    ) -> Iterator[_GradientPart]:
        """Yield parts of the gradients, with ``gaps`` of those rows that are not below 0 alone."""
        if rows.size == 1:
            dim = gradients.shape[1]
            for start in range(0, dim, self.numbers.size):
                columns = slice(start, min(dim, start + self.numbers.size))
                room = self.numbers[: columns.stop - start].reshape(1, -1)
                yield _GradientPart(columns, rows, ids, gradients[:, columns], room)
            return
        numbers = self.numbers.reshape(self.rows.size, -1)
        for start in range(0, rows.size, self.rows.size):
            at = slice(start, start + self.rows.size)
            some, names, part = rows[at], ids[at], gradients[at]
            room = numbers[: some.size]
            if gaps:
                given = read_only(some), read_only(names), read_only(part)
                count = kernels.found_first(*given, self.rows, self.ids, numbers)
                some, names, part = self.rows[:count], self.ids[:count], numbers[:count]
                room = part
            yield _GradientPart(slice(None), some, names, part, room)


class _GradientPart(NamedTuple):
    """Some columns of some rows, valid until the next: ``room`` is memory for as many numbers."""

    columns: slice
    rows: np.ndarray
    ids: np.ndarray
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

    row_wise: ClassVar[frozenset[str]] = frozenset()
    """The slots that have one number a row; a variable, which has no rows, cannot have them."""

    squares: ClassVar[bool] = True
    """Whether state may be of squares of gradients, for most of which float16 has no range."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state arrays."""
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
        ids: np.ndarray | None = None,
        seed: int = 0,
    ) -> None:
        """Update rows in place.

        Parameters
        ----------
        values : numpy.ndarray
            The parameters, ``(rows, dim)``, float32 or float64, or the codes of half width.
        slots : mapping of str to numpy.ndarray
            The state, each like ``values``, or of one column.
        rows : numpy.ndarray
            int64 ``(n,)``, distinct.
        gradients : numpy.ndarray
            ``(n, dim)`` of the dtype for computing; not changed.
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
        ids : numpy.ndarray, optional
            uint64 ``(n,)``; by default the numbers of the rows.
        seed : int
            Of this update, for what is stored in half width; see ``stored.seed_of``.

        Raises
        ------
        ConfigurationError
            If the learning rate cannot be computed; nothing was changed.
        """
        if rate is None:
            rate = rate_at(self.learning_rate, step)
        if ids is None:
            ids = rows.view(np.uint64)
        if not (gaps or self.changes_gradients):
            self._update(values, slots, rows, ids, read_only(gradients), rate, step, seed)
            return
        scalar = gradients.dtype.type
        if workspace is None:
            workspace = Workspace.of_rows(values.shape[1], gradients.dtype)
        if rows.size == 1 and not gaps:  # its columns may be divided
            values, slots = values[rows[0]][None], {n: s[rows[0]][None] for n, s in slots.items()}
            rows = np.zeros(1, np.int64)
        scale = -1.0 if self.maximize else 1.0
        if self.clipnorm is not None:
            if norm is None:
                norm = norm_of(rows, ids, gradients, workspace, gaps=gaps)
            if norm > self.clipnorm:
                scale *= self.clipnorm / norm
        if scale == 1.0 and self.clipvalue is None and not gaps:
            self._update(values, slots, rows, ids, read_only(gradients), rate, step, seed)
            return
        for columns, some, names, part, room in workspace.parts(rows, ids, gradients, gaps=gaps):
            if scale != 1.0:
                part = np.multiply(part, scalar(scale), out=room)
            if self.clipvalue is not None:
                bound = scalar(self.clipvalue)
                part = np.clip(part, -bound, bound, out=room)
            self._update(
                values[:, columns],
                {name: slot[:, columns] for name, slot in slots.items()},
                some,
                names,
                read_only(part),
                rate,
                step,
                seed,
            )

    def apply_to_tables(
        self,
        matrices: Sequence[Matrices],
        places: Array,
        offsets: Array,
        rows: Array,
        ids: Array,
        gradients: Array,
        rates: Sequence[float],
        steps: Sequence[int],
        seeds: Sequence[int],
    ) -> None:
        """Update rows of several tables, whose gradients need not be changed first.

        Those from ``offsets[i]`` to ``offsets[i + 1]`` are of table ``i``, at ``places[i]``
        (int64), with the rate, step and seed there.
        """
        for at, (rate, step, seed) in enumerate(zip(rates, steps, seeds, strict=True)):
            of = slice(offsets[at], offsets[at + 1])
            own = rows[of], ids[of], read_only(gradients[of])
            self._update(*matrices[at](), *own, rate, step, seed)

    @abstractmethod
    def _update(
        self,
        values: Array,
        slots: Slots,
        rows: Array,
        ids: Array,
        gradients: Array,
        rate: float,
        step: int,
        seed: int,
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
        ids: Array,
        gradients: Array,
        rates: Sequence[float],
        steps: Sequence[int],
        seeds: Sequence[int],
    ) -> None:
        of = places, offsets, rows, ids, gradients
        self._call(*matrices[0](), *of, rates, steps, seeds)

    def _update(
        self,
        values: Array,
        slots: Slots,
        rows: Array,
        ids: Array,
        gradients: Array,
        rate: float,
        step: int,
        seed: int,
    ) -> None:
        place = self._place(values, slots, rows, gradients)
        places, offsets = np.array([kernels.address(place)]), np.array([0, rows.size])
        of = places, offsets, rows, ids, gradients
        self._call(values, slots, *of, [rate], [step], [seed])

    def _call(
        self,
        values: Array,
        slots: Slots,
        places: Array,
        offsets: Array,
        rows: Array,
        ids: Array,
        gradients: Array,
        rates: Sequence[float],
        steps: Sequence[int],
        seeds: Sequence[int],
    ) -> None:
        """Run the kernel on tables like one with these values and slots."""
        pairs = list(zip(rates, steps, strict=True))
        scalar = gradients.dtype.type
        known = {pair: self._numbers(*pair, scalar) for pair in set(pairs)}
        numbers = np.array([known[pair] for pair in pairs], gradients.dtype)
        first = slots[self.slots[0]] if self.slots else values
        of = places, read_only(offsets), rows, read_only(ids), read_only(gradients)
        self._run(*of, numbers, np.array(seeds, np.uint64), values[:0], first[:0])

    def _place(self, values: Array, slots: Slots, rows: Array, gradients: Array) -> Array:
        """Return a place of arrays that belong to no table."""
        state = [slots[name] for name in self.slots]
        columns = [1 if name in self.row_wise else values.shape[1] for name in self.slots]
        # Kernels get addresses only.
        shape = rows.size, values.shape[1]
        if (
            (gradients.shape, gradients.dtype) != (shape, half_width.widened(values[:0]).dtype)
            or not all(each.flags.c_contiguous for each in (values, *state))
            or any(each.shape != (len(values), of) for each, of in zip(state, columns, strict=True))
            or len({each.dtype for each in state}) > 1
            or any(half_width.widened(each[:0]).dtype != gradients.dtype for each in state)
        ):
            raise InvalidArrayError(
                f"{type(self).__name__}.apply: expected contiguous values and slots of one shape, "
                f"a gradient for each of {rows.size} rows, and one dtype; found gradients of "
                f"{gradients.dtype} and shape {gradients.shape}, and values and slots "
                f"{[(each.dtype.name, each.shape, each.strides) for each in (values, *state)]}"
            )
        place = np.zeros(kernels.PLACE, np.int64)
        at = kernels.VALUES
        place[at : at + 1 + len(state)] = [*map(kernels.address, (values, *state))]
        return place

    @abstractmethod
    def _numbers(self, rate: float, step: int, scalar: Scalar) -> Numbers:
        """Return the hyperparameters at a step, for the kernel."""

    @abstractmethod
    def _run(self, *arguments: Array) -> None:
        """Run the kernel.

        On places, offsets, rows, ids, gradients, the numbers and the seed of each table, and empty
        arrays like values and slots.
        """


def norm_of(
    rows: np.ndarray, ids: np.ndarray, gradients: np.ndarray, workspace: Workspace, *, gaps: bool
) -> float:
    """Return the norm of the gradients of rows, of which with ``gaps`` some may be below 0."""
    if not gaps:
        return kernels.norm(gradients)
    parts = workspace.parts(rows, ids, gradients, gaps=True)
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
