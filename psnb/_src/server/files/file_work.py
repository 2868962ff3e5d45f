"""FileWork: what a server writes or reads while it answers, also how far it is. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from psnb._src.server.operations import FileProgress
from psnb._src.utils.standby import StandbyThreads
from psnb._src.utils.threads import Answer
from psnb.errors import CheckpointError


class FileWork(ABC):
    """Work that one of some threads does.

    Used by the server's one thread, but for what is marked.

    Parameters
    ----------
    server : str
        What people call the server.
    threads : StandbyThreads
        One of them does it.

    Attributes
    ----------
    ticks : int
        Minutes after which it ends if it is not asked for: its notebook is gone.
    """

    ticks = 2

    def __init__(self, server: str, threads: StandbyThreads) -> None:
        self._server, self._threads = server, threads
        self._ticks = self._nbytes = 0
        self._ended: Answer[Any]
        self._stopped = False

    def begin(self) -> None:
        """Begin; it may begin again when it has ended."""
        self._ended = Answer()
        self._threads.submit(self._ended.give, self._run)

    def progress(self) -> FileProgress:
        """Return how far it is.

        Raises
        ------
        CheckpointError
            If it failed.
        """
        self._ticks = 0
        if not self._ended.done():
            return FileProgress(self._nbytes, None)
        return FileProgress(self._nbytes, self._ended.result())

    def tick(self) -> bool:
        """Count a minute; return whether it is still asked for."""
        self._ticks += 1
        return self._ticks < self.ticks

    def stop(self) -> None:
        """End it. Idempotent."""
        self._stopped = True

    # The rest runs in the thread that does it.

    @abstractmethod
    def _run(self) -> Any:
        """Do it, and return the result."""

    def _check(self) -> None:
        if self._stopped:
            raise CheckpointError(f"{self._server} was asked to stop")
