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
from psnb.server.rounds import HELD, Write, square_norm
from psnb.server.tables import TABLES, Table

Creation = tuple[str, Mapping[str, Any]]
"""The operation that makes a table, and its arguments."""

Content = tuple[str, Mapping[str, Any], Mapping[str, Any]]
"""The same, and what the table holds."""

_READS = frozenset({"holds", "square_norms", "statistics"})
"""Operations of a shard that leave it as it is."""


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

    @property
    def version(self) -> int:
        """How many updates of closures it has had."""
        return self._log.version

    def call(self, table: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Run one operation.

        Parameters
        ----------
        table : str
            A table's name; empty for operations of the shard itself.
        operation : str
            One of the table's, or ``create_dense``, ``create_sparse``, ``drop``, ``commit``,
            ``end_round``, ``square_norms``, ``holds`` (the pushes of a closure, in what a worker's
            copies have learned), ``forget`` (all commits), ``statistics``.
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
            case "end_round":
                return self._end_round(**arguments)
            case "square_norms":
                return self._square_norms(**arguments)
            case "holds":
                return self._log.has(*_held_by(**arguments))
            case "statistics":
                return {name: held.nbytes() for name, held in self._tables.items()}
        raise InternalError(f"{self.name} has no operation {operation!r}")

    def changes(self, table: str, operation: str) -> bool:
        """Return whether an operation may change the shard."""
        return self._held(table).changes(operation) if table else operation not in _READS

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
        writes: Sequence[Write],
        seen: int | None = None,
        round_number: int | None = None,
        holds: Sequence[tuple[str, int, int]] = (),
    ) -> int | None:
        """Make writes, once, and return how stale they were.

        Parameters
        ----------
        writer, number, settled_below
            See `CommitLog.enter`.
        writes : sequence of Write
            In order.
        seen : int, optional
            For a closure's update: the version that it has read first, or -1.
        round_number : int, optional
            The round that a closure runs in: what it has pushed waits for the round's end.
        holds : sequence of tuple
            Writer, number and ``settled_below`` of closures whose pushes are in it, for ``holds``.
        """
        log = self._log
        if round_number is not None and log.rounds.over(writer, round_number):
            return None  # of a worker that was given up for dead
        held = [write for write in writes if round_number is not None and write[1] in HELD]
        now = [write for write in writes if round_number is None or write[1] not in HELD]
        tables = [self._held(name) for name, _, _ in now]  # none is written unless all are there
        if held:
            # Whatever the log says: what it had pushed in a round that is over did not count.
            log.rounds.hold(writer, number, held)
        if log.enter(writer, number, settled_below):
            for table, (_, operation, arguments) in zip(tables, now, strict=True):
                table.write(operation, arguments)
            for closure in holds:
                log.enter(*_held_by(*closure))
            if seen is not None:
                log.measure(writer, number, seen)
                log.version += round_number is None
        return log.staleness(writer, number)

    def _end_round(
        self, writer: str, number: int, closures: Sequence[int], norms: Mapping[str, float]
    ) -> None:
        """Apply what closures pushed in a round, once, as one update; see `Rounds`.

        ``norms`` has the norms of whole gradients, for the tables where they are known.
        """
        rounds = self._log.rounds
        if rounds.over(writer, number):
            return
        for name, operation, arguments in rounds.averages(writer, closures):
            if name not in self._tables:
                continue  # this is a copy, which will get the table as it is after this
            more = {"norm": norms[name]} if operation == "push" and name in norms else {}
            self._tables[name].write(operation, {**arguments, **more})
        rounds.end(writer, number)
        self._log.version += len(closures)

    def _square_norms(
        self, writer: str, number: int, closures: Sequence[int], tables: Sequence[str]
    ) -> dict[str, float]:
        """Return the squares of the norms of a round's gradients, of tables that were pushed."""
        rounds = self._log.rounds
        if rounds.over(writer, number):
            return {}
        return {
            name: square_norm(arguments)
            for name, operation, arguments in rounds.averages(writer, closures)
            if operation == "push" and name in tables
        }

    def _held(self, name: str) -> Table:
        held = self._tables.get(name)
        if held is None:
            raise ConfigurationError(f"{self.name} holds no {name!r}: it was dropped")
        return held


def _held_by(writer: str, number: int, settled_below: int) -> tuple[str, int, int]:
    """Return under what a closure's pushes are entered that came in another commit than its own."""
    return f"{writer}, by copies", number, settled_below
