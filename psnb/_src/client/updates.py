"""Updates: the writes of a closure, held back until it ends. Pure but for the `ServerClient`.

While a closure runs, its parameters put their writes here (`buffered` makes a buffer the current
one of the thread). Reads of the same parameter send the held-back writes along and see their
effect. When the closure ends, all of them are one commit, which is applied wholly or not at all
(`psnb._src.client.commit`). If the closure fails, nothing is written. Writes outside of
closures, and writes with ``immediate=True``, are sent on their own (`psnb._src.client.direct`).

Each answer carries the shard's version: the number of its updates so far. A closure's commit
carries the version at its first read of the shard, from which the shard computes the staleness.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from psnb._src.client.direct import commit_now
from psnb._src.client.requests import Request, on_table
from psnb._src.client.server_client import ServerClient, process_client
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.schedules import is_finite
from psnb._src.server.tables import operations as ops
from psnb._src.utils.ahead import require_closure
from psnb._src.utils.ownership import may_change
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

ShardWrite = tuple[ShardId, ops.OnTables]
"""A write, and the shard that it goes to."""


@dataclass(frozen=True, slots=True)
class Round:
    """Which round a closure takes part in.

    Attributes
    ----------
    strategy : str
        The strategy whose parameters it is for: pushes to another strategy's are not kept for the
        round.
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
        Whether the staleness of this update counts, as it does for closures.
    sync_round : Round, optional
        The round in which the closure runs.
    server_client : ServerClient, optional
        The client that the closure reads and writes with; None for the process's own.
    seen : dict, optional
        Where the version of each shard at its first read is noted.

    Attributes
    ----------
    counted, sync_round, server_client, seen
        As given.
    weight : float or None
        What the closure counts in its round, if it has said so.
    """

    def __init__(
        self,
        *,
        counted: bool = False,
        sync_round: Round | None = None,
        server_client: ServerClient | None = None,
        seen: dict[ShardId, int] | None = None,
    ) -> None:
        self.counted, self.sync_round, self.server_client = counted, sync_round, server_client
        self._writes: dict[ShardId, list[ops.OnTables]] = {}
        self.seen: dict[ShardId, int] = {} if seen is None else seen
        self.weight: float | None = None

    def weigh(self, weight: float) -> None:
        """Note what the closure counts in its round; of several numbers the largest one."""
        if self.sync_round is not None:
            self.weight = weight if self.weight is None else max(weight, self.weight)

    @property
    def pushed(self) -> bool:
        """Whether there are gradients or blends among them."""
        return any(
            isinstance(write.operation, ops.Push | ops.BlendValues)
            and (self.sync_round is None or self.in_round(shard))
            for shard, writes in self._writes.items()
            for write in writes
        )

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """The shards that are written to."""
        return tuple(self._writes)

    def add(self, writes: Iterable[ShardWrite]) -> None:
        """Add writes without copying their arrays."""
        for shard, write in writes:
            self._writes.setdefault(shard, []).append(write)

    def buffer(self, writes: Iterable[ShardWrite]) -> None:
        """Add writes; arrays that could change meanwhile are copied."""
        self.add((shard, _kept(each)) for shard, each in writes)

    def __bool__(self) -> bool:
        """Return whether there is anything to commit."""
        return bool(self._writes)

    def pending(self, shard: ShardId, table: str) -> list[ops.TableOperation]:
        """Return the held-back writes of a table whose effect a read must show.

        A push in a round has no effect before the round's end.
        """
        return [write.on(table) for write in self._shown(shard) if table in write.tables]

    def held(self, shard: ShardId) -> set[str]:
        """Return the tables of a shard with held-back writes whose effect a read must show."""
        return {name for write in self._shown(shard) for name in write.tables}

    def _shown(self, shard: ShardId) -> list[ops.OnTables]:
        in_round = self.in_round(shard)
        return [
            write
            for write in self._writes.get(shard, ())
            if not (in_round and write.operation.collected)
        ]

    def in_round(self, shard: ShardId) -> bool:
        """Return whether pushes to a shard wait for the end of a round."""
        return self.sync_round is not None and shard.strategy == self.sync_round.strategy

    def parts(self) -> dict[ShardId, Part]:
        return {
            shard: Part(
                writes,
                self.seen.get(shard, _NOTHING_READ) if self.counted else None,
                self.sync_round.number
                if self.sync_round is not None and self.in_round(shard)
                else None,
            )
            for shard, writes in self._writes.items()
        }

    def commit(self, server_client: ServerClient, commit: Commit) -> int | None:
        """Make all writes, or none.

        Returns
        -------
        int or None
            If the staleness counts: the number of other updates since the first read, on the shard
            with the most.

        Raises
        ------
        UndecidedError
            If this process cannot tell whether they are made.
        PsnbError
            If they are not made, and will not be.
        """
        return server_client.commit(commit._replace(shards=self.shards), self.parts())


def _kept(write: ops.OnTables) -> ops.OnTables:
    fields = msgspec.structs.astuple(write.operation)
    kept = [f.copy() if isinstance(f, np.ndarray) and may_change(f) else f for f in fields]
    if all(now is before for now, before in zip(kept, fields, strict=True)):
        return write
    return ops.OnTables(write.tables, type(write.operation)(*kept))


_local = threading.local()


@contextmanager
def buffered(updates: Updates) -> Iterator[None]:
    """Hold back the writes of this thread in ``updates``, instead of where they were before."""
    before = current_updates()
    _local.updates = updates
    try:
        yield
    finally:
        _local.updates = before


def current_updates() -> Updates | None:
    """Return the buffer of the closure that this thread runs, if it runs one."""
    require_closure()
    updates: Updates | None = getattr(_local, "updates", None)
    return updates


def weigh(weight: Any) -> None:
    """Note what the closure that this thread runs counts in its round, if it runs in one.

    Raises
    ------
    ConfigurationError
        If it is not a number, finite and not below 0.
    """
    if not is_finite(weight) or weight < 0:
        raise ConfigurationError(
            f"weight={shown(weight)}: what a batch counts in its round, such as its number of "
            "examples, must be a number, finite and not below 0"
        )
    if (updates := current_updates()) is not None:
        updates.weigh(float(weight))


def client_of(server_client: ServerClient | None) -> ServerClient:
    """Return a parameter's client; else this thread's closure's; else the process's own."""
    if server_client is not None:
        return server_client
    updates = current_updates()
    if updates is not None and updates.server_client is not None:
        return updates.server_client
    return process_client()


def write(server_client: ServerClient, writes: Sequence[ShardWrite], *, immediate: bool) -> None:
    """Hold writes back in the current buffer, or make them now.

    Raises
    ------
    ConfigurationError
        If a push in a round has ``immediate=True``.
    ServerLostError
        If a server is gone; nothing was written. After a `ServerUnresponsiveError` that is unknown.
    """
    held = current_updates()
    if held is not None and not immediate:
        held.buffer(writes)
        return
    for shard, each in writes:
        if held is not None and each.operation.collected and held.in_round(shard):
            raise ConfigurationError(
                f"push(immediate=True) to {ops.names_of_tables(each.tables)}: in mode Sync the "
                "pushes of all closures of a round are applied together, at its end; leave "
                "immediate=True out"
            )
    if writes:
        updates = Updates()
        updates.add(writes)
        commit_now(server_client, updates.shards, updates.parts())


@dataclass(frozen=True, slots=True)
class PendingRead:
    """The requests to shards, and the function that makes the value from their answers."""

    server_client: ServerClient
    requests: Sequence[Request]
    value: Callable[[list[Any]], Any]
    # The writes of the closure that reads; another thread may call `fetch`.
    updates: Updates | None = field(default_factory=lambda: current_updates())

    def fetch(self) -> Any:
        """Send the requests, and return the value."""
        return self.value(_read(self.server_client, self.requests, self.updates))


def fetch_together(readings: Sequence[PendingRead]) -> list[Any]:
    """Fetch several values with one message to each server (of each strategy)."""
    by_client: dict[int, list[PendingRead]] = {}
    for reading in readings:
        by_client.setdefault(id(reading.server_client), []).append(reading)
    values: dict[int, Any] = {}
    for several in by_client.values():
        requests = [request for reading in several for request in reading.requests]
        answers = iter(_read(several[0].server_client, requests, several[0].updates))
        for reading in several:
            values[id(reading)] = reading.value([next(answers) for _ in reading.requests])
    return [values[id(reading)] for reading in readings]


def _read(
    server_client: ServerClient, requests: Sequence[Request], updates: Updates | None
) -> list[Any]:
    # The version of shards that are read for the first time is noted.
    seen = updates.seen if updates is not None and updates.counted else None
    return server_client.call(requests) if seen is None else server_client.call(requests, seen)


def read_request(shard: ShardId, table: str, read: ops.TableRead) -> Request:
    """Return the request that reads a table, with the closure's own writes seen."""
    updates = current_updates()
    pending = updates.pending(shard, table) if updates is not None else []
    return on_table(shard, table, ops.Preview(pending, read) if pending else read)
