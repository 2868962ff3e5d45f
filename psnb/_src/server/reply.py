"""PendingReply: the answers to one message, sent when everything that it changed is safe. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Answer = tuple[Any, ...]
"""``("OK", result, version of the shard)``, ``("OK", result)`` of a server itself, ``("error",
exception)``, or ``("moved",)``: the shard is not here."""


class PendingReply:
    """Collects answers, and waits until copies of shards have the changes.

    Parameters
    ----------
    send : callable
        Called once, with all answers.
    """

    def __init__(self, send: Callable[[list[Answer]], None]) -> None:
        self.answers: list[Answer] = []
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
            self.answers = [tuple(map(_kept, answer)) for answer in self.answers]
        self.release()


def _kept(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
