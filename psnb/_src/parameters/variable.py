"""Variable: a dense array that lives on parameter servers.

A handle is a description and a way to the servers; it pickles into closures as the description
alone. It keeps no state, so any number of threads may use one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.parameters.dense_shards import DenseShards
from psnb._src.parameters.gradients import must_skip
from psnb._src.parameters.parameter_arguments import checked_array, checked_rows, require_optimizer
from psnb._src.parameters.request_batch import Request
from psnb._src.parameters.updates import PendingRead, TableWrite, read_request
from psnb._src.server import all_finite, copy_with_norm, norm
from psnb.errors import GradientError


class Variable(DenseShards):
    """A dense array on the parameter servers; made by `ParameterServerStrategy.variable`.

    Thread-safe; usable in the notebook, in closures and in Dask tasks. Each operation is atomic for
    each shard (a variable without a partitioner has one), and a write is made on all shards or none
    (a `ServerSilentError` says if it may be on some).

    In a closure, all writes are held back until it ends and then applied together, exactly once,
    also when the closure runs again because its worker died; if it raises, none is. Its own reads
    see them. Many steps in one closure are better written with ``immediate=True``: what is held
    back travels with each read. That is so in mode `Async` and with `BoundedStaleness`; see `Sync`
    and `Geo` for what becomes of a push there.

    Attributes
    ----------
    name : str
        Unique within the strategy.
    shape : tuple of int
        The array's shape.
    dtype : numpy.dtype
        The array's dtype.
    """

    def __repr__(self) -> str:
        return f"<psnb.Variable {self.name!r} {self.dtype}{list(self.shape)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Variable, (
            self.name,
            self.shape,
            self.dtype,
            self._made,
            self._shards,
            None,
            self._nonfinite,
        )

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
        return self.reading().fetch()

    def reading(self, rows: ArrayLike | None = None) -> PendingRead:
        """Return how the value, or some rows of it, are read; for `psnb.pull`."""
        if rows is None:
            requests = [read_request(s.shard, s.table, ("read", {})) for s in self._shards]
            return PendingRead(self.transport, requests, self._joined)
        checked = checked_rows(rows, self.name, self.shape)
        flat = checked.reshape(-1)
        parts = self._split_rows(flat)
        requests = [
            read_request(s.shard, s.table, ("gather", {"rows": flat[at] - s.start}))
            for s, at in parts
        ]

        def value(answers: list[np.ndarray]) -> np.ndarray:
            out = np.empty((flat.size, *self.shape[1:]), self.dtype)
            for (_, at), values in zip(parts, answers, strict=True):
                out[at] = values
            return out.reshape((*checked.shape, *self.shape[1:]))

        return PendingRead(self.transport, requests, value)

    def gather(self, rows: ArrayLike) -> np.ndarray:
        """Fetch some rows: what ``read()[rows]`` is, without the others.

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
        GradientError
            If the rows are not integers, or the variable is a single number.
        ServerLostError
            If a server is gone.
        """
        return self.reading(rows).fetch()

    def assign(self, value: ArrayLike, *, immediate: bool = False) -> None:
        """Replace the value; optimizer state stays as it is.

        Parameters
        ----------
        value : array_like
            Of `shape`; an array must have `dtype`, Python numbers are converted.
        immediate : bool
            In a closure: write now, not at its end; at least once then.

        Raises
        ------
        GradientError
            If shape or dtype differ; nothing was changed.
        ServerLostError
            If a server is gone.
        """
        self._write("assign", "values", self._checked(value, "value"), immediate)

    def assign_add(self, value: ArrayLike, *, immediate: bool = False) -> None:
        """Add to the value; see `assign` for parameters and errors."""
        self._write("add", "values", self._checked(value, "value"), immediate)

    def assign_sub(self, value: ArrayLike, *, immediate: bool = False) -> None:
        """Subtract from the value; see `assign` for parameters and errors."""
        self._write("add", "values", -self._checked(value, "value"), immediate)

    def scatter_update(
        self, rows: ArrayLike, values: ArrayLike, *, immediate: bool = False
    ) -> None:
        """Replace some rows; optimizer state stays as it is.

        Parameters
        ----------
        rows : array_like of int
            Positions along the first axis, of any shape. Of a row that is there more than once the
            last value counts (TensorFlow leaves it open which).
        values : array_like
            ``rows.shape + shape[1:]``; an array must have `dtype`.
        immediate : bool
            In a closure: write now, not at its end; at least once then.

        Raises
        ------
        IdOutOfRangeError
            If a row is outside the variable; nothing was changed.
        GradientError
            If shape or dtype differ, or the rows are not integers; nothing was changed.
        ServerLostError
            If a server is gone.
        """
        self._scatter("scatter_assign", rows, values, immediate)

    def scatter_add(self, rows: ArrayLike, values: ArrayLike, *, immediate: bool = False) -> None:
        """Add to some rows; the values of a row that is there more than once add up.

        See `scatter_update` for parameters and errors.
        """
        self._scatter("scatter_add", rows, values, immediate)

    def scatter_sub(self, rows: ArrayLike, values: ArrayLike, *, immediate: bool = False) -> None:
        """Subtract from some rows; see `scatter_add`."""
        self._scatter("scatter_add", rows, values, immediate, sign=-1)

    def push(self, gradient: ArrayLike, *, immediate: bool = False) -> None:
        """Let the optimizer on the servers apply a gradient.

        Parameters
        ----------
        gradient : array_like
            Of `shape`; an array must have `dtype`.
        immediate : bool
            In a closure: write now, not at its end; at least once then.

        Raises
        ------
        GradientError
            If shape or dtype differ, or if a number is not finite and the variable was not made
            with ``nonfinite="skip"`` or ``"allow"``; nothing was changed.
        ConfigurationError
            If the variable was made without an optimizer.
        ServerLostError
            If a server is gone.
        """
        self.send(self.pushing(gradient), immediate)

    def pushing(self, gradient: ArrayLike) -> list[TableWrite]:
        """Return what a push writes where; for `psnb.push`."""
        require_optimizer(self._made, self.name)
        array = self._checked(gradient, "gradient")
        parts, size = self._written(array)
        what = f"gradient for variable {self.name!r}"
        finite = math.isfinite(size) or all_finite(array)
        if not finite and must_skip(array, self._nonfinite, what):
            first = self._shards[0]
            return [(first.shard, first.table, ("skip", {"count": 1}))]
        # The norm costs what looking for NaN and infinities does, and tells of them: so it is
        # always sent, and clipnorm can be switched on live.
        return [
            (s.shard, s.table, ("push", {"gradient": part, "norm": size}))
            for s, part in zip(self._shards, parts, strict=True)
        ]

    def skipped(self) -> int:
        """Return how many updates were left out because they were not finite; asks the servers.

        Counted with ``nonfinite="skip"``, since the variable was made. What a closure pushes counts
        when the closure has ended.
        """
        requests = [Request(s.shard, s.table, "skipped", {}) for s in self._shards]
        return sum(self.transport.call(requests))

    def _written(self, array: np.ndarray) -> tuple[list[np.ndarray], float]:
        """Return what each shard gets of a gradient, and the norm of the whole.

        In memory that the servers see, if there is such: then it is looked at and copied in one go.
        """
        parts, norms = [], []
        for shard, part in zip(self._shards, self._parts(array), strict=True):
            lent = self.transport.lend(shard.shard, part.shape, part.dtype)
            norms.append(norm(part) if lent is None else copy_with_norm(part, lent))
            if lent is not None:
                lent.flags.writeable = False
            parts.append(part if lent is None else lent)
        return parts, math.hypot(*norms)

    def _checked(self, value: ArrayLike, what: str) -> np.ndarray:
        array = checked_array(value, self.dtype, f"{what} for variable {self.name!r}")
        if array.shape != self.shape:
            raise GradientError(
                f"{what} for variable {self.name!r}: expected shape {self.shape}, "
                f"found {array.shape}"
            )
        return array

    def _scatter(
        self, operation: str, rows: ArrayLike, values: ArrayLike, immediate: bool, sign: int = 1
    ) -> None:
        checked = checked_rows(rows, self.name, self.shape)
        array = checked_array(values, self.dtype, f"values for variable {self.name!r}")
        expected = (*checked.shape, *self.shape[1:])
        if array.shape != expected:
            raise GradientError(
                f"values for variable {self.name!r}: expected shape {expected} for rows of shape "
                f"{checked.shape}, found {array.shape}"
            )
        flat = checked.reshape(-1)
        array = (array if sign > 0 else -array).reshape(flat.size, *self.shape[1:])
        self.send(
            [
                (
                    s.shard,
                    s.table,
                    (operation, {"rows": flat[where] - s.start, "values": array[where]}),
                )
                for s, where in self._split_rows(flat)
            ],
            immediate,
        )

    def _write(self, operation: str, key: str, array: np.ndarray, immediate: bool) -> None:
        parts = zip(self._shards, self._split(key, array), strict=True)
        self.send([(s.shard, s.table, (operation, part)) for s, part in parts], immediate)
