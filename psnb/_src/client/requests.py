"""RequestBatch: the requests of one call, and their outcomes.

Answers come on the event loop, in any order and from any server; the calling thread waits for the
last. A request that was sent again may be answered twice: the first answer counts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from psnb._src.dask_compat import cloudpickled
from psnb._src.placement.layout import ServerAddress, ShardId
from psnb._src.protocol.errors import lost_shard
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.operations import (
    CommitParts,
    Done,
    Failed,
    HostOperation,
    Moved,
    OnShard,
    Packed,
    PreparePart,
    ReadSegment,
    ReleaseSnapshot,
    ServerAnswer,
    SnapshotHeader,
    TakeSnapshot,
)
from psnb._src.server.tables.operations import (
    ClearTable,
    FinishTable,
    OnTable,
    PutSegment,
    Segment,
    ShardOperation,
    TableOperation,
    row_nbytes,
    rows_in_segment,
)
from psnb._src.transport.stream import UnreadableError
from psnb._src.utils.ahead import require_closure
from psnb._src.utils.threads import Answer
from psnb.errors import (
    ConfigurationError,
    CoordinatorClosedError,
    InternalError,
    PsnbError,
    SerializationError,
    ServerLostError,
    ServerUnresponsiveError,
)

_LONGEST_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Request:
    """One operation, and the shard or server that it is for."""

    to: ShardId | ServerAddress
    operation: ShardOperation | HostOperation


def on_table(shard: ShardId, table: str, operation: TableOperation) -> Request:
    """Return the request for an operation on a table."""
    return Request(shard, OnTable(table, operation))


def unresponsive(request: Request, reason: str) -> ServerUnresponsiveError:
    """Return the error for a request that may still be answered, or carried out, later."""
    to = request.to
    if isinstance(to, ServerAddress):
        return ServerUnresponsiveError(
            f"parameter {to.name} at {to.address} does not answer: {reason}"
        )
    return ServerUnresponsiveError(
        f"shard {to.number} of {_tables(request)} does not answer: {reason}. If it does not "
        "come back, strategy.recover() brings the shard back from the last checkpoint, or "
        "strategy.recover(initialize=True) starts over without one"
    )


def lost(
    request: Request, reason: BaseException | None, server: ServerAddress | None = None
) -> ServerLostError:
    """Return the error for a request that cannot be answered any more.

    ``server`` is the one that had the shard, if that is known.
    """
    to = request.to
    if isinstance(to, ServerAddress):
        error = ServerLostError(f"parameter {to.name} at {to.address} does not answer: {reason}")
    else:
        why = reason or "no server has it"
        error = lost_shard(
            f"shard {to.number} of {_tables(request)} is gone with its server: {why}", to, server
        )
    error.__cause__ = reason
    return error


def _tables(request: Request) -> str:
    """Return the names of the parameters that a request to a shard is about."""
    match request.operation:
        case OnTable(table=table):
            names = {table}
        case PreparePart(part=part):
            names = {write.table for write in part.writes}
        case CommitParts(parts=parts):
            names = {write.table for part in parts.values() for write in part.writes}
        case _:
            names = set()
    return ", ".join(map(repr, sorted(names))) or "the parameters"


def unreadable(request: Request, error: UnreadableError) -> SerializationError:
    """Return the error for a request that one side sent and the other cannot unpickle."""
    to = request.to
    where = to.address if isinstance(to, ServerAddress) else f"of shard {to.number}"
    made = SerializationError(
        f"parameter server {where} and this process do not understand each other "
        f"({request.operation}), or another request of this moment: {error}. "
        "Both need the same modules, psnb as well"
    )
    made.__cause__ = error
    return made


def _on_server(request: Request) -> HostOperation:
    """Return an operation in the form in which it is sent to a server."""
    operation = request.operation
    if isinstance(operation, HostOperation):
        return operation
    assert isinstance(request.to, ShardId)
    if (operation.operation if isinstance(operation, OnTable) else operation).descriptive:
        try:
            operation = Packed(str(operation), cloudpickled(operation))
        except Exception as error:  # whatever a class may raise while it is pickled
            raise SerializationError(
                f"the arguments of {operation} cannot be pickled: {error!r}. Locks, files and "
                "connections do not travel"
            ) from error
    return OnShard(request.to.number, operation)


class RequestBatch:
    """Requests that a thread waits for, or that something follows.

    Parameters
    ----------
    requests : sequence of Request
        All of them.
    then : callable, optional
        Called by the event loop when all have an answer.
    later : bool
        Whether they may be held back until something else is sent.

    Attributes
    ----------
    requests : sequence of Request
        All of them.
    done : Answer
        Set when all have an answer; cancelled when it is not waited for any more.
    breaks : int
        How often a connection broke while they were under way.
    later : bool
        As given, until they are sent.
    """

    def __init__(
        self, requests: Sequence[Request], then: Callable[[], object] = bool, later: bool = False
    ) -> None:
        self.requests, self._then, self.later = requests, then, later
        # Pickled here, in the caller's thread, where it may raise.
        self._operations = [_on_server(request) for request in requests]
        self.done: Answer[None] = Answer()
        self.breaks = 0
        self._answers: list[Done | Failed | None] = [None] * len(requests)
        self._missing = len(requests)
        self._sent: dict[int, ServerAddress] = {}
        self._trouble: float | None = None
        self._pause = 0.0

    def operation(self, position: int) -> HostOperation:
        """Return a request in the form in which it is sent."""
        return self._operations[position]

    def sent(self, positions: Sequence[int], server: ServerAddress) -> None:
        """Note where requests are sent; any thread, before they are sent."""
        for position in positions:
            self._sent[position] = server

    def waiting(self) -> dict[int, ServerAddress]:
        """Return the requests without an answer that were sent, and where to."""
        if self.done.done():
            return {}
        sent = self._sent.items()
        return {position: server for position, server in sent if self._answers[position] is None}

    def since_trouble(self) -> float:
        """Return the seconds since the first call of this method."""
        now = time.monotonic()
        self._trouble = self._trouble or now
        return now - self._trouble

    def pause(self, first: float) -> float:
        """Return how long to wait before trying again."""
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause) or first
        return self._pause

    def answered(self, positions: Sequence[int], answers: Sequence[ServerAnswer]) -> list[int]:
        """Take the answers to some requests; return those whose shard has left the server."""
        moved = []
        for position, answer in zip(positions, answers, strict=True):
            if isinstance(answer, Moved):
                moved.append(position)
            else:
                self._settle(position, answer)
        return moved

    def failed(self, positions: Sequence[int], error: Exception) -> None:
        """Set an error as the answer to requests."""
        for position in positions:
            self._settle(position, Failed(error))

    @contextlib.contextmanager
    def failing(self, positions: Sequence[int]) -> Iterator[None]:
        """Make any exception in this block the answer to requests."""
        try:
            yield
        except PsnbError as error:
            self.failed(positions, error)
        except OSError as error:
            for position in positions:
                self.failed([position], lost(self.requests[position], error))
        except Exception as error:  # a bug of ours: the caller must not wait for ever
            self.failed(positions, InternalError(f"a request could not be sent: {error!r}"))
            raise

    def outcomes(self, seen: dict[ShardId, int] | None = None) -> list[Any]:
        """Return all results, errors as exceptions; see `ServerClient.attempt`."""
        answers, self._answers = self._answers, []
        found: list[Any] = []
        for request, answer in zip(self.requests, answers, strict=True):
            if answer is None:
                found.append(CoordinatorClosedError("it is not waited for any more"))
                continue
            if isinstance(answer, Failed):
                found.append(answer.error)
                continue
            found.append(answer.result)
            if seen is not None and isinstance(request.to, ShardId):
                seen.setdefault(request.to, answer.version)
        return found

    def _settle(self, position: int, answer: Done | Failed) -> None:
        # When it is not waited for any more, the answers were taken, and further ones are not
        # needed.
        if self.done.done() or self._answers[position] is not None:
            return
        self._answers[position] = answer
        self._missing -= 1
        if not self._missing:
            self.done.set_result(None)
            # Once, and it may refer to this batch: large arrays must not wait for a collection.
            then, self._then = self._then, bool
            then()


# ServerClient: how parameters reach the servers.
#
# Each Dask worker has one, and parameters that are unpickled in its process use it: in a closure
# that of the closure's worker, since workers of a cluster without processes share one. The
# parameters in the notebook use the strategy's client.


class ServerClient(Protocol):
    """Sends requests to servers."""

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        """Run all requests, in parallel where possible, and return their results in order.

        ``seen`` gets the version (the count of updates) of each shard that is not in it yet.

        Raises
        ------
        ServerLostError
            If a server cannot be reached, or has nothing of this strategy any more.
        SerializationError
            If arguments or results cannot be pickled, or cannot be unpickled by the receiver. Then
            other requests to that server that were under way fail as well.
        """

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        """Run requests as `call` does, also to servers themselves; return errors as results.

        After a `ServerUnresponsiveError` the request may still be carried out later. After any
        other error it was not carried out, and will not be.

        Raises
        ------
        PsnbError
            If an error stops all of them, with the same meaning.
        """

    def commit(self, commit: Commit, parts: Mapping[ShardId, Part]) -> int | None:
        """Make the writes of a commit on all shards or none; see `psnb._src.client.commit`."""

    def server_name(self, shard: ShardId) -> str:
        """Return what people call the server of a shard, or the shard if that is not known."""

    def allocate(
        self, shard: ShardId, shape: tuple[int, ...], dtype: np.dtype
    ) -> np.ndarray | None:
        """Return an array that can be sent to a shard's server without a copy, or None.

        It must not be changed after it was sent.
        """


_of_workers: list[ServerClient] = []
"""Those of this process's workers, in the order in which they came."""

