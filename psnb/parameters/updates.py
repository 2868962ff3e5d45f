"""Updates: what a closure has written, held back until it ends. Pure but for the transport.

While a closure runs, its handles put their writes here (`buffered` makes a buffer the current one
of the thread); reads of the same parameter send the held-back writes along and see their effect. At
the closure's end all go out in one message to each server, under the closure's id: a shard applies
an id once. If the closure fails, nothing was written. Writes outside of closures, and those that
shall be made at once, go out under a number of this process.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from psnb.parameters.batch import Request
from psnb.parameters.transport import Transport
from psnb.placement import ShardId
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


class Updates:
    """Writes in order, to be committed together. Belongs to one thread."""

    def __init__(self) -> None:
        self._writes: dict[ShardId, list[tuple[str, str, Mapping[str, Any]]]] = {}

    def add(self, writes: Sequence[TableWrite]) -> None:
        """Take writes in as they are."""
        for shard, table, (operation, arguments) in writes:
            self._writes.setdefault(shard, []).append((table, operation, arguments))

    def hold(self, writes: Sequence[TableWrite]) -> None:
        """Hold writes back; arrays that could change meanwhile are copied."""
        for shard, table, (operation, arguments) in writes:
            kept = {key: _kept(value) for key, value in arguments.items()}
            self._writes.setdefault(shard, []).append((table, operation, kept))

    def __bool__(self) -> bool:
        """Return whether there is anything to commit."""
        return bool(self._writes)

    def pending(self, shard: ShardId, table: str) -> list[Write]:
        """Return the writes that a table has not seen yet."""
        writes = self._writes.get(shard, ())
        return [(operation, arguments) for name, operation, arguments in writes if name == table]

    def commit(self, transport: Transport, identity: CommitId) -> None:
        """Send all writes: each shard applies its part whole, and an id once.

        Raises
        ------
        ServerLostError
            If a server is gone; the others may have applied their part.
        """
        arguments = asdict(identity)
        transport.call(
            [
                Request(shard, "", "commit", {**arguments, "writes": writes})
                for shard, writes in self._writes.items()
            ]
        )


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
    ServerLostError
        If a server is gone; the others may have applied their part.
    """
    held = None if immediate else current_updates()
    if held is not None:
        held.hold(writes)
    elif writes:
        updates = Updates()
        updates.add(writes)
        with _writer.commit() as identity:
            updates.commit(transport, identity)


@dataclass(frozen=True, slots=True)
class Reading:
    """What to ask of which shards, and what makes the value of their answers."""

    transport: Transport
    requests: Sequence[Request]
    value: Callable[[list[Any]], np.ndarray]

    def fetch(self) -> np.ndarray:
        """Ask for it."""
        return self.value(self.transport.call(self.requests))


def fetch_together(readings: Sequence[Reading]) -> list[np.ndarray]:
    """Fetch several values with one message to each server (of each strategy)."""
    by_transport: dict[int, list[Reading]] = {}
    for reading in readings:
        by_transport.setdefault(id(reading.transport), []).append(reading)
    values: dict[int, np.ndarray] = {}
    for several in by_transport.values():
        requests = [request for reading in several for request in reading.requests]
        answers = iter(several[0].transport.call(requests))
        for reading in several:
            values[id(reading)] = reading.value([next(answers) for _ in reading.requests])
    return [values[id(reading)] for reading in readings]


def read_request(shard: ShardId, table: str, read: Write) -> Request:
    """Return the request that reads a table, with the closure's own writes seen."""
    updates = current_updates()
    pending = updates.pending(shard, table) if updates is not None else []
    if not pending:
        return Request(shard, table, *read)
    operation, arguments = read
    preview = {"writes": pending, "read": operation, "arguments": arguments}
    return Request(shard, table, "preview", preview)
