"""Updates: the writes of a closure, held back until it ends. Pure but for the `ServerClient`.

While a closure runs, its parameters put their writes here (`buffered` makes a buffer the current
one of the thread). Reads of the same parameter send the held-back writes along and see their
effect. When the closure ends, all of them are one commit, which is applied wholly or not at all
(`psnb._src.client.commit`). If the closure fails, nothing is written. Writes outside of
closures, and writes with ``immediate=True``, are sent on their own (`psnb._src.client.commit`).

Each answer carries the shard's version: the number of its updates so far. A closure's commit
carries the version at its first read of the shard, from which the shard computes the staleness.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from psnb._src.client.commit import UndecidedError
from psnb._src.client.numbering import CommitNumbers
from psnb._src.client.requests import Request, ServerClient, on_table, process_client
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import PROCESS, Commit, Part
from psnb._src.server.hashing import summed
from psnb._src.server.operations import ApplyCommit
from psnb._src.server.schedules import is_finite
from psnb._src.server.tables.operations import (
    BlendValues,
    CountSkipped,
    CountUpdates,
    DescribeRows,
    EndDay,
    LookUpRows,
    OnTable,
    Preview,
    Push,
    PushGradient,
    PushRows,
    ReadOptimizer,
    ReadRate,
    ReadUse,
    TableOperation,
    TableRead,
)
from psnb._src.server.tables.presence import add_to, compacted, union
from psnb._src.utils.ahead import require_closure
from psnb._src.utils.ownership import may_change
from psnb._src.utils.text import shown
from psnb._src.utils.threads import run_in_thread
from psnb.errors import (
    ClosureCancelledError,
    ConfigurationError,
    PsnbError,
    ServerLostError,
    ServerUnresponsiveError,
)

ShardWrite = tuple[ShardId, OnTable]
"""A write, and the shard that it goes to."""


@dataclass(frozen=True, slots=True)
class Round:
    """Which round a closure takes part in.

    Attributes
    ----------
    strategy : str
        The strategy whose parameters it is for: pushes to those of another one are not kept for the
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
        self._writes: dict[ShardId, list[OnTable]] = {}
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
            isinstance(write.operation, Push | BlendValues)
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
        for shard, each in writes:
            kept = _kept(each.operation)
            self.add([(shard, each if kept is each.operation else OnTable(each.table, kept))])

    def __bool__(self) -> bool:
        """Return whether there is anything to commit."""
        return bool(self._writes)

    def pending(self, shard: ShardId, table: str) -> list[TableOperation]:
        """Return the held-back writes of a table whose effect a read must show.

        A push in a round has no effect before the round's end.
        """
        in_round = self.in_round(shard)
        return [
            write.operation
            for write in self._writes.get(shard, ())
            if write.table == table and not (in_round and write.operation.collected)
        ]

    def in_round(self, shard: ShardId) -> bool:
        """Return whether pushes to a shard wait for the end of a round."""
        return self.sync_round is not None and shard.strategy == self.sync_round.strategy

    def read(self, server_client: ServerClient, requests: Sequence[Request]) -> list[Any]:
        """Run requests; note the version of shards that are read for the first time."""
        return (
            server_client.call(requests, self.seen)
            if self.counted
            else server_client.call(requests)
        )

    def parts(self) -> dict[ShardId, Part]:
        """Return the part of each shard."""
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


def _kept(operation: TableOperation) -> TableOperation:
    fields = msgspec.structs.astuple(operation)
    if not any(map(_may_change, fields)):
        return operation
    return type(operation)(*(f.copy() if _may_change(f) else f for f in fields))


def _may_change(value: object) -> bool:
    return isinstance(value, np.ndarray) and may_change(value)


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
    """Return a parameter's client; else that of this thread's closure; else the process's own."""
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
    if immediate:
        if held is not None:
            for shard, each in writes:
                if each.operation.collected and held.in_round(shard):
                    raise ConfigurationError(
                        f"push(immediate=True) to {each.table!r}: in mode Sync the pushes of all "
                        "closures of a round are applied together, at its end; leave "
                        "immediate=True out"
                    )
        held = None
    if held is not None:
        held.buffer(writes)
    elif writes:
        updates = Updates()
        updates.add(writes)
        commit_now(server_client, updates.shards, updates.parts())


