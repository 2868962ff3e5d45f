"""CommitLog: which commits a shard has prepared, has applied, or will never apply. Pure.

The writes of a closure are one *commit*. Those that go to several servers go out in two steps: each
shard *prepares* its part without applying it, and when all have prepared theirs it is decided: each
*applies* it. What goes to one server is prepared and applied at once. This is commitment in two
phases (Gray, *Notes on Data Base Operating Systems*, 1978), with the worker that runs the closure
in the lead as long as it lives. When it is lost, or cannot tell, the notebook asks all shards
(`CommitLog.fence`), and decides (`psnb._src.coordinator.queue.fates`): from the moment in which a
shard has answered, the worker cannot change what it has said, though it may be alive still.

A closure that runs again does so in another *attempt*, under the same number. Attempts that were
given up are refused, and so are all numbers below a coordinator's *watermark*, which have ended for
good; above it the log keeps each number, so its size is that of the work under way. Writes outside
of closures are numbered likewise by the process that makes them, so whatever was not answered can
be sent again.

The log also counts the updates of closures, so that one that has read a shard can be told how many
others came between, and holds what closures pushed in a round that is not over yet.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from psnb._src.placement import ShardId
from psnb._src.server.rounds import Rounds, Write
from psnb.errors import CancelledError

PROCESS = "process "
"""How the names of processes begin that write outside of closures."""

ENDED = 1 << 62
"""In place of an attempt: all that there can be."""

_IDLE_TICKS = 60


class Commit(NamedTuple):
    """The writes of a closure, or of what else is to be applied wholly or not at all.

    Attributes
    ----------
    writer : str
        A coordinator, or a process that writes outside of closures; unique in a cluster.
    number : int
        Which of its commits; the same for all attempts of a closure.
    attempt : int
        Which attempt, from 1.
    settled_below : int
        All commits of the writer below this number have ended, so servers may forget them.
    shards : tuple of ShardId
        All that take part.
    closures : tuple of tuple
        Whose effect it is: number and pickled result of each closure, None where the notebook has
        that already. It is what remains of a closure whose worker is lost.
    coordinator : str
        Whose closures they are. It is the writer, unless it is a worker that exchanges what several
        of them have learned.
    ended_below : int
        All closures of the coordinator below this number have ended.
    pushed : bool
        Whether there are gradients among the writes.
    """

    writer: str
    number: int
    attempt: int = 1
    settled_below: int = 0
    shards: tuple[ShardId, ...] = ()
    closures: tuple[tuple[int, bytes | None], ...] = ()
    coordinator: str = ""
    ended_below: int = 0
    pushed: bool = False


class Part(NamedTuple):
    """What of a commit goes to one shard.

    Attributes
    ----------
    writes : sequence of Write
        In order.
    seen : int or None
        For an update that counts: the shard's version that was read first, or -1.
    round_number : int or None
        The round that a closure runs in: what it has pushed waits for the round's end.
    """

    writes: Sequence[Write]
    seen: int | None = None
    round_number: int | None = None


class CommitState(StrEnum):
    """What a shard makes of a commit."""

    PREPARED = "prepared"
    APPLIED = "applied"
    GIVEN_UP = "given up"
    """This attempt, and all before it, will never be applied."""


@dataclass(slots=True)
class LogEntry:
    """What is known of a commit.

    Attributes
    ----------
    commit : Commit
        Of the attempt that came last.
    state : CommitState
        What became of it.
    part : Part or None
        While it is prepared.
    staleness : int or None
        Once it is applied, if it counts.
    fenced : bool
        Whether it is the notebook that decides.
    """

    commit: Commit
    state: CommitState
    part: Part | None = None
    staleness: int | None = None
    fenced: bool = False


class Fact(NamedTuple):
    """What a shard tells of a commit that it has prepared or applied.

    Attributes
    ----------
    commit : Commit
        Which.
    applied : bool
        Whether it is applied.
    """

    commit: Commit
    applied: bool


@dataclass(slots=True)
class _CommitWriter:
    low: int
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
    """

    def __init__(self) -> None:
        self.version = 0
        self.rounds = Rounds()
        self._writers: dict[str, _CommitWriter] = {}

    def __len__(self) -> int:
        """Return how many commits are kept."""
        return sum(len(each.entries) for each in self._writers.values())

    def prepare(self, commit: Commit, part: Part) -> LogEntry:
        """Take a commit in, and return what there is of it: prepared now, or applied before.

        Raises
        ------
        CancelledError
            If this attempt was given up.
        """
        writer, entry = self._look_up(commit)
        if commit.number < writer.low or writer.closed:
            raise _given_up(commit)
        if entry is not None and entry.state is CommitState.APPLIED:
            return entry
        if entry is not None and entry.commit.attempt >= commit.attempt:
            if entry.state is CommitState.PREPARED and entry.commit.attempt == commit.attempt:
                return entry
            raise _given_up(commit)
        entry = LogEntry(commit, CommitState.PREPARED, part)
        self._settle(commit.writer, commit.settled_below).entries[commit.number] = entry
        return entry

    def find(self, commit: Commit, *, decided: bool = False) -> LogEntry:
        """Return a commit that is to be applied, and is prepared or was applied before.

        Parameters
        ----------
        commit : Commit
            Which.
        decided : bool
            Whether it is the notebook that has it applied.

        Raises
        ------
        CancelledError
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
        """Never apply an attempt, unless it is applied already, or the notebook may have it so.

        Parameters
        ----------
        commit : Commit
            Which.
        decided : bool
            Whether it is the notebook that has given it up.
        """
        writer = self._settle(commit.writer, commit.settled_below)
        entry = writer.entries.get(commit.number)
        if commit.number < writer.low or (
            entry is not None
            and (
                entry.state is CommitState.APPLIED
                or entry.commit.attempt > commit.attempt
                or (entry.fenced and not decided)
            )
        ):
            return
        writer.entries[commit.number] = LogEntry(_bare(commit), CommitState.GIVEN_UP)

    def fence(self, writer: str, attempts: Mapping[int, int]) -> list[Fact]:
        """Tell what there is of some commits, and let nobody but the notebook decide on them.

        Parameters
        ----------
        writer : str
            Whose.
        attempts : mapping of int to int
            By number, the attempt up to which they are given up if there is nothing of them here.
        """
        known = self._settle(writer, 0)
        facts = []
        for number, attempt in attempts.items():
            entry = known.entries.get(number)
            if entry is not None and entry.state is CommitState.APPLIED:
                facts.append(Fact(entry.commit, applied=True))
            elif entry is None or entry.commit.attempt < attempt:
                self.give_up(Commit(writer, number, attempt), decided=True)
            elif entry.commit.attempt == attempt and entry.state is CommitState.PREPARED:
                entry.fenced = True
                facts.append(Fact(entry.commit, applied=False))
            # Else the question comes late: another attempt was begun since.
        return facts

    def close(self, writer: str) -> list[Fact]:
        """Take no more of a writer, ever, and tell what there is of it."""
        known = self._settle(writer, 0)
        known.closed = True
        facts = []
        for entry in known.entries.values():
            if entry.state is not CommitState.GIVEN_UP:
                entry.fenced = True
                facts.append(Fact(entry.commit, entry.state is CommitState.APPLIED))
        return facts

    def end(self, writer: str) -> None:
        """Take no more of a writer, ever, and forget what there was of it."""
        self._writers[writer] = _CommitWriter(0, closed=True)

    def settle(self, writer: str, below: int) -> None:
        """Take no more of a writer's commits below a number: they have ended."""
        self._settle(writer, below)

    def note(self, commit: Commit) -> None:
        """Note that closures have had their effect by a commit that is not their own."""
        if commit.coordinator in ("", commit.writer):
            return
        known = self._settle(commit.coordinator, commit.ended_below)
        for number, result in commit.closures:
            if number >= known.low:
                own = Commit(commit.coordinator, number, closures=((number, result),))
                known.entries[number] = LogEntry(
                    own._replace(coordinator=commit.coordinator), CommitState.APPLIED
                )

    def tick(self) -> None:
        """Count a minute: processes that have written nothing for an hour are forgotten.

        None sends the same again after so long.
        """
        for known in self._writers.values():
            known.ticks += 1
        self._writers = {
            name: known
            for name, known in self._writers.items()
            if known.ticks < _IDLE_TICKS or not name.startswith(PROCESS)
        }

    def _look_up(self, commit: Commit) -> tuple[_CommitWriter, LogEntry | None]:
        """Return what there is of a commit; changes nothing."""
        writer = self._writers.get(commit.writer) or _CommitWriter(0)
        return writer, writer.entries.get(commit.number)

    def _settle(self, writer: str, settled_below: int) -> _CommitWriter:
        known = self._writers.get(writer)
        if known is None:
            known = self._writers[writer] = _CommitWriter(settled_below)
        elif settled_below > known.low:
            known.low = settled_below
            entries = known.entries
            known.entries = {n: entry for n, entry in entries.items() if n >= settled_below}
        known.ticks = 0
        return known


def _bare(commit: Commit) -> Commit:
    return commit._replace(shards=(), closures=())


def _given_up(commit: Commit) -> CancelledError:
    return CancelledError(
        f"attempt {commit.attempt} of commit {commit.number} was given up: its worker was taken "
        "for lost, and the closure runs elsewhere or has ended"
    )