_of_thread = threading.local()


def add_process_client(server_client: ServerClient) -> None:
    """Let parameters that are unpickled in this process use a worker's client."""
    _of_workers.append(server_client)


def remove_process_client(server_client: ServerClient) -> None:
    """Use it no more, since its worker leaves."""
    _of_workers.remove(server_client)


@contextmanager
def reaching_by(server_client: ServerClient) -> Iterator[None]:
    """Use a client in this thread, whatever other workers this process has."""
    before = getattr(_of_thread, "client", None)
    _of_thread.client = server_client
    try:
        yield
    finally:
        _of_thread.client = before


def process_client() -> ServerClient:
    """Return the `ServerClient` of this thread's worker; else of the last that came.

    Raises
    ------
    ConfigurationError
        If this is not a process of a cluster that psnb prepared.
    """
    require_closure()
    own: ServerClient | None = getattr(_of_thread, "client", None)
    if own is not None:
        return own
    if not _of_workers:
        raise ConfigurationError(
            "parameters can only be used in the notebook that made them and on the workers of its "
            "cluster; this process is neither"
        )
    return _of_workers[-1]


# Reading and writing whole tables, in segments.
#
# A table is read as it was at one moment (`psnb._src.server.snapshots`); the moments of several
# tables differ slightly.

