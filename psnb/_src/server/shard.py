"""ParameterShard: the tables of one shard of a strategy, and its log of commits. Pure.

A shard's state depends only on its operations and their order: two shards that ran the same ones
are equal. Not thread-safe; a server's one thread is its only user, so every operation is atomic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np

from psnb._src.server import operations as ops
from psnb._src.server.commit_log import Commit, CommitLog, CommitRecord, CommitState, LogEntry, Part
from psnb._src.server.making import build
from psnb._src.server.marks import MOST_MARKS, Mark
from psnb._src.server.memory import refusal
from psnb._src.server.rounds import square_norm
from psnb._src.server.tables.checks import forms
from psnb._src.server.tables.fused import reserve_push, run_on_rows
from psnb._src.server.tables.operations import (
    COUNTING,
    CountMinute,
    FinishTable,
    LookUpRows,
    OnTables,
    Preview,
    Push,
    PushRows,
    RowsOperation,
    ShardOperation,
    ShrinkTable,
    TableRead,
    ids_used,
)
from psnb._src.server.tables.table import ReservedWrite, Table, with_rates
from psnb._src.utils.range_set import Bounds
from psnb.errors import (
    CheckpointError,
    ConfigurationError,
    InternalError,
    OwnershipLostError,
    StaleMarkError,
)

_COMMITS = (ops.CommitPart, ops.PreparePart)

_AFTER_LOADING = (*_COMMITS, ops.ApplyCommit, ops.CommitParts, ops.EndRound, ops.TakeSnapshot)
_TABLES_AFTER_LOADING = (TableRead, Preview, ShrinkTable)
"""What waits while tables are loaded; other operations load them, or only describe."""


class ParameterShard:
    """Holds tables and runs operations on them, one at a time.

    Parameters
    ----------
    name : str
        For messages.
    make : callable
        Makes a table, or returns one that was made ahead.
    """

    def __init__(self, name: str, make: Callable[[ops.CreateTable], Table] = build) -> None:
        self.name = name
        self._make = make
        self._tables: dict[str, Table] = {}
        self._creations: dict[str, ops.CreateDense | ops.CreateSparse] = {}
        self._leaving: set[str] = set()  # tables of which rows leave
        self.log = CommitLog()
        self.ended: ops.EndRound | None = None  # the end of the latest round
        self._marks: dict[str, Mark] = {}

    def run(self, operation: ShardOperation) -> Any:
        match operation:
            case OnTables(names, RowsOperation() as of_rows):
                return run_on_rows(self._all(names), of_rows)
            case OnTables(names, inner):
                return self._only(names).run(inner)
            case ops.CommitPart(commit, part):
                return self._apply(self._prepare(commit, part))
            case ops.PreparePart(commit, part):
                self._prepare(commit, part)
                return None
            case ops.ApplyCommit(commit, decided):
                return self._apply(self.log.find(commit, decided=decided))
            case ops.GiveUpCommit(commit, decided):
                return self.log.give_up(commit, decided=decided)
            case ops.FenceCommits(attempts, closed, settled):
                return self.fence(attempts, closed, settled)
            case ops.EndWriter(writer):
                return self.log.end(writer)
            case ops.CloseLog():
                rounds = self.log.rounds
                loading = bool(self.log.loading)
                return ops.ClosedLog(self.log.close_to_all(), self.ended, rounds.held(), loading)
            case ops.OpenLog():
                self.log, self.ended = CommitLog(self.log.version), None
                for mark in list(self._marks):  # those of the owner before
                    self._drop_mark(mark)
                return None
            case ops.BeginLoading(key, applied):
                for each in applied:
                    self._apply(self.log.find(each, decided=True))
                return self.log.begin_loading(key)
            case ops.CountLoading(key, table, place):
                if not self.log.loads(key, table, place):
                    raise CheckpointError(
                        f"{table!r} of {self.name} was not changed: what was to load it has "
                        "ended, or began when another server had it"
                    )
                return None
            case ops.EndLoading(key, drops):
                if self.log.end_loading(key) and drops:
                    for name in self.tables():
                        self._drop(name)
                return None
            case ops.SetMark(mark, moment):
                return self._set_mark(mark, moment)
            case ops.DropMark(mark):
                return self._drop_mark(mark)
            case ops.DescribeMark(mark, moment):
                return self._marked(mark, moment).describe(self._tables)
            case ops.SquareNorms():
                return self._square_norms(operation)
            case ops.EndRound():
                return self._end_round(operation)
            case ops.CreateDense() | ops.CreateSparse():
                # Sent again, because the answer was lost: the table was not used meanwhile.
                return self._create(operation)
            case ops.DropTable(name):
                self._drop(name)
                return None
            case ops.MeasureTables():
                return {name: table.nbytes() for name, table in self._tables.items()}
            case ops.FinishReplica(tails, log, ended):
                return self._finish(tails, log, ended)
        raise InternalError(f"{self.name} has no operation {operation}")

    def waits(self, operation: ShardOperation) -> bool:
        """Return whether an operation must wait until tables are loaded.

        It might find one in part, or be there in part itself. Only the primary calls this.
        """
        if not self._is_loaded:
            return False
        if isinstance(operation, OnTables):
            return isinstance(operation.operation, _TABLES_AFTER_LOADING)
        return isinstance(operation, _AFTER_LOADING)

    @property
    def _is_loaded(self) -> bool:
        # When another process takes over, the one that loads has gone.
        return bool(self.log.loading) and not self.log.closed

    def decided(self, operation: ShardOperation) -> ShardOperation:
        """Return an operation with all that a copy might decide in another way.

        These are the learning rates of a commit: users' functions give them, which may fail, or
        give two servers two numbers; and of a mark, whether it is made, and the name of its moment.
        Only the primary calls this, before each operation.

        Raises
        ------
        ConfigurationError
            If a learning rate cannot be computed.
        """
        if isinstance(operation, ops.SetMark):
            return ops.SetMark(operation.mark, "" if operation.mark in self._marks else uuid4().hex)
        if not isinstance(operation, _COMMITS):
            return operation
        part = operation.part
        pushes = [
            (self._all(write.tables), write.operation)
            for write in part.writes
            if isinstance(write.operation, Push)
        ]
        by_users = [True for tables, _ in pushes for table in tables if table.updater.by_user]
        # A part that is applied later, when all have prepared it or at the end of a round, might
        # find a function there by then, which fails.
        at_once = isinstance(operation, ops.CommitPart) and part.round_number is None
        if at_once and not by_users:
            return operation
        if not self.log.expects(operation.commit):
            return operation  # sent again: the first decision counts
        rated = iter(with_rates(pushes, as_one=part.round_number is not None))
        writes = [
            OnTables(write.tables, next(rated)) if isinstance(write.operation, Push) else write
            for write in part.writes
        ]
        return msgspec.structs.replace(operation, part=part._replace(writes=writes))

    def before(self, operation: ShardOperation) -> Iterator[OnTables]:
        """Yield what must be done first, here and on all replicas: which rows are to leave next.

        And that ids are forgotten that wait for one.

        Only the primary calls this; a user's function may choose others on each server. It may
        yield nothing although an operation will be refused.

        Raises
        ------
        ConfigurationError
            If a user's function fails.
        """
        if not self._leaving:
            return
        sizes: Counter[str] = Counter()
        writes = operation.part.writes if isinstance(operation, _COMMITS) else [operation]
        for write in writes:
            if isinstance(write, OnTables):
                for name in self._leaving.intersection(write.tables):
                    sizes[name] += ids_used(write.on(name))
        for name, size in sizes.items():
            read = None
            if isinstance(operation, OnTables) and isinstance(operation.operation, LookUpRows):
                read = operation.on(name).ids  # type: ignore[attr-defined]
            for choice in self._tables[name].choices(size, read):
                yield OnTables((name,), choice)

    def after(self, operation: ShardOperation) -> Iterator[OnTables]:
        """Yield what must be done then, here and on all replicas; only the primary calls this.

        Raises
        ------
        ConfigurationError
            At the end: if a user's function failed, in place of which another order was taken.
        """
        if isinstance(operation, OnTables) and isinstance(operation.operation, FinishTable):
            for then in self._only(operation.tables).settling():
                yield OnTables(operation.tables, then)

    def minute(self) -> Iterator[OnTables]:
        """Yield what a minute changes, here and on all replicas; only the primary calls this."""
        if self._is_loaded:  # the minute that its rows belong to comes at the end
            return
        for name in self._leaving:
            if self._tables[name].expires:
                yield OnTables((name,), CountMinute())

    def changes(self, operation: ShardOperation) -> bool:
        """Return whether an operation may change the shard."""
        if not isinstance(operation, OnTables):
            return operation.changes
        # A lookup may make rows, but a copy of the table would make the same rows, unless others
        # leave for them.
        of = operation.operation
        return of.changes or (
            isinstance(of, COUNTING)
            and not (isinstance(of, LookUpRows) and not of.training)
            and True in [table.counts for table in self._all(operation.tables)]
        )

    def tick(self) -> None:
        """Count a minute."""
        if not self._is_loaded:  # what waits for that is not forgotten
            self.log.tick()
        for table in self._tables.values():
            table.tick(self._is_loaded)

    def tables(self) -> tuple[str, ...]:
        """Return the names of all tables."""
        return tuple(self._tables)

    def table(self, name: str) -> Table:
        """Return a table, or raise ConfigurationError if it is not here."""
        found = self._tables.get(name)
        if found is None:
            raise ConfigurationError(
                f"{self.name} holds no {name!r}: it was dropped; or it was lost, as servers died "
                "one by one, and strategy.recover() brings it back"
            )
        return found

    def _only(self, names: Sequence[str]) -> Table:
        table, *others = self._all(names)
        if others:
            raise InternalError(f"{self.name}: an operation of one table names {len(names)}")
        return table

    def reading_mark(self, key: str) -> Mark | None:
        """Return the mark that was described by this key last; None if it is not here."""
        every = list(self._marks.values())  # at once: other threads ask, too
        return next((each for each in every if each.key == key), None)

    def _set_mark(self, name: str, moment: str) -> str:
        if (found := self._marks.get(name)) is not None:
            return found.moment  # sent again, because the answer was lost: the first one counts
        if not moment:
            return ""
        if len(self._marks) >= MOST_MARKS:
            raise ConfigurationError(
                f"{self.name} has {MOST_MARKS} marks, of which each takes note of every change: "
                "drop one first: mark.drop()"
            )
        self._marks[name] = Mark(self._tables, self.name, moment)
        return moment

    def _marked(self, name: str, moment: str) -> Mark:
        found = self._marks.get(name)
        if found is None or found.moment != moment:
            raise StaleMarkError(
                f"{self.name} has no such mark: its server came since, in place of one that was "
                "lost or left, or the mark was dropped. Nothing was changed. Go back to a "
                "checkpoint"
            )
        return found

    def _drop_mark(self, name: str) -> None:
        if (found := self._marks.pop(name, None)) is not None:
            found.close()

    def _all(self, names: Sequence[str]) -> list[Table]:
        if not names:
            raise InternalError(f"{self.name}: an operation of tables names none")
        try:
            return [self._tables[name] for name in names]
        except KeyError:
            return [self.table(name) for name in names]  # raises

    def creation(self, name: str) -> ops.CreateDense | ops.CreateSparse:
        """Return the operation that makes an empty table like this one."""
        optimizer = self._tables[name].updater.optimizer
        return msgspec.structs.replace(self._creations[name], optimizer=optimizer)

    def tail(self, name: str) -> ops.TableTail:
        """Return the part of a table that is not by row, and its optimizer."""
        table = self._tables[name]
        return ops.TableTail(table.tail(), table.updater.optimizer, table.beside())

    def _finish(
        self,
        tails: Mapping[str, ops.TableTail],
        log: CommitLog,
        ended: ops.EndRound | None,
    ) -> None:
        for name, tail in tails.items():
            table = self.table(name)
            table.expected.check_tail(forms(name, tail.tail), tail.tail.__getitem__)
            table.updater.check_state(tail.optimizer)
            table.check_beside(tail.beside)
        self._tables = {name: self._tables[name] for name in tails}
        self._creations = {name: self._creations[name] for name in tails}
        self._leaving &= tails.keys()
        for name, tail in tails.items():
            self._tables[name].finish(tail.tail)
            self._tables[name].updater.follow(tail.optimizer)
            self._tables[name].take_beside(tail.beside)
        self.log, self.ended = log, ended
        # The reservations of the primary's commits are needed here as well.
        for entry in log.prepared():
            assert entry.part is not None
            entry.reserved = self._reserve(entry.part)
        log.rounds.reserve_again(self._tables)

    def _drop(self, name: str) -> None:
        if self._tables.pop(name, None) is not None:
            del self._creations[name]
            self._leaving.discard(name)
            self.log.leave_out(name)

    def _create(self, creation: ops.CreateDense | ops.CreateSparse) -> None:
        made = self._make(creation)  # there may be no memory: then all is as it was
        self._drop(creation.name)
        self._tables[creation.name] = made
        if isinstance(creation, ops.CreateDense):  # large, and not needed: the table has them
            values = np.empty(0, creation.values.dtype)
            creation = msgspec.structs.replace(creation, values=values)
        self._creations[creation.name] = creation
        if made.leaves:
            self._leaving.add(creation.name)

    def _prepare(self, commit: Commit, part: Part) -> LogEntry:
        """Prepare a part of a commit, so that applying it cannot fail.

        All checks are made, and all memory is reserved. The shards of other servers do so as well
        before one of them changes anything.
        """
        for write in part.writes:
            table, *_ = self._all(write.tables)
            if not isinstance(write.operation, table.writes):
                raise table.unknown(write.operation)
        return self.log.prepare(commit, part, self._reserve)

    def _reserve(self, part: Part) -> list[ReservedWrite]:
        found: list[ReservedWrite] = []
        for write in part.writes:
            of = write.operation
            try:
                if part.round_number is not None and of.collected:
                    for each in write.parts():
                        table = self._tables[each.tables[0]]
                        found.append(self.log.rounds.reserve(table, each))
                elif isinstance(of, PushRows):
                    found.append(ReservedWrite(write, reserve_push(self._all(write.tables), of)))
                else:
                    make = self._tables[write.tables[0]].reserve(of)
                    found.append(ReservedWrite(write, make))
            except MemoryError as error:
                found.clear()  # not kept alive by a frame of the error
                raise refusal(error, str(write), self.name) from None
        return found

    def _apply(self, entry: LogEntry) -> int | None:
        """Apply the writes of a commit, once, and return their staleness."""
        part, reserved, log = entry.part, entry.reserved, self.log
        if entry.state is CommitState.APPLIED or part is None:
            return entry.staleness
        # First: an exception below is a bug, and the writes must not be tried again.
        entry.state, entry.part, entry.reserved = CommitState.APPLIED, None, ()
        commit, in_round = entry.commit, part.round_number is not None
        waiting = []
        for each in reserved:
            if in_round and each.write.operation.collected:
                waiting.append(each)
            else:
                assert each.make is not None
                each.make()
        if waiting:
            log.rounds.collect(commit.writer, commit.number, waiting)
        log.note(commit)
        if part.seen is not None:
            entry.staleness = max(0, log.version - part.seen) if part.seen >= 0 else 0
            log.version += not in_round
        return entry.staleness

    def fence(
        self,
        attempts: Mapping[str, Mapping[int, int]],
        closed: Sequence[str] = (),
        settled: Mapping[str, Bounds] | None = None,
    ) -> list[CommitRecord]:
        """Report the state of some commits, and let only the notebook decide on them.

        Parameters
        ----------
        attempts : mapping
            By writer and number: the last attempt that may exist.
        closed : sequence of str
            Writers of which all commits are reported, and none is accepted from now on.
        settled : mapping of str to tuple of int
            By writer, the numbers of commits that have ended; see `RangeSet`.
        """
        for writer, numbers in (settled or {}).items():
            self.log.settle(writer, numbers)
        facts = [fact for writer in closed for fact in self.log.close(writer)]
        for writer, last in attempts.items():
            facts += self.log.fence(writer, last)
        return facts

    def _end_round(self, end: ops.EndRound) -> None:
        """Apply what closures pushed in a round, once, as one update; see `Rounds`."""
        rounds = self.log.rounds
        if rounds.over(end.writer, end.number):
            return
        if self.log.closed and not end.decided:
            # Late, from an owner that another one has taken over from: that one has asked all
            # shards already which of them have ended the round.
            raise OwnershipLostError(
                f"round {end.number} of {end.writer} was not ended on {self.name}: another process "
                "has taken the strategy over"
            )
        pushed = end.writer, end.closures, self._tables, end.norms, end.weights
        for each in rounds.averages(*pushed):
            assert each.make is not None
            each.make()
        rounds.end(end.writer, end.number)
        self.log.version += len(end.closures)
        self.ended = end

    def _square_norms(self, of: ops.SquareNorms) -> dict[str, float]:
        """Return the squared norms of a round's pushed gradients, by table."""
        rounds = self.log.rounds
        if rounds.over(of.writer, of.number):
            return {}
        wanted = {name: self._tables[name] for name in of.tables if name in self._tables}
        return {
            each.write.tables[0]: square_norm(each.write.operation)
            for each in rounds.averages(of.writer, of.closures, wanted, None, of.weights)
            if isinstance(each.write.operation, Push)
        }
