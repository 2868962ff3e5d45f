"""Ways for a worker to die in the middle of a commit; for closures to arrange for.

Each patches what the closure's process sends, so that the process ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from psnb._src.parameters.comm_server_client import CommServerClient
from psnb._src.parameters.request_batch import Request
from psnb._src.server.table_operations import (
    Operation,
)
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
    from psnb._src.parameters.comm_server_client import _RequestRound

    _RequestRound.answered = lambda exchange, answer: kill_myself()  # type: ignore[method-assign]
    return real(transport, requests)


def arrange(operation: type[Operation], die: Die) -> None:
    """Let this process end so with the next requests for an operation."""
    real: Attempt = CommServerClient.attempt

    def attempt(transport: CommServerClient, requests: Sequence[Request]) -> list[Any]:
        if isinstance(requests[0].operation, operation):
            return die(real, transport, requests)
        return real(transport, requests)

    CommServerClient.attempt = attempt  # type: ignore[method-assign]
