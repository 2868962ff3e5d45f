"""DryRunClient: the way to the servers of a closure whose writes must not happen.

Reads go to the servers, without making rows or counting occurrences. Writes stay in the closure's
`Updates`, which is never committed, so that the closure sees them. An operation that would change a
parameter immediately, and could not be seen otherwise, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec.structs import replace

from psnb._src.client.requests import Request
from psnb._src.client.server_client import FrontClient, ServerClient
from psnb._src.client.updates import (
    Round,
    ShardWrite,
    Updates,
    buffered,
    client_of,
    current_updates,
)
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.tables import operations as ops
from psnb.errors import ConfigurationError

T = TypeVar("T")


class DryRunClient(FrontClient):
    """A `ServerClient` that writes nothing; for one closure.

    Parameters
    ----------
    server_client : ServerClient
        The way to the servers.
    """

    def __init__(self, server_client: ServerClient) -> None:
        super().__init__(server_client)
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
        return self._behind.call([_reading(each) for each in requests], seen)

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        """Run requests that read, and return errors as results."""
        return self._behind.attempt([_reading(each) for each in requests])

    def commit(self, commit: Commit, parts: Mapping[ShardId, Part]) -> None:
        """Also hold back writes that should be immediate."""
        writes = [(shard, each) for shard, part in parts.items() for each in part.writes]
        for _, each in writes:
            if isinstance(each.operation, ops.EndDay):
                raise _refused(each.operation)
        if self._updates is not None:
            self._updates.buffer(writes)


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
    if not isinstance(on, ops.OnTables):
        raise _refused(on)
    match on.operation:
        case ops.LookUpRows():
            return Request(request.to, replace(on, operation=_unseen(on.operation)))
        case ops.Preview(writes, read):
            preview = ops.Preview(writes, _unseen(read))
            return Request(request.to, replace(on, operation=preview))
    if on.operation.changes:
        raise _refused(on.operation)
    return request


def _unseen(read: ops.TableRead) -> ops.TableRead:
    return replace(read, training=False) if isinstance(read, ops.LookUpRows) else read


def _refused(operation: object) -> ConfigurationError:
    return ConfigurationError(
        f"{operation} would change parameters at once, and a closure that is run again to be "
        "examined changes none"
    )
