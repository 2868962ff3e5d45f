"""Shard: the tables of one shard of a strategy, and which closures' updates they have had. Pure.

A shard's state depends on its operations and their order alone: two shards that were given the same
ones hold the same. Not thread-safe; a server's one thread is its only user, so every operation is
atomic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from psnb.errors import ConfigurationError, InternalError
from psnb.server.commits import CommitLog
from psnb.server.tables import TABLES, Table

Creation = tuple[str, Mapping[str, Any]]
"""The operation that makes a table, and its arguments."""

Content = tuple[str, Mapping[str, Any], Mapping[str, Any]]
"""The same, and what the table holds."""


class Shard:
    """Holds tables and runs operations on them, one at a time.

    Parameters
    ----------
    name : str
        For messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tables: dict[str, Table] = {}
        self._creations: dict[str, Creation] = {}
        self._log = CommitLog()

    def call(self, table: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Run one operation.

        Parameters
        ----------
        table : str
            A table's name; empty for operations of the shard itself.
        operation : str
            One of the table's, or ``create_dense``, ``create_sparse``, ``drop``, ``commit``,
            ``forget`` (all commits), ``statistics``.
        arguments : mapping of str to Any
            Its keyword arguments.
        """
        if table:
            return self._held(table).call(operation, arguments)
        match operation:
            case "create_dense" | "create_sparse":
                # Once more, if its answer was lost: nobody has used it meanwhile.
                self._create(operation, arguments)
                return None
            case "drop":
                self._tables.pop(arguments["name"], None)
                self._creations.pop(arguments["name"], None)
                return None
            case "forget":
                self._log = CommitLog()
                return None
            case "commit":
                return self._commit(**arguments)
            case "statistics":
                return {name: held.nbytes() for name, held in self._tables.items()}
        raise InternalError(f"{self.name} has no operation {operation!r}")

    def changes(self, table: str, operation: str) -> bool:
        """Return whether an operation may change the shard."""
        return self._held(table).changes(operation) if table else operation != "statistics"

    def tables(self) -> tuple[str, ...]:
        """Return the names of all tables."""
        return tuple(self._tables)

    def creation(self, table: str) -> Creation:
        """Return what makes a table like this one, but for what it holds."""
        operation, arguments = self._creations[table]
        return operation, {**arguments, "optimizer": self._tables[table].optimizer()}

    def content(self, table: str) -> Content:
        """Return a copy of a table, for `install`."""
        return *self.creation(table), self._tables[table].content()

    def install(self, content: Content) -> None:
        """Make a table as it is elsewhere."""
        operation, arguments, held = content
        if "values" in arguments:
            arguments = {**arguments, "values": held["values"]}
        self._create(operation, arguments)
        self._tables[arguments["name"]].take_over(held)

    def log(self) -> CommitLog:
        """Return the commits that it has had; not a copy."""
        return self._log

    def take_log(self, log: CommitLog) -> None:
        """Count commits as done that were done elsewhere."""
        self._log = log

    def _create(self, operation: str, arguments: Mapping[str, Any]) -> None:
        name = arguments["name"]
        self._tables[name] = TABLES[operation](**arguments)
        if "values" in arguments:  # of its size, and of no use: what it holds is in the table
            arguments = {**arguments, "values": np.empty(0, arguments["values"].dtype)}
        self._creations[name] = operation, arguments

    def _commit(
        self,
        writer: str,
        number: int,
        settled_below: int,
        writes: Sequence[tuple[str, str, Mapping[str, Any]]],
    ) -> None:
        tables = [self._held(name) for name, _, _ in writes]  # none is written unless all are there
        if self._log.enter(writer, number, settled_below):
            for table, (_, operation, arguments) in zip(tables, writes, strict=True):
                table.write(operation, arguments)

    def _held(self, name: str) -> Table:
        held = self._tables.get(name)
        if held is None:
            raise ConfigurationError(f"{self.name} holds no {name!r}: it was dropped")
        return held