_ATTEMPTS = 5

TableName = tuple[ShardId, str]
"""A shard, and a table there."""


class _TableReader:
    """A table that is being read."""

    def __init__(self, table: TableName, header: SnapshotHeader) -> None:
        self.table = table
        self._name, self.rows = header.snapshot, header.rows
        self.state: Segment = {
            name: np.empty((self.rows, *array.shape[1:]), array.dtype)
            for name, array in header.form.items()
        } | header.tail
        self._names = tuple(header.form)
        self._step = rows_in_segment(header.row_nbytes)
        self.done = 0

    def request(self) -> Request:
        """Return the request for the next segment, or the one that ends the reading."""
        shard, _ = self.table
        if self.done == self.rows:
            return Request(shard, ReleaseSnapshot(self._name))
        stop = min(self.done + self._step, self.rows)
        return Request(shard, ReadSegment(self._name, self.done, stop))

    def take(self, segment: Segment) -> None:
        """Take the segment that was asked for."""
        size = len(segment[self._names[0]])
        for name in self._names:
            self.state[name][self.done : self.done + size] = segment[name]
        self.done += size


def read_states(server_client: ServerClient, tables: Sequence[TableName]) -> list[Segment]:
    """Return the content of tables, each as it was at one moment.

    Raises
    ------
    ServerLostError
        If a server is gone.
    """
    found: dict[TableName, Segment] = {}
    for _ in range(_ATTEMPTS):
        left = [table for table in tables if table not in found]
        if not left:
            return [found[table] for table in tables]
        headers = server_client.call([Request(shard, TakeSnapshot(table)) for shard, table in left])
        under_way = [_TableReader(*each) for each in zip(left, headers, strict=True)]
        while under_way:
            answers = server_client.call([each.request() for each in under_way])
            again = []
            for reading, segment in zip(under_way, answers, strict=True):
                if reading.done == reading.rows:
                    found[reading.table] = reading.state
                elif segment is not None:
                    reading.take(segment)
                    again.append(reading)
                # Otherwise its server was lost meanwhile: start again.
            under_way = again
    names = sorted({table for shard, table in tables if (shard, table) not in found})
    raise ServerLostError(
        f"what {names} hold could not be read: their servers were lost, {_ATTEMPTS} times in a "
        "row; try again when the cluster is at rest"
    )


