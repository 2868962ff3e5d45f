"""Variable: a dense array that lives on parameter servers.

It refers to `DenseShards` and keeps no values itself, so any number of threads may use one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.parameter_shards import LiveOptimizer
from psnb._src.client.updates import ShardWrite, weigh, write
from psnb._src.server.tables import operations as ops
from psnb._src.utils.foreign_names import FixedAttributes
from psnb._src.utils.phases import PULL, PUSH, counted_as


class Variable(FixedAttributes):
    """A dense array on the parameter servers; made by `ParameterServerStrategy.variable`.

    Thread-safe; usable in the notebook, in closures and in Dask tasks. Each operation is atomic for
    each shard (a variable without a partitioner has one). A write is made on all shards or none;
    only after a `ServerUnresponsiveError` it may be on some.

    In a closure, all writes are held back until it ends and then applied together, exactly once,
    also when the closure runs again because its worker died. If it raises, none is applied. Its own
    reads see them. For many steps in one closure use ``immediate=True``, because held-back writes
    travel with each read. This describes the modes `Async` and `BoundedStaleness`; see `Sync` and
    `Geo` for pushes there.
    """

    def __init__(self, shards: DenseShards) -> None:
        self._shards = shards

    def __repr__(self) -> str:
        return f"<psnb.Variable {self.name!r} {self.dtype}{list(self.shape)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Variable, (self._shards,)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        # For ``np.asarray``. The value is fetched, so this is a copy in any case.
        if copy is False:
            raise ValueError(f"variable {self.name!r} is on servers: its value must be copied")
        return self.read().astype(dtype or self.dtype, copy=False)

    @property
    def name(self) -> str:
        """Its name; unique within the strategy."""
        return self._shards.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self._shards.shape

    @property
    def dtype(self) -> np.dtype:
        """The array's dtype."""
        return self._shards.dtype

    @property
    def optimizer(self) -> LiveOptimizer | None:
        """What the servers do with pushed gradients; its hyperparameters can be set live."""
        return self._shards.optimizer

    @counted_as(PULL)
    def read(self) -> np.ndarray:
        """Fetch the current value.

        Returns
        -------
        numpy.ndarray
            A copy of its own, of `shape` and `dtype`.

        Raises
        ------
        ServerLostError
            If a server that holds a part of it is gone.
        """
        return self._shards.reading().fetch()

    @counted_as(PULL)
    def gather(self, rows: ArrayLike) -> np.ndarray:
        """Fetch some rows: the value of ``read()[rows]``, without fetching the others.

        Parameters
        ----------
        rows : array_like of int
            Positions along the first axis, of any shape; rows may repeat, none is negative.

        Returns
        -------
        numpy.ndarray
            ``rows.shape + shape[1:]`` of `dtype`, a copy of its own.

        Raises
        ------
        IdOutOfRangeError
            If a row is outside the variable.
        InvalidArrayError
            If the rows are not integers, or the variable is a single number.
        ServerLostError
            If a server is gone.
        """
        return self._shards.reading(rows).fetch()

    @counted_as(PUSH)
    def assign(self, value: ArrayLike, *, immediate: bool = False) -> None:
        """Replace the value; optimizer state stays as it is.

        Parameters
        ----------
        value : array_like
            Of `shape`; an array must have `dtype`, Python numbers are converted.
        immediate : bool
            In a closure: write now, not at its end. Such a write happens at least once.

        Raises
        ------
        InvalidArrayError
            If shape or dtype differ; nothing was changed.
        ServerLostError
            If a server is gone.
        """
        self._send(self._shards.writing(ops.AssignValues, value), immediate)

    @counted_as(PUSH)
    def assign_add(self, value: ArrayLike, *, immediate: bool = False) -> None:
        """Add to the value; see `assign` for parameters and errors."""
        self._send(self._shards.writing(ops.AddValues, value), immediate)

    @counted_as(PUSH)
    def assign_sub(self, value: ArrayLike, *, immediate: bool = False) -> None:
        """Subtract from the value; see `assign` for parameters and errors."""
        self._send(self._shards.writing(ops.AddValues, value, sign=-1), immediate)

    @counted_as(PUSH)
    def scatter_update(
        self, rows: ArrayLike, values: ArrayLike, *, immediate: bool = False
    ) -> None:
        """Replace some rows; optimizer state stays as it is.

        Parameters
        ----------
        rows : array_like of int
            Positions along the first axis, of any shape. If a row is repeated, its last value
            counts (TensorFlow leaves open which one counts).
        values : array_like
            ``rows.shape + shape[1:]``; an array must have `dtype`.
        immediate : bool
            In a closure: write now, not at its end. Such a write happens at least once.

        Raises
        ------
        IdOutOfRangeError
            If a row is outside the variable; nothing was changed.
        InvalidArrayError
            If shape or dtype differ, or the rows are not integers; nothing was changed.
        ServerLostError
            If a server is gone.
        """
        self._send(self._shards.scattering(ops.AssignRows, rows, values), immediate)

    @counted_as(PUSH)
    def scatter_add(self, rows: ArrayLike, values: ArrayLike, *, immediate: bool = False) -> None:
        """Add to some rows; the values of repeated rows add up.

        See `scatter_update` for parameters and errors.
        """
        self._send(self._shards.scattering(ops.AddRows, rows, values), immediate)

    @counted_as(PUSH)
    def scatter_sub(self, rows: ArrayLike, values: ArrayLike, *, immediate: bool = False) -> None:
        """Subtract from some rows; see `scatter_add`."""
        self._send(self._shards.scattering(ops.AddRows, rows, values, sign=-1), immediate)

    @counted_as(PUSH)
    def push(
        self, gradient: ArrayLike, *, immediate: bool = False, weight: float | None = None
    ) -> None:
        """Let the optimizer on the servers apply a gradient.

        Parameters
        ----------
        gradient : array_like
            Of `shape`; an array must have `dtype`.
        immediate : bool
            In a closure: write now, not at its end. Such a write happens at least once.
        weight : float, optional
            In mode `Sync`, what the closure's batch counts in its round, such as its number of
            examples, where ``gradient`` is of a mean over it; see there.

        Raises
        ------
        InvalidArrayError
            If shape or dtype differ, or if a number is not finite and the variable was not made
            with ``nonfinite="skip"`` or ``"allow"``; nothing was changed.
        ConfigurationError
            If the variable was made without an optimizer.
        ServerLostError
            If a server is gone.
        """
        writes = self._shards.pushing(gradient)
        if weight is not None:
            weigh(weight)
        self._send(writes, immediate)

    def skipped(self) -> int:
        """Return how many updates were left out because they were not finite; asks the servers.

        Counted with ``nonfinite="skip"``, since the variable was made. A closure's pushes count
        when the closure has ended.
        """
        return sum(self._shards.ask_all(ops.CountSkipped()))

    def _send(self, writes: Sequence[ShardWrite], immediate: bool) -> None:
        write(self._shards.server_client, writes, immediate=immediate)