@dataclass(frozen=True, slots=True)
class PendingRead:
    """The requests to shards, and the function that makes the value from their answers."""

    server_client: ServerClient
    requests: Sequence[Request]
    value: Callable[[list[Any]], np.ndarray]
    # The writes of the closure that reads; another thread may call `fetch`.
    updates: Updates | None = field(default_factory=lambda: current_updates())

    def fetch(self) -> np.ndarray:
        """Send the requests, and return the value."""
        return self.value(_read(self.server_client, self.requests, self.updates))


def fetch_together(readings: Sequence[PendingRead]) -> list[np.ndarray]:
    """Fetch several values with one message to each server (of each strategy)."""
    by_client: dict[int, list[PendingRead]] = {}
    for reading in readings:
        by_client.setdefault(id(reading.server_client), []).append(reading)
    values: dict[int, np.ndarray] = {}
    for several in by_client.values():
        requests = [request for reading in several for request in reading.requests]
        answers = iter(_read(several[0].server_client, requests, several[0].updates))
        for reading in several:
            values[id(reading)] = reading.value([next(answers) for _ in reading.requests])
    return [values[id(reading)] for reading in readings]


def _read(
    server_client: ServerClient, requests: Sequence[Request], updates: Updates | None
) -> list[Any]:
    return (
        server_client.call(requests) if updates is None else updates.read(server_client, requests)
    )


def read_request(shard: ShardId, table: str, read: TableRead) -> Request:
    """Return the request that reads a table, with the closure's own writes seen."""
    updates = current_updates()
    pending = updates.pending(shard, table) if updates is not None else []
    return on_table(shard, table, Preview(pending, read) if pending else read)


# Writes outside of closures, and writes in closures with ``immediate=True``.
#
# A process numbers them, as a coordinator numbers closures. So a request without an answer can be
# sent again, and a write that one of several servers has made is made by all.
#
# Threads: any may write. An interrupt of the main thread ends its waiting, so the commit itself is
# made in another thread. If a server is unresponsive, a thread ``psnb-finish`` waits for it; it
# ends when that server answers or is lost, or when the `ServerClient` is closed.


class _DirectWriter:
    """Numbers the writes that this process makes outside of closures."""

    def __init__(self) -> None:
        self._name = f"{PROCESS}{uuid.uuid4().hex}"
        self._numbers = CommitNumbers()

    def begin(self, shards: tuple[ShardId, ...]) -> Commit:
        """Return the next commit; servers remember it until it has ended."""
        number, settled = self._numbers.begin(shards)
        return Commit(self._name, number, settled=settled, shards=shards)

    def end(self, commit: Commit) -> None:
        self._numbers.end(commit.number)


_writer = _DirectWriter()


def _begin_anew() -> None:
    """Give a forked process its own name: servers drop numbers that came under a name before."""
    global _writer
    _writer = _DirectWriter()


os.register_at_fork(after_in_child=_begin_anew)


def commit_now(
    server_client: ServerClient, shards: tuple[ShardId, ...], parts: Mapping[ShardId, Part]
) -> None:
    """Have shards make writes, all of them or none, under a number of this process.

    An interrupt ends the waiting only. The commit goes on, so that every server gets its part and
    every number ends.

    Raises
    ------
    ServerLostError, ServerUnresponsiveError, CoordinatorClosedError
        Also if it is unknown whether the writes were made, on all servers or on some.
    """
    run_in_thread(_commit, server_client, shards, parts)


