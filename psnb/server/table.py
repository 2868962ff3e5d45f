"""Table: what a server holds, a shard of a variable or embedding with its optimizer state. Pure.

Not thread-safe by design: a server runs every operation on one thread, so an operation is atomic,
and a snapshot (`state`) falls between two updates. Arguments come checked by the handles
(`psnb.parameters`). What a table returns is as it is until the next operation: whoever wants it for
longer copies it, which sending it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, ClassVar

import numpy as np

from psnb.errors import InternalError
from psnb.server.optimizers import Optimizer
from psnb.server.updater import Updater

Write = tuple[str, Mapping[str, Any]]
"""The name of a table's method that changes it, and its arguments."""


class Table(ABC):
    """What a server can hold."""

    writes: ClassVar[frozenset[str]]
    """The methods that a closure's commit may call."""

    reads: ClassVar[frozenset[str]]
    """The methods that leave the table as it is."""

    controls: ClassVar[frozenset[str]] = frozenset({"load", "optimizer", "skipped", "tune"})
    """Operations on a table as a whole, of the notebook and of closures at once."""

    _name: str
    _updater: Updater

    @abstractmethod
    def nbytes(self) -> int:
        """Return the bytes of parameters, optimizer state and index."""

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """Return copies of what a checkpoint needs."""

    @abstractmethod
    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `state` returned."""

    @abstractmethod
    def _saved(self, writes: Sequence[Write]) -> Callable[[], None]:
        """Return what undoes the effect of the writes to come."""

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
        return operation in self.writes or operation in {"load", "tune"}

    def content(self) -> dict[str, Any]:
        """Return a copy of all that the table holds, for `take_over`."""
        return {**self.state(), "skipped": self._updater.skipped}

    def take_over(self, content: Mapping[str, Any]) -> None:
        """Hold what `content` returned elsewhere."""
        self.load({key: value for key, value in content.items() if key != "skipped"})
        self._updater.skipped = content["skipped"]

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
        if operation not in allowed:
            name = f"{type(self).__name__} {self._name!r}"
            raise InternalError(f"{name} has no operation {operation!r}")
        return getattr(self, operation)(**arguments)
