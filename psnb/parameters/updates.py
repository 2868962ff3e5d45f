"""Updates: what a closure has written, held back until it ends. Pure but for the transport.

While a closure runs, its handles put their writes here (`buffered` makes a buffer the current one
of the thread); reads of the same parameter send the held-back writes along and see their effect. At
the closure's end all go out in one message to each server, under the closure's id: a shard applies
an id once. If the closure fails, nothing was written. Writes outside of closures, and those that
shall be made at once, go out under a number of this process.

With the answers come how many updates a shard has had. A closure's commit tells what its first read
of the shard was told, so that the shard can say how stale it is.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import numpy as np

from psnb.errors import ConfigurationError
from psnb.parameters.batch import Request
from psnb.parameters.transport import Transport
from psnb.placement import ShardId
from psnb.server import HELD
from psnb.watermark import Watermark

Write = tuple[str, Mapping[str, Any]]
"""An operation and its arguments."""

TableWrite = tuple[ShardId, str, Write]
"""Shard and table of a write, and the write."""


@dataclass(frozen=True, slots=True)
class CommitId:
    """Under what updates are applied, once.

    Attributes
    ----------
    writer : str
        A coordinator, or a process that writes outside of closures; unique in a cluster.
    number : int
        Which of its commits; the same for all attempts of a closure.
    settled_below : int
        All commits below this number have ended, so servers may forget them.
    """

    writer: str
    number: int
    settled_below: int


@dataclass(frozen=True, slots=True)
class Round:
    """Which round a closure takes part in.

    Attributes
    ----------
    strategy : str
        Whose parameters it is about: what is pushed to those of another one is not held back.
    number : int
        Which round.
    """

    strategy: str
    number: int


_NOTHING_READ = -1


class Updates:
    """Writes in order, to be committed together. Belongs to one thread.

    Parameters
    ----------
    counted : bool
        Whether they are an update whose staleness counts, as those of closures are.
    turn : Round, optional
        The round in which the closure runs.
    way : Transport, optional
        What the closure reads and writes through; None for the transport of the process.

    Attributes
    ----------
    holds : sequence of CommitId
        Closures whose pushes are among the writes: shards remember it (`LocalCopies`).
    """

    def __init__(
        self,
        *,
        counted: bool = False,
        turn: Round | None = None,
        way: Transport | None = None,
    ) -> None:
        self.counted, self.turn, self.way = counted, turn, way
        self.holds: Sequence[CommitId] = ()
        self._writes: dict[ShardId, list[tuple[str, str, Mapping[str, Any]]]] = {}
        self._seen: dict[ShardId, int] = {}  # the version of each shard that was read first

    @property
    def pushed(self) -> bool:
        """Whether there are gradients among them."""
        return any(
            operation == "push" and (self.turn is None or self.in_round(shard))
            for shard, writes in self._writes.items()
            for _, operation, _ in writes
        )

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """The shards that are written to."""
        return tuple(self._writes)

    def drop_pushes(self, shards: Collection[ShardId]) -> None:
        """Forget the gradients that would go to some shards."""
        for shard in shards:
            self._writes[shard] = [w for w in self._writes[shard] if w[1] != "push"]

    def add(self, writes: Sequence[TableWrite]) -> None:
        """Take writes in as they are."""
        for shard, table, (operation, arguments) in writes:
            self._writes.setdefault(shard, []).append((table, operation, arguments))

    def hold(self, writes: Sequence[TableWrite]) -> None:
        """Hold writes back; arrays that could change meanwhile are copied."""
        self.add(
            [
                (shard, table, (operation, {key: _kept(each) for key, each in arguments.items()}))
                for shard, table, (operation, arguments) in writes
            ]
        )

    def __bool__(self) -> bool:
        """Return whether there is anything to commit."""
        return bool(self._writes)

    def pending(self, shard: ShardId, table: str) -> list[Write]:
        """Return the writes that a table has not seen yet, and that a read is to show.

        What is pushed in a round changes nothing before its end.
        """
        hidden = HELD if self.in_round(shard) else ()
        writes = self._writes.get(shard, ())
        return [
            (operation, arguments)
            for name, operation, arguments in writes
            if name == table and operation not in hidden
        ]

    def in_round(self, shard: ShardId) -> bool:
        """Return whether what is pushed to a shard waits for the end of a round."""
        return self.turn is not None and shard.strategy == self.turn.strategy

    def read(self, transport: Transport, requests: Sequence[Request]) -> list[Any]:
        """Run requests; of shards that are read for the first time, note the version."""
        return transport.call(requests, self._seen) if self.counted else transport.call(requests)

    def commit(self, transport: Transport, identity: CommitId) -> int | None:
        """Send all writes: each shard applies its part whole, and an id once.

        Returns
        -------
        int or None
            If they count: how many other updates came since the first read, on the shard where they
            were most.

        Raises
        ------
        ServerLostError
            If a server is gone; the others may have applied their part.
        """
        requests = []
        for shard, writes in self._writes.items():
            arguments = {**asdict(identity), "writes": writes}
            if self.counted:
                arguments["seen"] = self._seen.get(shard, _NOTHING_READ)
            if self.holds:
                arguments["holds"] = [astuple(each) for each in self.holds]
            if self.turn is not None and self.in_round(shard):
                arguments["round_number"] = self.turn.number
            requests.append(Request(shard, "", "commit", arguments))
        answers = transport.call(requests)
        return max((each for each in answers if each is not None), default=None)


class _Writer:
    """Numbers the writes that this process makes outside of closures."""

    def __init__(self) -> None:
        self._name = f"process {uuid.uuid4().hex}"
        self._lock = threading.Lock()  # guards the numbers, for a moment each
        self._next = 0
        self._watermark = Watermark()

    @contextmanager
    def commit(self) -> Iterator[CommitId]:
        with self._lock:
            number, low = self._next, self._watermark.low
            self._next += 1
        try:
            yield CommitId(self._name, number, low)
        finally:
            with self._lock:
                self._watermark.end(number)


_writer = _Writer()


def _begin_anew() -> None:
    """Give a forked process a name of its own: servers drop what has come under a name before."""
    global _writer
    _writer = _Writer()


os.register_at_fork(after_in_child=_begin_anew)


def _kept(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) and value.flags.writeable else value


_local = threading.local()


@contextmanager
def buffered(updates: Updates) -> Iterator[None]:
    """Hold back the writes of this thread in ``updates``."""
    _local.updates = updates
    try:
        yield
    finally:
        _local.updates = None


def current_updates() -> Updates | None:
    """Return the buffer of the closure that this thread runs, if it does."""
    updates: Updates | None = getattr(_local, "updates", None)
    return updates


def write(transport: Transport, writes: Sequence[TableWrite], *, immediate: bool) -> None:
    """Hold writes back in the current buffer, or make them now.

    Raises
    ------
    ConfigurationError
        If gradients are to be applied now, in the middle of a round.
    ServerLostError
        If a server is gone; the others may have applied their part.
    """
    held = current_updates()
    if immediate:
        if held is not None:
            for shard, table, (operation, _) in writes:
                if operation in HELD and held.in_round(shard):
                    raise ConfigurationError(
                        f"push(immediate=True) to {table!r}: in mode Sync the pushes of all "
                        "closures of a round are applied together, at its end; leave "
                        "immediate=True out"
                    )
        held = None
    if held is not None:
        held.hold(writes)
    elif writes:
        updates = Updates()
        updates.add(writes)
        commit_now(transport, updates)


def commit_now(transport: Transport, updates: Updates) -> int | None:
    """Commit under a number of this process; see `Updates.commit`."""
    with _writer.commit() as identity:
        return updates.commit(transport, identity)


@dataclass(frozen=True, slots=True)
class Reading:
    """What to ask of which shards, and what makes the value of their answers."""

    transport: Transport
    requests: Sequence[Request]
    value: Callable[[list[Any]], np.ndarray]
    # Of the closure that reads; another thread may ask for it.
    updates: Updates | None = field(default_factory=lambda: current_updates())

    def fetch(self) -> np.ndarray:
        """Ask for it."""
        return self.value(_read(self.transport, self.requests, self.updates))


def fetch_together(readings: Sequence[Reading]) -> list[np.ndarray]:
    """Fetch several values with one message to each server (of each strategy)."""
    by_transport: dict[int, list[Reading]] = {}
    for reading in readings:
        by_transport.setdefault(id(reading.transport), []).append(reading)
    values: dict[int, np.ndarray] = {}
    for several in by_transport.values():
        requests = [request for reading in several for request in reading.requests]
        answers = iter(_read(several[0].transport, requests, several[0].updates))
        for reading in several:
            values[id(reading)] = reading.value([next(answers) for _ in reading.requests])
    return [values[id(reading)] for reading in readings]


def _read(transport: Transport, requests: Sequence[Request], updates: Updates | None) -> list[Any]:
    return transport.call(requests) if updates is None else updates.read(transport, requests)


def read_request(shard: ShardId, table: str, read: Write) -> Request:
    """Return the request that reads a table, with the closure's own writes seen."""
    updates = current_updates()
    pending = updates.pending(shard, table) if updates is not None else []
    if not pending:
        return Request(shard, table, *read)
    operation, arguments = read
    preview = {"writes": pending, "read": operation, "arguments": arguments}
    return Request(shard, table, "preview", preview)
