"""CommitLog: which commits a shard has prepared, has applied, or will never apply. Pure.

The writes of a closure are one *commit*. Writes to several servers go out in two steps: each shard
*prepares* its part without applying it; when all have prepared theirs, the commit is decided, and
each shard *applies* its part. Writes to one server are prepared and applied in one step. This is
two-phase commit (Gray, *Notes on Data Base Operating Systems*, 1978). The worker that runs the
closure is the coordinator of the commit as long as it lives. If it is lost, or cannot tell the
outcome, the notebook asks all shards (`CommitLog.fence`) and decides
(`psnb._src.coordinator.workers.resolve`). Once a shard has answered, the worker cannot change that
answer any more, even if it is still alive.

A closure that runs again does so in another *attempt*, under the same number. The log refuses
dropped attempts, and all *settled* numbers: they have ended, whatever comes. The log has these as
ranges, and keeps each of the others, so its size is proportional to the work under way. A
coordinator tells all shards now and then which numbers are settled (`Resolver.report_settled`). A
process that writes outside of closures numbers its writes in the same way, so a request without an
answer can be sent again; its commits carry the settled numbers (`CommitNumbers`). If a shard is
informed again, late, or never, that changes none of its answers, only its size.

The log also counts the updates of closures, from which the staleness of each is computed, and it
keeps what closures pushed in a round that is not over yet.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from psnb._src.placement.layout import ShardId
from psnb._src.server.rounds import Rounds
from psnb._src.server.tables.operations import OnTables
from psnb._src.server.tables.table import ReservedWrite
from psnb._src.utils.range_set import Bounds, RangeSet
from psnb.errors import ClosureCancelledError


class Commit(NamedTuple):
    """The writes of a closure, or other writes that are applied wholly or not at all.

    Attributes
    ----------
    writer : str
        A coordinator, or a process that writes outside of closures; unique in a cluster.
    number : int
        The number of the commit among the writer's; the same for all attempts of a closure.
    attempt : int
        Which attempt, from 1.
    settled : tuple of int
        Numbers of the writer's commits that have ended, so servers may forget them; see `RangeSet`.
    shards : tuple of ShardId
        All shards that take part.
    closures : tuple of tuple
        The closures whose effect it is: number and pickled result of each. The result is None if
        the notebook has it already. It is all that remains of a closure whose worker is lost.
    coordinator : str
        The coordinator of these closures. It is the writer, except where a worker is, which
        exchanges what several closures have learned (mode `Geo`).
    pushed : bool
        Whether there are gradients among the writes.
    """

    writer: str
    number: int
    attempt: int = 1
    settled: Bounds = ()
    shards: tuple[ShardId, ...] = ()
    closures: tuple[tuple[int, bytes | None], ...] = ()
    coordinator: str = ""
    pushed: bool = False


class Part(NamedTuple):
    """The part of a commit that goes to one shard.

    Attributes
    ----------
    writes : sequence of OnTables
        `TableWrite`s, in order.
    seen : int or None
        If the staleness of the update counts: the version of the shard at the first read, or -1.
    round_number : int or None
        The round that the closure runs in; its pushes wait for the end of that round.
    """

    writes: Sequence[OnTables]
    seen: int | None = None
    round_number: int | None = None


class CommitRecord(NamedTuple):
    """What a shard reports of a commit that it has prepared or applied.

    Attributes
    ----------
    commit : Commit
        The commit.
    applied : bool
        Whether it is applied.
    """

    commit: Commit
    applied: bool


PROCESS = "process "
"""The prefix of the names of processes that write outside of closures."""

_IDLE_TICKS = 60

_LOADS = 16
"""How many loads that have ended are remembered; a repeated message comes within some seconds."""


class CommitState(StrEnum):
    """What a shard has done with a commit."""

    PREPARED = "prepared"
    APPLIED = "applied"
    GIVEN_UP = "given up"
    """This attempt, and all before it, will never be applied."""


@dataclass(slots=True)
class LogEntry:
    """What a shard knows of a commit.

    Attributes
    ----------
    commit : Commit
        The latest attempt.
    state : CommitState
        What the shard has done with it.
    part : Part or None
        The writes, while it is prepared.
    reserved : sequence of ReservedWrite
        The same writes, with the memory that they need.
    staleness : int or None
        Set when it is applied, if its staleness counts.
    fenced : bool
        Whether only the notebook may decide on it now.
    """

    commit: Commit
    state: CommitState
    part: Part | None = None
    reserved: Sequence[ReservedWrite] = ()
    staleness: int | None = None
    fenced: bool = False


@dataclass(slots=True)
class _CommitWriter:
    settled: RangeSet = field(default_factory=RangeSet)
    entries: dict[int, LogEntry] = field(default_factory=dict)
    closed: bool = False  # nothing more is taken from it
    ticks: int = 0  # since something came from it


class CommitLog:
    """Remembers commits by writer and number.

    Attributes
    ----------
    version : int
        How many updates of closures have been applied.
    rounds : Rounds
        What waits for the end of its round.
    closed : bool
        Whether it takes no commits any more, of any writer.
    loading : dict
        Under which keys tables are being loaded: commits wait, for they would be there in part. By
        table, the place of the last change that has loaded it.
    """

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.rounds = Rounds()
        self._writers: dict[str, _CommitWriter] = {}
        self.closed = False
        self.loading: dict[str, dict[str, int]] = {}
        self._loaded: deque[str] = deque(maxlen=_LOADS)  # keys that come late begin nothing

    def __len__(self) -> int:
        """Return how many commits are kept."""
        return sum(len(each.entries) for each in self._writers.values())

    def expects(self, commit: Commit) -> bool:
        """Return whether `prepare` would add a commit; otherwise it is here, or is refused."""
        writer, entry = self._look_up(commit)
        if self._refuses(commit, writer):
            return False
        return entry is None or (
            entry.state is not CommitState.APPLIED and entry.commit.attempt < commit.attempt
        )

    def prepared(self) -> Iterator[LogEntry]:
        """Yield the commits that are prepared."""
        for writer in self._writers.values():
            yield from (entry for entry in writer.entries.values() if entry.part is not None)

    def leave_out(self, table: str) -> None:
        """Forget what commits and rounds were to write to a table: another one may have its name.

        At once, not when they are applied: to a replica that is filled meanwhile they look like
        writes to the table that it has.
        """
        for entry in self.prepared():
            assert entry.part is not None
            left = [each for write in entry.part.writes for each in write.without(table)]
            entry.part = entry.part._replace(writes=left)
            entry.reserved = [e for each in entry.reserved for e in each.without(table)]
        self.rounds.leave_out(table)

    def prepare(
        self,
        commit: Commit,
        part: Part,
        reserve: Callable[[Part], Sequence[ReservedWrite]] = lambda _: (),
    ) -> LogEntry:
        """Add a commit, and return its entry: prepared now, or applied before.

        ``reserve`` gets the memory that a new one needs, before it is added.

        Raises
        ------
        ClosureCancelledError
            If this attempt was given up.
        """
        writer, entry = self._look_up(commit)
        if self._refuses(commit, writer):
            raise _given_up(commit)
        if entry is not None and entry.state is CommitState.APPLIED:
            return entry
        if entry is not None and entry.commit.attempt >= commit.attempt:
            if entry.state is CommitState.PREPARED and entry.commit.attempt == commit.attempt:
                return entry
            raise _given_up(commit)
        entry = LogEntry(commit, CommitState.PREPARED, part, reserve(part))
        self.settle(commit.writer, commit.settled).entries[commit.number] = entry
        return entry

    def find(self, commit: Commit, *, decided: bool = False) -> LogEntry:
        """Return a commit to apply, which is prepared or was applied before.

        Parameters
        ----------
        commit : Commit
            Which.
        decided : bool
            Whether it is the notebook that has it applied.

        Raises
        ------
        ClosureCancelledError
            If it was given up, or if only the notebook may decide.
        """
        _, entry = self._look_up(commit)
        if entry is None:
            raise _given_up(commit)
        if entry.state is CommitState.APPLIED:
            return entry
        gone = entry.state is CommitState.GIVEN_UP or entry.commit.attempt != commit.attempt
        if gone or (entry.fenced and not decided):
            raise _given_up(commit)
        return entry

    def give_up(self, commit: Commit, *, decided: bool = False) -> None:
        """Give an attempt up, unless it is applied already, or only the notebook may decide on it.

        Parameters
        ----------
        commit : Commit
            Which.
        decided : bool
            Whether it is the notebook that has given it up.
        """
        writer = self.settle(commit.writer, commit.settled)
        entry = writer.entries.get(commit.number)
        if commit.number in writer.settled or (
            entry is not None
            and (
                entry.state is CommitState.APPLIED
                or entry.commit.attempt > commit.attempt
                or (entry.fenced and not decided)
            )
        ):
            return
        bare = commit._replace(shards=(), closures=())
        writer.entries[commit.number] = LogEntry(bare, CommitState.GIVEN_UP)

    def fence(self, writer: str, attempts: Mapping[int, int]) -> list[CommitRecord]:
        """Report the state of some commits; from now on only the notebook may decide on them.

        Parameters
        ----------
        writer : str
            Whose.
        attempts : mapping of int to int
            By number, the attempt up to which a commit is given up if it is not here.
        """
        known = self.settle(writer)
        facts = []
        for number, attempt in attempts.items():
            entry = known.entries.get(number)
            if entry is not None and entry.state is CommitState.APPLIED:
                facts.append(CommitRecord(entry.commit, applied=True))
            elif entry is None or entry.commit.attempt < attempt:
                self.give_up(Commit(writer, number, attempt), decided=True)
            elif entry.commit.attempt == attempt and entry.state is CommitState.PREPARED:
                entry.fenced = True
                facts.append(CommitRecord(entry.commit, applied=False))
            # Otherwise the question comes late: another attempt has begun since.
        return facts

    def close(self, writer: str) -> list[CommitRecord]:
        """Refuse all further commits of a writer, and report the present ones."""
        known = self.settle(writer)
        known.closed = True
        facts = []
        for entry in known.entries.values():
            if entry.state is not CommitState.GIVEN_UP:
                entry.fenced = True
                facts.append(CommitRecord(entry.commit, entry.state is CommitState.APPLIED))
        return facts

    def close_to_all(self) -> list[CommitRecord]:
        """Refuse all further commits, and report those in which other shards take part."""
        self.closed = True
        for writer in list(self._writers):
            self.close(writer)
        return self._shared()

    def begin_loading(self, key: str) -> list[CommitRecord]:
        """Note that tables are loaded, and report the commits in which other shards take part."""
        if key not in self._loaded:
            self.loading.setdefault(key, {})
        return self._shared()

    def end_loading(self, key: str) -> bool:
        """Note that they are loaded; return whether they were being loaded until now."""
        self._loaded.append(key)
        return self.loading.pop(key, None) is not None

    def loads(self, key: str, table: str, place: int) -> bool:
        """Note a change that loads a table; False if it is late, or one before it was missed.

        A copy of a message may come after the answer to the first one, and what follows from it;
        and a replica that the primary had let go of may have taken over.
        """
        places = self.loading.get(key)
        if places is None or place - places.get(table, 0) not in (0, 1):
            return False
        places[table] = place
        return True

    def _shared(self) -> list[CommitRecord]:
        return [
            CommitRecord(entry.commit, entry.state is CommitState.APPLIED)
            for writer in self._writers.values()
            for entry in writer.entries.values()
            if entry.state is not CommitState.GIVEN_UP and len(entry.commit.shards) > 1
        ]

    def end(self, writer: str) -> None:
        """Refuse all further commits of a writer, and forget the present ones."""
        self._writers[writer] = _CommitWriter(closed=True)

    def note(self, commit: Commit) -> None:
        """Note closures whose effect is in a commit that is not their own."""
        if commit.coordinator in ("", commit.writer):
            return
        known = self.settle(commit.coordinator)
        for number, result in commit.closures:
            if number not in known.settled:
                own = Commit(commit.coordinator, number, closures=((number, result),))
                known.entries[number] = LogEntry(
                    own._replace(coordinator=commit.coordinator), CommitState.APPLIED
                )

    def tick(self) -> None:
        """Count a minute: processes that have written nothing for an hour are forgotten.

        No process sends the same commit again after that time.
        """
        for known in self._writers.values():
            known.ticks += 1
        self._writers = {
            name: known
            for name, known in self._writers.items()
            if known.ticks < _IDLE_TICKS or not name.startswith(PROCESS)
        }

    def _refuses(self, commit: Commit, writer: _CommitWriter) -> bool:
        return self.closed or writer.closed or commit.number in writer.settled

    def _look_up(self, commit: Commit) -> tuple[_CommitWriter, LogEntry | None]:
        """Return the writer and the entry of a commit; changes nothing."""
        writer = self._writers.get(commit.writer) or _CommitWriter()
        return writer, writer.entries.get(commit.number)

    def settle(self, writer: str, settled: Bounds = ()) -> _CommitWriter:
        """Forget commits of a writer that have ended, and refuse them if they come late."""
        known = self._writers.get(writer)
        if known is None:
            known = self._writers[writer] = _CommitWriter()
        if settled:
            known.settled.update(settled)
            entries = known.entries.items()
            known.entries = {n: entry for n, entry in entries if n not in known.settled}
        known.ticks = 0
        return known


def _given_up(commit: Commit) -> ClosureCancelledError:
    return ClosureCancelledError(
        f"attempt {commit.attempt} of commit {commit.number} was given up: its worker was taken "
        "for lost, and the closure runs elsewhere or has ended"
    )