def _commit(
    server_client: ServerClient, shards: tuple[ShardId, ...], parts: Mapping[ShardId, Part]
) -> None:
    writer = _writer
    commit = writer.begin(shards)
    try:
        server_client.commit(commit, parts)
    except UndecidedError as error:
        end = partial(writer.end, commit)
        if isinstance(error.reason, ServerUnresponsiveError) and len(shards) > 1:
            finish = partial(_finish, server_client, commit, end)
            threading.Thread(target=finish, name="psnb-finish", daemon=True).start()
        else:
            end()
        # A copy that took over has missed the writes: they are lost there with the server before
        # it.
        lost = isinstance(error.reason, ClosureCancelledError)
        kind = ServerLostError if lost else type(error.reason)
        raise kind(f"{error.reason}. It may have been written") from error
    except BaseException:  # an interrupt, too: servers need not remember the commit
        writer.end(commit)
        raise
    writer.end(commit)


def _finish(server_client: ServerClient, commit: Commit, end: Callable[[], None]) -> None:
    """Have each shard apply its part, if all have prepared theirs, once its server answers."""
    left = [Request(shard, ApplyCommit(commit)) for shard in commit.shards]
    try:
        while left:
            outcomes = server_client.attempt(left)  # waits for a while
            found = zip(left, outcomes, strict=True)
            left = [request for request, each in found if isinstance(each, ServerUnresponsiveError)]
    except PsnbError:
        pass  # the strategy is closed
    finally:
        end()


# Accumulated: the writes of several steps, with one sum for the gradients of each table. Pure.
#
# `accumulating` makes it the buffer of a closure for a while. What it holds at the end becomes part
# of the closure's own writes, so it is committed with them or not at all.


class Accumulated(Updates):
    """Writes of which the gradients of each table are added up, and which reads do not see.

    Parameters
    ----------
    of : Updates
        The closure's own; its shards' versions are noted there.
    server_client : ServerClient
        The client to read with.
    """

    def __init__(self, of: Updates, server_client: ServerClient) -> None:
        super().__init__(
            counted=of.counted, sync_round=of.sync_round, server_client=server_client, seen=of.seen
        )
        self._gradients: dict[tuple[ShardId, str], PushGradient] = {}
        self._rows: dict[tuple[ShardId, str], list[PushRows]] = {}

    def add(self, writes: Iterable[ShardWrite]) -> None:
        """Add writes; gradients to what is there of their table.

        Their norm, by which optimizers may clip, is not that of the sum, and left out.
        """
        for shard, write in writes:
            key, operation = (shard, write.table), write.operation
            match operation:
                case PushGradient() if key in self._gradients:
                    self._gradients[key] = _added(self._gradients[key], operation)
                case PushGradient(gradient=gradient):
                    self._gradients[key] = replace(
                        operation, gradient=np.array(gradient), norm=None
                    )
                case PushRows():
                    self._rows.setdefault(key, []).append(operation)
                case _:
                    super().add([(shard, write)])

    def pending(self, shard: ShardId, table: str) -> list[TableOperation]:
        """Return the writes that a read must show: none of the gradients."""
        return [each for each in super().pending(shard, table) if not each.collected]

    def __bool__(self) -> bool:
        """Return whether there is anything to commit."""
        return super().__bool__() or bool(self._gradients or self._rows)

    def give(self, updates: Updates) -> None:
        """Add all writes to others, with one gradient for each table, after the other writes."""
        updates.add((shard, each) for shard, writes in self._writes.items() for each in writes)
        updates.add(
            (shard, OnTable(table, push)) for (shard, table), push in self._gradients.items()
        )
        updates.add(
            (shard, OnTable(table, _joined(pushes)))
            for (shard, table), pushes in self._rows.items()
        )
        if self.weight is not None:
            updates.weigh(self.weight)


def _added(held: PushGradient, push: PushGradient) -> PushGradient:
    """Return the sum of two gradients, of what one of both has; in the memory of the first one."""
    ranges = union(held.ranges, push.ranges)
    if ranges is held.ranges:
        add_to(held.gradient, push.gradient, None if ranges is not None else push.ranges)
        return held
    extent = push.gradient.size if ranges is None else int(ranges[-1:, 1].sum())
    whole = np.zeros(extent, held.gradient.dtype)
    for each in (held, push):
        add_to(whole, each.gradient, each.ranges)
    return replace(held, gradient=compacted(whole, ranges), ranges=ranges)


