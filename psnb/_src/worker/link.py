"""NotebookLink: a session's way to its coordinator, and what closures ask over it.

Threads: any thread sends and asks. The event loop opens and closes the link, receives, and hands
answers to the waiting threads.
"""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from typing import Any

from psnb._src.dask_compat.reach import Comm
from psnb._src.protocol.messages import Inquiry, QuestionAsked, TakeAnswer, ToNotebook, ToWorker
from psnb._src.transport.stream import MessageStream, message_stream
from psnb.errors import ClosureCancelledError


class NotebookLink:
    """Carries messages between a session and its coordinator.

    Parameters
    ----------
    comm : distributed.comm.Comm
        The coordinator's connection.

    Attributes
    ----------
    closed : bool
        Whether the coordinator has closed, or is out of reach.
    """

    def __init__(self, comm: Comm) -> None:
        self.closed = False
        self._comm = comm
        self._stream: MessageStream | None = None  # set when the coordinator was answered
        self._numbers = itertools.count()
        self._asked: dict[int, Future[Any]] = {}  # each operation on a dict is atomic

    async def open(self, threads: int) -> None:
        """Tell the coordinator that the session is ready, with ``threads`` closure threads."""
        await self._comm.write({"status": "OK", "threads": threads})
        self._stream = message_stream(self._comm)

    async def receive(self) -> ToWorker:
        """Return the next message of an open link; raises OSError when the connection ends."""
        assert self._stream is not None
        return await self._stream.receive(ToWorker)

    def send(self, message: ToNotebook) -> None:
        """Send a message, if the link is open; does not wait."""
        if self._stream is not None:
            self._stream.send(message)

    def ask(self, inquiry: Inquiry) -> Future[Any]:
        """Ask the coordinator; the answer is a `ClosureCancelledError` if it is out of reach."""
        number, future = next(self._numbers), Future[Any]()
        self._asked[number] = future
        if self.closed:  # checked after the future is stored; `close` does it in the other order
            self._give_up(number)
        else:
            self.send(QuestionAsked(number, inquiry))
        return future

    def take_answer(self, message: TakeAnswer) -> None:
        """Hand an answer to the thread that waits for it."""
        if (future := self._asked.pop(message.number, None)) is not None:
            future.set_result(message.answer)

    def close(self) -> None:
        """Close the connection; waits for an answer raise `ClosureCancelledError`."""
        self.closed = True
        for number in list(self._asked):
            self._give_up(number)
        if self._stream is not None:
            self._stream.abort()
        self._comm.abort()

    def _give_up(self, number: int) -> None:
        if (future := self._asked.pop(number, None)) is not None:
            future.set_exception(out_of_reach())


def out_of_reach() -> ClosureCancelledError:
    """Return the error of closures whose coordinator is not there any more."""
    return ClosureCancelledError("the coordinator has closed, or is out of reach")
