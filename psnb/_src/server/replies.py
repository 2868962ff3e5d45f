"""PendingReply: the answers to one message, sent when everything that it changed is safe. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from psnb._src.server.memory import refusal
from psnb._src.server.operations import Done, Failed, ServerAnswer


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
