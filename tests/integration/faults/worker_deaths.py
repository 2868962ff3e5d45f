"""Ways for a worker to die in the middle of a commit; for closures to arrange for.

Each patches what the closure's process sends, so that the process ends with it.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.requests import Request
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.operations import CommitParts
from psnb._src.server.tables.operations import Operation
from tests.integration.helpers import kill_myself

Attempt = Callable[[CommServerClient, Sequence[Request]], list[Any]]
Die = Callable[[Attempt, CommServerClient, Sequence[Request]], list[Any]]


def before(real: Attempt, transport: CommServerClient, requests: Sequence[Request]) -> list[Any]:
    """End before anything is sent."""
    kill_myself()
    raise AssertionError


def after_one(real: Attempt, transport: CommServerClient, requests: Sequence[Request]) -> list[Any]:
    """End when one server has got it, and the others have not."""
    real(transport, requests[:1])
    kill_myself()
    raise AssertionError


def after_all(real: Attempt, transport: CommServerClient, requests: Sequence[Request]) -> list[Any]:
    """End when all servers have got it, and have said so."""
    real(transport, requests)
    kill_myself()
    raise AssertionError


def before_the_answer(
    real: Attempt, transport: CommServerClient, requests: Sequence[Request]
) -> list[Any]:
    """End when an answer comes, which nobody hears."""
    from psnb._src.client.requests import RequestRound

    RequestRound.answered = lambda exchange, answer: kill_myself()  # type: ignore[method-assign]
    return real(transport, requests)


def arrange(operation: type[Operation], die: Die) -> None:
    """Let this process end so with the next requests for an operation."""
    real: Attempt = CommServerClient.attempt
    real_soon = CommServerClient.commit_soon

    def commit_soon(
        transport: CommServerClient,
        commit: Commit,
        parts: Mapping[ShardId, Part],
        ended: Callable[[Any], None],
        *,
        later: bool = False,
    ) -> None:
        several = len(parts) > 1
        if several or not issubclass(CommitParts, operation):
            real_soon(transport, commit, parts, ended, later=later)  # which makes attempts
            return

        def send(transport: CommServerClient, requests: Sequence[Request]) -> list[Any]:
            told: queue.SimpleQueue[Any] = queue.SimpleQueue()
            real_soon(transport, commit, parts, told.put)
            return [told.get()]

        die(send, transport, [])

    def attempt(transport: CommServerClient, requests: Sequence[Request]) -> list[Any]:
        if isinstance(requests[0].operation, operation):
            return die(real, transport, requests)
        return real(transport, requests)

    CommServerClient.attempt = attempt  # type: ignore[method-assign]
    CommServerClient.commit_soon = commit_soon  # type: ignore[method-assign]
