"""RequestBatch: the requests of one call, and their outcomes.

Answers come in any order, from any server and in any thread; the calling thread waits for the last.
A request that was sent again may be answered twice: the first answer counts.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from psnb._src.dask_compat.reach import cloudpickled
from psnb._src.placement.layout import ServerAddress, ShardId
from psnb._src.protocol.lost_shards import lost_shard
from psnb._src.server.messages import Done, Failed, Later, Moved, ServerAnswer
from psnb._src.server.operations import CommitParts, HostOperation, OnShard, Packed, PreparePart
from psnb._src.server.tables.operations import (
    OnTables,
    ShardOperation,
    TableOperation,
    names_of_tables,
)
from psnb._src.transport.stream import UnreadableError
from psnb._src.utils.threads import Answer
from psnb.errors import (
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
    return Request(shard, OnTables((table,), operation))


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
        case OnTables(tables=tables) | OnShard(operation=OnTables(tables=tables)):
            names = {*tables}
        case PreparePart(part=part):
            names = {name for write in part.writes for name in write.tables}
        case CommitParts(parts=parts):
            writes = [write for part in parts.values() for write in part.writes]
            names = {name for write in writes for name in write.tables}
        case _:
            names = set()
    return names_of_tables(sorted(names)) or "the parameters"


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
    if (operation.operation if isinstance(operation, OnTables) else operation).descriptive:
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
        Called when all have an answer, where the last one comes.
    later : bool
        Whether they may be held back until something else is sent.

    Attributes
    ----------
    requests, operations : sequence of Request, list of HostOperation
        All of them; in the form in which they are sent.
    done : Answer
        Set when all have an answer; cancelled when it is not waited for any more.
    breaks : int
        How often a connection broke while they were under way.
    later : bool
        As given, until they are sent.
    sent : dict of int to ServerAddress
        Where requests are sent, by position; any thread notes it, before they are sent.
    """

    def __init__(
        self, requests: Sequence[Request], then: Callable[[], object] = bool, later: bool = False
    ) -> None:
        self.requests, self._then, self.later = requests, then, later
        # Pickled here, in the caller's thread, where it may raise.
        self.operations = [_on_server(request) for request in requests]
        self.done: Answer[None] = Answer()
        self.breaks = 0
        # Each operation on these is atomic.
        self._answers: dict[int, Done | Failed] = {}
        self._count = itertools.count(1)
        self.sent: dict[int, ServerAddress] = {}
        self._trouble: float | None = None
        self._pause = 0.0

    def waiting(self) -> dict[int, ServerAddress]:
        """Return the requests without an answer that were sent, and where to."""
        if self.done.done():
            return {}
        sent = self.sent.items()
        return {position: server for position, server in sent if position not in self._answers}

    def since_trouble(self) -> float:
        """Return the seconds since the first call of this method."""
        now = time.monotonic()
        self._trouble = self._trouble or now
        return now - self._trouble

    def pause(self, first: float) -> float:
        """Return how long to wait before trying again."""
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause) or first
        return self._pause

    def answered(
        self, positions: Sequence[int], answers: Sequence[ServerAnswer]
    ) -> tuple[list[int], list[int]]:
        """Take the answers to some requests.

        Returns the ones whose shard has left the server, and the ones to be asked later.
        """
        moved: list[int] = []
        later: list[int] = []
        for position, answer in zip(positions, answers, strict=True):
            if isinstance(answer, Moved):
                moved.append(position)
            elif isinstance(answer, Later):
                later.append(position)
            else:
                self._settle(position, answer)
        return moved, later

    def failed(
        self, positions: Iterable[int], error: Exception | Callable[[Request], Exception]
    ) -> None:
        """Set an error as the answer to requests, or each request's own."""
        for position in positions:
            made = error if isinstance(error, Exception) else error(self.requests[position])
            self._settle(position, Failed(made))

    @contextlib.contextmanager
    def failing(self, positions: Sequence[int]) -> Iterator[None]:
        """Make any exception in this block the answer to requests."""
        try:
            yield
        except PsnbError as error:
            self.failed(positions, error)
        except OSError as error:
            self.failed(positions, partial(lost, reason=error))
        except Exception as error:  # a bug of ours: the caller must not wait for ever
            self.failed(positions, InternalError(f"a request could not be sent: {error!r}"))
            raise

    def outcomes(self, seen: dict[ShardId, int] | None = None) -> list[Any]:
        """Return all results, errors as exceptions; see `ServerClient.attempt`."""
        answers, self._answers = self._answers, {}
        found: list[Any] = []
        for position, request in enumerate(self.requests):
            if (answer := answers.get(position)) is None:
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
        if self.done.done() or self._answers.setdefault(position, answer) is not answer:
            return
        if next(self._count) == len(self.requests):
            self.done.set_result(None)
            # Once, and it may refer to this batch: large arrays must not wait for a collection.
            then, self._then = self._then, bool
            then()


class RequestRound:
    """The requests of a batch that go to one server, in one message.

    Parameters
    ----------
    batch, server, positions
        Which, and where to.
    again : callable
        Sends requests again, to where their shards are then; with the error, if there was one.
    later : callable
        Sends requests again whose shards are being loaded.
    """

    def __init__(
        self,
        batch: RequestBatch,
        server: ServerAddress,
        positions: Sequence[int],
        again: Callable[..., object],
        later: Callable[[RequestBatch, Sequence[int]], object],
    ) -> None:
        self.batch, self.server, self.positions = batch, server, positions
        self._again, self._later = again, later

    def message(self) -> tuple[str, Sequence[HostOperation]]:
        return self.server.key, [self.batch.operations[position] for position in self.positions]

    def answered(self, answers: Sequence[ServerAnswer] | None) -> None:
        if answers is None:
            gone = "its strategy was closed, or its process was started again without its tables"
            error = ConnectionRefusedError(gone)
            self._again(self.batch, self.positions, self.server, error)
            return
        if len(answers) < len(self.positions):  # the server had no memory for the message
            answers = [*answers] * len(self.positions)
        moved, later = self.batch.answered(self.positions, answers)
        if moved:
            self._again(self.batch, moved, self.server)  # they will be elsewhere soon
        if later:
            self._later(self.batch, later)