def read_segments(server_client: ServerClient, table: TableName) -> Iterator[Segment]:
    """Yield the rows of a table as they were at one moment, in segments.

    Raises
    ------
    ServerLostError
        If a server is gone.
    """
    shard, name = table
    (header,) = server_client.call([Request(shard, TakeSnapshot(name))])
    step = rows_in_segment(header.row_nbytes)
    try:
        for start in range(0, header.rows, step):
            stop = min(start + step, header.rows)
            read = Request(shard, ReadSegment(header.snapshot, start, stop))
            (segment,) = server_client.call([read])
            if segment is None:
                raise ServerLostError(
                    f"the server of table {name!r} was lost, or given up, while it was read; "
                    "try again"
                )
            yield segment
    finally:
        with suppress(ServerLostError):  # then there is nothing to release
            server_client.call([Request(shard, ReleaseSnapshot(header.snapshot))])


def write_states(
    server_client: ServerClient,
    states: Sequence[tuple[TableName, Segment, Segment]],
    *,
    numbered: bool = False,
) -> None:
    """Replace the content of tables.

    Parameters
    ----------
    server_client : ServerClient
        The client of the servers.
    states : sequence of tuple
        Each table, its rows, and its tail (see `psnb._src.server.tables.table`).
    numbered : bool
        Whether each segment carries the number of its first row.

    Raises
    ------
    ServerLostError
        If a server is gone; the others may have a part of the new content.
    """
    server_client.call([on_table(*table, ClearTable()) for table, _, _ in states])
    start = [0] * len(states)
    while True:
        requests = []
        for i, (table, rows, _) in enumerate(states):
            size, step = len(next(iter(rows.values()))), rows_in_segment(row_nbytes(rows))
            if start[i] < size:
                segment = {name: array[start[i] : start[i] + step] for name, array in rows.items()}
                if numbered:
                    segment["start"] = np.array([start[i]])
                requests.append(on_table(*table, PutSegment(segment)))
                start[i] += step
        if not requests:
            break
        server_client.call(requests)
    server_client.call([on_table(*table, FinishTable(tail)) for table, _, tail in states])


# Statistics of an embedding: plain values. Pure.


@dataclass(frozen=True, slots=True)
class EmbeddingStatistics:
    """An embedding's rows and memory, over all servers.

    Attributes
    ----------
    rows : int
        Rows that exist: those of admitted ids, or all rows of a table with fixed rows.
    waiting : int
        Ids that were sighted, but not often enough to be admitted.
    nbytes : int
        Bytes in total: parameters, optimizer state, use of rows and index.
    index_nbytes : int
        Bytes of the hash maps from ids to rows.
    """

    rows: int
    waiting: int
    nbytes: int
    index_nbytes: int


@dataclass(frozen=True, slots=True)
class RowStatistics:
    """How rows were used; see `CtrAccessor`.

    Attributes
    ----------
    show, click : numpy.ndarray
        Decayed counts, float32.
    unseen_days : numpy.ndarray
        Days ended since the last push, float32.
    score : numpy.ndarray
        The score by which `Embedding.shrink` decides.
    """

    show: np.ndarray
    click: np.ndarray
    unseen_days: np.ndarray
    score: np.ndarray
