"""ParameterShard: the tables of one shard of a strategy, and its log of commits. Pure.

A shard's state depends only on its operations and their order: two shards that ran the same ones
are equal. Not thread-safe; a server's one thread is its only user, so every operation is atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from psnb._src.server.commit_log import Commit, CommitLog, CommitState, Fact, LogEntry, Part
from psnb._src.server.rounds import COLLECTED, square_norm
from psnb._src.server.table import with_rates
from psnb._src.server.tables import TABLES, Table
from psnb.errors import ConfigurationError, InternalError

Creation = tuple[str, Mapping[str, Any]]
"""The operation that makes a table, and its arguments."""

Install = tuple[str, str, Any]
"""A step of filling a copy: ``("create", table, creation)``, ``("clear", table, None)``, ``("put",
table, piece)``, and last ``("finish", "", (tails by table, log of commits))``."""

_READS = frozenset({"square_norms", "statistics"})
"""Operations of a shard that do not change it."""


def build(operation: str, arguments: Mapping[str, Any]) -> Table:
    """Make a table."""
    return TABLES[operation](**arguments)


class ParameterShard:
    """Holds tables and runs operations on them, one at a time.

    Parameters
    ----------
    name : str
        For messages.
    make : callable
        Makes a table, or returns one that was made ahead.
    """

    def __init__(self, name: str, make: Callable[[str, Mapping[str, Any]], Table] = build) -> None:
        self.name = name
        self._make = make
        self._tables: dict[str, Table] = {}
        self._creations: dict[str, Creation] = {}
        self._log = CommitLog()

    @property
    def version(self) -> int:
        """The number of updates by closures so far."""
        return self._log.version

    def call(self, table: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Run one operation.

        Parameters
        ----------
        table : str
            A table's name; empty for operations of the shard itself.
        operation : str
            One of the table's, or ``create_dense``, ``create_sparse``, ``drop``; ``prepare``,
            ``apply``, ``give_up``, ``commit`` (the first two at once), ``fence`` (see
            `psnb._src.server.commit_log`), ``end_writer``; ``end_round``, ``square_norms``,
            ``statistics``.
        arguments : mapping of str to Any
            Its keyword arguments.
        """
        if table:
            return self._table(table).call(operation, arguments)
        match operation:
            case "create_dense" | "create_sparse":
                # Sent again, because the answer was lost: nobody has used the table meanwhile.
                self._create(operation, arguments)
                return None
            case "drop":
                self._tables.pop(arguments["name"], None)
                self._creations.pop(arguments["name"], None)
                return None
            case "prepare":
                self._prepare(**arguments)
                return None
            case "apply":
                return self._apply(self._log.find(**arguments))
            case "commit":
                return self._apply(self._prepare(**arguments))
            case "give_up":
                return self._log.give_up(**arguments)
            case "fence":
                return self._fence(**arguments)
            case "end_writer":
                return self._log.end(**arguments)
            case "end_round":
                return self._end_round(**arguments)
            case "square_norms":
                return self._square_norms(**arguments)
            case "statistics":
                return {name: table.nbytes() for name, table in self._tables.items()}
        raise InternalError(f"{self.name} has no operation {operation!r}")

    def decided(
        self, table: str, operation: str, arguments: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the arguments of an operation with all that a copy might decide in another way.

        These are the learning rates of a commit: users' functions give them, which may fail, or
        give two servers two numbers. Only the primary calls this, before each operation.

        Raises
        ------
        ConfigurationError
            If a learning rate cannot be computed.
        """
        if table or operation not in ("commit", "prepare"):
            return arguments
        part: Part = arguments["part"]
        if not self._log.expects(arguments["commit"]):
            return arguments  # sent again: what was decided first counts
        pushes = [(self._table(name), each) for name, kind, each in part.writes if kind == "push"]
        rated = iter(with_rates(pushes, as_one=part.round_number is not None))
        writes = [
            (name, kind, next(rated) if kind == "push" else each)
            for name, kind, each in part.writes
        ]
        return {**arguments, "part": part._replace(writes=writes)}

    def changes(self, table: str, operation: str) -> bool:
        """Return whether an operation may change the shard."""
        return self._table(table).changes(operation) if table else operation not in _READS

    def tick(self) -> None:
        """Count a minute."""
        self._log.tick()

    def tables(self) -> tuple[str, ...]:
        """Return the names of all tables."""
        return tuple(self._tables)

    def table(self, name: str) -> Table:
        """Return a table that is there."""
        return self._tables[name]

    def creation(self, name: str) -> Creation:
        """Return the operation that makes an empty table like this one."""
        operation, arguments = self._creations[name]
        return operation, {**arguments, "optimizer": self._tables[name].optimizer()}

    def tail(self, name: str) -> Mapping[str, Any]:
        """Return the part of a table that is not by row, and its optimizer."""
        table = self._tables[name]
        return {"tail": table.tail(), "skipped": table.skipped(), "optimizer": table.optimizer()}

    def log(self) -> CommitLog:
        """Return the log of commits itself, not a copy."""
        return self._log

    def install(self, steps: Sequence[Install]) -> None:
        """Take steps that make this shard equal to another; see `psnb._src.server.transfer`."""
        for kind, name, what in steps:
            match kind:
                case "create":
                    self._create(*what)
                case "clear":
                    self._tables[name].clear()
                case "put":
                    self._tables[name].put(what)
                case "finish":
                    self._finish(*what)

    def _finish(self, tails: Mapping[str, Mapping[str, Any]], log: CommitLog) -> None:
        for name, tail in tails.items():
            self._tables[name].check_tail(tail["tail"])
        self._tables = {name: self._tables[name] for name in tails}
        self._creations = {name: self._creations[name] for name in tails}
        for name, tail in tails.items():
            self._tables[name].take_over(**tail)
        self._log = log

    def _create(self, operation: str, arguments: Mapping[str, Any]) -> None:
        name = arguments["name"]
        self._tables[name] = self._make(operation, arguments)
        if "values" in arguments:  # large, and not needed: the table has them
            arguments = {**arguments, "values": np.empty(0, arguments["values"].dtype)}
        self._creations[name] = operation, arguments

    def _prepare(self, commit: Commit, part: Part) -> LogEntry:
        """Prepare a part of a commit, after all checks, so that applying it cannot fail."""
        for name, operation, _ in part.writes:
            self._table(name).check_write(operation)
        return self._log.prepare(commit, part)

    def _apply(self, entry: LogEntry) -> int | None:
        """Apply the writes of a commit, once, and return their staleness."""
        part, log = entry.part, self._log
        if entry.state is CommitState.APPLIED or part is None:
            return entry.staleness
        # First: an exception below is a bug, and the writes must not be tried again.
        entry.state, entry.part = CommitState.APPLIED, None
        commit, turn = entry.commit, part.round_number
        collected = [write for write in part.writes if turn is not None and write[1] in COLLECTED]
        if collected:
            log.rounds.collect(commit.writer, commit.number, collected)
        for name, operation, arguments in part.writes:
            table = self._tables.get(name)  # it may have been dropped meanwhile
            if table is not None and (turn is None or operation not in COLLECTED):
                table.write(operation, arguments)
        log.note(commit)
        if part.seen is not None:
            entry.staleness = max(0, log.version - part.seen) if part.seen >= 0 else 0
            log.version += turn is None
        return entry.staleness

    def _fence(
        self,
        attempts: Mapping[str, Mapping[int, int]],
        closed: Sequence[str] = (),
        settled: Mapping[str, int] | None = None,
    ) -> list[Fact]:
        """Report the state of some commits, and let only the notebook decide on them.

        Parameters
        ----------
        attempts : mapping
            By writer and number: the last attempt that may exist.
        closed : sequence of str
            Writers of which all commits are reported, and none is accepted from now on.
        settled : mapping of str to int
            By writer, the number below which all commits have ended.
        """
        for writer, below in (settled or {}).items():
            self._log.settle(writer, below)
        facts = [fact for writer in closed for fact in self._log.close(writer)]
        for writer, numbers in attempts.items():
            facts += self._log.fence(writer, numbers)
        return facts

    def _end_round(
        self, writer: str, number: int, closures: Sequence[int], norms: Mapping[str, float]
    ) -> None:
        """Apply what closures pushed in a round, once, as one update; see `Rounds`.

        ``norms`` has the norms of whole gradients, by table, where they are known.
        """
        rounds = self._log.rounds
        if rounds.over(writer, number):
            return
        for name, operation, arguments in rounds.averages(writer, closures):
            if name not in self._tables:
                continue  # it was dropped
            more = {"norm": norms[name]} if operation == "push" and name in norms else {}
            self._tables[name].write(operation, {**arguments, **more})
        rounds.end(writer, number)
        self._log.version += len(closures)

    def _square_norms(
        self, writer: str, number: int, closures: Sequence[int], tables: Sequence[str]
    ) -> dict[str, float]:
        """Return the squared norms of a round's gradients, by table, of those that were pushed."""
        rounds = self._log.rounds
        if rounds.over(writer, number):
            return {}
        return {
            name: square_norm(arguments)
            for name, operation, arguments in rounds.averages(writer, closures)
            if operation == "push" and name in tables
        }

    def _table(self, name: str) -> Table:
        found = self._tables.get(name)
        if found is None:
            raise ConfigurationError(f"{self.name} holds no {name!r}: it was dropped")
        return found
