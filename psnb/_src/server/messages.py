"""The messages between clients and servers: requests, replies, and the answers in these. Pure.

A `PendingReply` is sent when everything that its message changed is safe.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from psnb._src.server.memory import refusal
from psnb._src.server.tables.operations import Operation
from psnb._src.transport.message import Message


class Done(Message, frozen=True):
    """The operation was carried out. ``version`` is that of the shard, if it was one on a shard."""

    result: Any
    version: int = 0


# Known to the collector of cycles: an exception knows the frames that it went through, which know
# the answers.
class Failed(Message, frozen=True, gc=True):
    """The operation raised."""

    error: Exception


class Moved(Message, frozen=True):
    """The shard is not here."""


class Later(Message, frozen=True):
    """The shard is being loaded; what is asked for is to be asked again."""


ServerAnswer = Done | Failed | Moved | Later


class ServerRequest(Message, frozen=True):
    """A message to the server with this key. Without operations it asks for a heartbeat.

    The operations run with no others in between.
    """

    nested: ClassVar[bool] = True

    number: int
    key: str
    operations: Sequence[Operation]


class ServerReply(Message, frozen=True):
    """The answers to a message, by its number; None if there is no such server (any more).

    One answer to several operations is that to each: there was no memory to read the message.
    """

    nested: ClassVar[bool] = True

    number: int
    answers: Sequence[ServerAnswer] | None


def number_in(head: bytes) -> int:
    """Return the number of a request or reply, from the pickle of it: the first of its fields."""
    return next(
        argument
        for code, argument, _ in pickletools.genops(head)
        if isinstance(argument, int) and code.name not in ("PROTO", "FRAME")
    )


class PendingReply:
    """Collects answers, and waits until copies of shards have the changes.

    Parameters
    ----------
    send : callable
        Called once, with all answers.
    """

    def __init__(self, send: Callable[[list[ServerAnswer]], None]) -> None:
        self.answers: list[ServerAnswer] = []
        self._send = send
        self._missing = 1  # the message itself, until all of its operations have run

    def wait(self) -> None:
        """Wait for one more `release`."""
        self._missing += 1

    def release(self) -> None:
        """End one `wait`."""
        self._missing -= 1
        if not self._missing:
            self._send(self.answers)

    def ran(self) -> None:
        """Note that all operations have run."""
        if self._missing > 1:
            # Copied: the reply waits, and arrays that tables return may change meanwhile.
            self.answers = [_kept(answer) for answer in self.answers]
        self.release()


def _kept(answer: ServerAnswer) -> ServerAnswer:
    if isinstance(answer, Done) and isinstance(answer.result, np.ndarray):
        try:
            return Done(answer.result.copy(), answer.version)
        except MemoryError as error:
            return Failed(refusal(error, "the answer to a request", "a parameter server"))
    return answer