def _joined(pushes: list[PushRows]) -> PushRows:
    ids = np.concatenate([each.ids for each in pushes])
    gradients = np.concatenate([each.gradients for each in pushes])
    return PushRows(*summed(ids, gradients), distinct=True, half=pushes[0].half)


@contextmanager
def accumulating(server_client: ServerClient) -> Iterator[None]:
    """Add up the gradients that this closure pushes in the block; reads do not see them.

    Outside of a closure, pushes are made as usual.

    Parameters
    ----------
    server_client : ServerClient
        The client to read with.
    """
    own = current_updates()
    if own is None:
        yield
        return
    accumulated = Accumulated(own, server_client)
    with buffered(accumulated):
        yield
    accumulated.give(own)


# DryRunClient: the way to the servers of a closure whose writes must not happen.
#
# Reads go to the servers, without making rows or counting occurrences. Writes stay in the closure's
# `Updates`, which is never committed, so that the closure sees them. What would change a parameter
# at once, and could not be seen otherwise, is refused.

T = TypeVar("T")

_READS = (TableRead, ReadOptimizer, ReadRate, ReadUse, DescribeRows, CountSkipped, CountUpdates)


class DryRunClient(ServerClient):
    """A `ServerClient` that writes nothing; for one closure.

    Parameters
    ----------
    server_client : ServerClient
        The way to the servers.
    """

    def __init__(self, server_client: ServerClient) -> None:
        self._server_client = server_client
        self._updates: Updates | None = None  # of the closure that runs

    def run(self, function: Callable[[], T], sync_round: Round | None) -> T:
        """Run a closure, and drop what it writes."""
        self._updates = Updates(sync_round=sync_round, server_client=self)
        with buffered(self._updates):
            return function()

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        """Run requests that read.

        Raises
        ------
        ConfigurationError
            If one of them would change something.
        """
        return self._server_client.call([_reading(each) for each in requests], seen)

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        """Run requests that read, and return errors as results."""
        return self._server_client.attempt([_reading(each) for each in requests])

    def commit(self, commit: Commit, parts: Mapping[ShardId, Part]) -> None:
        """Hold back what should be written at once, too."""
        writes = [(shard, each) for shard, part in parts.items() for each in part.writes]
        for _, each in writes:
            if isinstance(each.operation, EndDay):
                raise _refused(each.operation)
        if self._updates is not None:
            self._updates.buffer(writes)

    def server_name(self, shard: ShardId) -> str:
        """Return what people call the server of a shard."""
        return self._server_client.server_name(shard)

    def allocate(self, shard: ShardId, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Return None: nothing is sent."""


class _Dropped(Updates):
    """Takes writes and keeps none."""

    def add(self, writes: Iterable[ShardWrite]) -> None:
        """Take writes."""


@contextmanager
def writing_nothing() -> Iterator[None]:
    """Drop what this thread writes to parameters: it does not even see it itself.

    Reads make no rows and count no occurrences, as with ``training=False``. For evaluation.
    """
    with buffered(_Dropped(server_client=DryRunClient(client_of(None)))):
        yield


def writes_nothing() -> bool:
    """Return whether this thread is within `writing_nothing`: gradients would be for nothing."""
    return isinstance(current_updates(), _Dropped)


def _reading(request: Request) -> Request:
    """Return a request that neither makes rows nor counts occurrences."""
    on = request.operation
    if not isinstance(on, OnTable):
        raise _refused(on)
    match on.operation:
        case LookUpRows():
            return Request(request.to, replace(on, operation=_unseen(on.operation)))
        case Preview(writes, read):
            preview = Preview(writes, _unseen(read))
            return Request(request.to, replace(on, operation=preview))
    if not isinstance(on.operation, _READS):
        raise _refused(on.operation)
    return request


def _unseen(read: TableRead) -> TableRead:
    return replace(read, training=False) if isinstance(read, LookUpRows) else read


def _refused(operation: object) -> ConfigurationError:
    name = str(operation) if isinstance(operation, TableOperation) else type(operation).__name__
    return ConfigurationError(
        f"{name} would change parameters at once, and a closure that is run again to be examined "
        "changes none"
    )
