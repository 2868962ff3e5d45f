"""Table: what a server holds, a shard of a variable or embedding with its optimizer state. Pure.

Not thread-safe by design: a server runs every operation on one thread, so an operation is atomic,
and a snapshot falls between two updates. Arguments come checked by the handles
(`psnb._src.parameters`). What numpy or a compiled loop would take wrongly is refused here all the
same (`psnb._src.server.array_checks`): it may come from elsewhere. What a table returns is as it is
until the next operation: whoever wants it for longer copies it, which sending it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, ClassVar, Protocol

import numpy as np

from psnb._src.server.optimizers import Optimizer
from psnb._src.server.updater import Updater
from psnb.errors import InternalError

Write = tuple[str, Mapping[str, Any]]
"""The name of a table's method that changes it, and its arguments."""

Piece = dict[str, np.ndarray]
"""Some rows of a table: for each of its arrays, what these rows have."""


class Watcher(Protocol):
    """Somebody who follows what becomes of a table's rows."""

    def changing(self, rows: np.ndarray | None) -> None:
        """Hear that rows (distinct) are about to change; None for all of them."""

    def renumbering(self) -> None:
        """Hear that rows are about to be removed or to get other numbers."""


class Table(ABC):
    """What a server can hold.

    It is read and written in *pieces*, ranges of its rows, where it may be large: by checkpoints
    (`psnb._src.server.snapshot`) and to fill a copy (`psnb._src.server.transfer`). What is not by
    row is its *tail*. A dense table's rows are its numbers.

    Attributes
    ----------
    watchers : list of Watcher
        Told before rows change.
    """

    writes: ClassVar[frozenset[str]]
    """The methods that a closure's commit may call."""

    reads: ClassVar[frozenset[str]]
    """The methods that leave the table as it is."""

    controls: ClassVar[frozenset[str]] = frozenset(
        {"clear", "finish", "optimizer", "put", "skipped", "tune"}
    )
    """Operations on a table as a whole, of the notebook and of closures at once."""

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
        """Forget what it holds: it is put in anew."""

    @abstractmethod
    def put(self, piece: Piece) -> None:
        """Take over rows, which may come from other shards; those that are here are replaced.

        What is no such piece raises ConfigurationError, and nothing is changed.
        """

    def tail(self) -> Piece:
        """Return what is not by row, for `finish`."""
        return {"step": np.array([self._updater.step])}

    @abstractmethod
    def check_tail(self, tail: Piece) -> None:
        """Raise ConfigurationError unless this is what `tail` returns."""

    def finish(self, tail: Piece) -> None:
        """Take over what `tail` returned, once all pieces are here.

        What is no such tail raises ConfigurationError, and nothing is changed.
        """
        self.check_tail(tail)
        self._updater.step = int(tail["step"][0])

    def state(self) -> Piece:
        """Return copies of all that a checkpoint needs."""
        return {**self.piece(0, self.extent), **self.tail()}

    @abstractmethod
    def check_state(self, state: Piece) -> None:
        """Raise ConfigurationError unless this is what `state` returns."""

    def load(self, state: Piece) -> None:
        """Take over what `state` returned; refused as by `put`."""
        self.check_state(state)
        self.clear()
        self.put(state)
        self.finish(state)

    def take_over(self, tail: Piece, skipped: int, optimizer: Optimizer | None) -> None:
        """Go on from what a table like this one has counted and was set to."""
        self.finish(tail)
        self._updater.skipped, self._updater.optimizer = skipped, optimizer

    @abstractmethod
    def _saved(self, writes: Sequence[Write]) -> Callable[[], None]:
        """Return what undoes the effect of the writes to come."""

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
        """Return what a read would return after some writes, which are not made.

        So a closure sees its own writes before they are committed.
        """
        undo = self._saved(writes)
        step, skipped = self._updater.step, self._updater.skipped
        try:
            for operation, each in writes:
                self._rehearse(operation, each)
            result: np.ndarray = self._run(self.reads, read, arguments)
            return result.copy()  # before what it shows is undone
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
        """Return how many were left out since the table was made."""
        return self._updater.skipped

    def optimizer(self) -> Optimizer | None:
        """Return the optimizer as it is now."""
        return self._updater.optimizer

    def tune(self, hyperparameters: Mapping[str, Any]) -> None:
        """Change hyperparameters of the optimizer, from the next update on."""
        self._updater.tune(hyperparameters)

    def call(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Run any operation that may be called from elsewhere."""
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
