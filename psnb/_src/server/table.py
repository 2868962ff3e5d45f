"""Table: one shard of a variable or embedding on a server, with its optimizer state. Pure.

Not thread-safe by design: a server runs every operation on one thread, so an operation is atomic,
and a snapshot falls between two updates. `psnb._src.parameters` checks arguments before they are
sent. Arrays that numpy or a compiled loop would misread are refused here as well
(`psnb._src.server.array_checks`), because they may come from elsewhere. An array that a table
returns is valid until the next operation; a caller that needs it for longer copies it (sending it
does).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, ClassVar, Protocol

import numpy as np

from psnb._src.server.optimizers import Optimizer
from psnb._src.server.updater import Updater
from psnb.errors import InternalError

Write = tuple[str, Mapping[str, Any]]
"""The name of a table's method that changes it, and its arguments."""

Piece = dict[str, np.ndarray]
"""Some rows of a table: the part of each of its arrays for these rows."""


class Watcher(Protocol):
    """Is told before rows of a table change."""

    def changing(self, rows: np.ndarray | None) -> None:
        """Take note of rows (distinct) that are about to change; None for all of them."""

    def renumbering(self) -> None:
        """Take note that rows are about to be removed or renumbered."""


class Table(ABC):
    """Base of the tables of a server.

    Because it may be large, checkpoints (`psnb._src.server.snapshot`) and transfers to a copy
    (`psnb._src.server.transfer`) read and write it in *pieces*: ranges of its rows. Everything that
    is not by row is its *tail*. The rows of a dense table are its numbers.

    Attributes
    ----------
    watchers : list of Watcher
        Told before rows change.
    """

    writes: ClassVar[frozenset[str]]
    """The methods that a closure's commit may call."""

    reads: ClassVar[frozenset[str]]
    """The methods that do not change the table."""

    controls: ClassVar[frozenset[str]] = frozenset(
        {"clear", "finish", "optimizer", "put", "skipped", "tune"}
    )
    """Operations on a whole table; in closures too, they happen at once."""

    _name: str
    _updater: Updater

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []

    @property
    @abstractmethod
    def extent(self) -> int:
        """How many rows it has."""

    @abstractmethod
    def nbytes(self) -> int:
        """Return the bytes of parameters, optimizer state and index."""

    @abstractmethod
    def piece(self, start: int, stop: int) -> Piece:
        """Return copies of the rows from ``start`` to ``stop``."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all content, before new pieces are loaded."""

    @abstractmethod
    def put(self, piece: Piece) -> None:
        """Load rows, which may come from other shards; existing rows are replaced.

        An invalid piece raises ConfigurationError, and nothing is changed.
        """

    def tail(self) -> Piece:
        """Return everything that is not by row, for `finish`."""
        return {"step": np.array([self._updater.step])}

    @abstractmethod
    def check_tail(self, tail: Piece) -> None:
        """Raise ConfigurationError unless this has the form that `tail` returns."""

    def finish(self, tail: Piece) -> None:
        """Load what `tail` returned, after all pieces.

        An invalid tail raises ConfigurationError, and nothing is changed.
        """
        self.check_tail(tail)
        self._updater.step = int(tail["step"][0])

    def state(self) -> Piece:
        """Return copies of all that a checkpoint needs."""
        return {**self.piece(0, self.extent), **self.tail()}

    @abstractmethod
    def check_state(self, state: Piece) -> None:
        """Raise ConfigurationError unless this has the form that `state` returns."""

    def load(self, state: Piece) -> None:
        """Load what `state` returned; raises as `put` does."""
        self.check_state(state)
        self.clear()
        self.put(state)
        self.finish(state)

    def take_over(self, tail: Piece, skipped: int, optimizer: Optimizer | None) -> None:
        """Take the counts and the optimizer of a table like this one."""
        self.finish(tail)
        self._updater.skipped, self._updater.optimizer = skipped, optimizer

    @abstractmethod
    def _saved(self, writes: Sequence[Write]) -> Callable[[], None]:
        """Return a function that undoes the effect of these writes."""

    def _changing(self, rows: np.ndarray | None) -> None:
        for watcher in self.watchers:
            watcher.changing(rows)

    def _renumbering(self) -> None:
        for watcher in self.watchers:
            watcher.renumbering()

    def check_write(self, operation: str) -> None:
        """Raise InternalError unless an operation is one of the `writes`."""
        self._require(self.writes, operation)

    def write(self, operation: str, arguments: Mapping[str, Any]) -> None:
        """Run one of the `writes`."""
        self._run(self.writes, operation, arguments)

    def preview(
        self, writes: Sequence[Write], read: str, arguments: Mapping[str, Any]
    ) -> np.ndarray:
        """Return what a read would return after some writes, without making them.

        So a closure sees its own writes before they are committed.
        """
        undo = self._saved(writes)
        step, skipped = self._updater.step, self._updater.skipped
        try:
            for operation, each in writes:
                self._rehearse(operation, each)
            result: np.ndarray = self._run(self.reads, read, arguments)
            return result.copy()  # before the writes are undone
        finally:
            undo()
            self._updater.step, self._updater.skipped = step, skipped

    def _rehearse(self, operation: str, arguments: Mapping[str, Any]) -> None:
        """Run a write that will be undone."""
        self.write(operation, arguments)

    def changes(self, operation: str) -> bool:
        """Return whether an operation may change the table."""
        return operation in self.writes or operation in {"clear", "finish", "put", "tune"}

    def skip(self, count: int) -> None:
        """Count updates, or rows of them, that were left out because they were not finite."""
        self._updater.skipped += count

    def skipped(self) -> int:
        """Return how many were left out because they were not finite, since the table was made."""
        return self._updater.skipped

    def optimizer(self) -> Optimizer | None:
        """Return the optimizer as it is now."""
        return self._updater.optimizer

    def rate(self, ahead: int) -> float:
        """Return the learning rate of a coming push; see `Updater.rate`."""
        return self._updater.rate(ahead)

    def tune(self, hyperparameters: Mapping[str, Any]) -> None:
        """Change hyperparameters of the optimizer, from the next update on."""
        self._updater.tune(hyperparameters)

    def call(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Run an operation that a request may call."""
        if operation == "preview":
            return self.preview(**arguments)
        return self._run(self.writes | self.reads | self.controls, operation, arguments)

    def _run(self, allowed: Set[str], operation: str, arguments: Mapping[str, Any]) -> Any:
        self._require(allowed, operation)
        return getattr(self, operation)(**arguments)

    def _require(self, allowed: Set[str], operation: str) -> None:
        if operation not in allowed:
            name = f"{type(self).__name__} {self._name!r}"
            raise InternalError(f"{name} has no operation {operation!r}")


def with_rates(
    pushes: Iterable[tuple[Table, Mapping[str, Any]]], *, as_one: bool = False
) -> list[Mapping[str, Any]]:
    """Return the arguments of pushes, each with the learning rate that its table has for it.

    Parameters
    ----------
    pushes : iterable of tuple
        Each with its table, in the order in which they will be applied.
    as_one : bool
        Whether a table's pushes will be one update.

    Raises
    ------
    ConfigurationError
        If a learning rate cannot be computed.
    """
    ahead: Counter[Table] = Counter()
    found: list[Mapping[str, Any]] = []
    for table, arguments in pushes:
        found.append({**arguments, "rate": table.rate(ahead[table])})
        ahead[table] += not as_one
    return found
