"""What Dask logs of the processes of a local cluster, in words that say what it means for them.

Dask's line is left out where it is known; if a release words it otherwise, it appears as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

from distributed import Worker
from distributed.core import Status

logger = logging.getLogger("psnb")

_NANNY = {
    "Restarting worker": "the process of %s has ended: it is started again, empty",
    "Worker process still alive after": "the process of %s did not end in time, and was killed",
}
_HEARTBEAT = "Failed to communicate with scheduler during heartbeat"

_whose: ContextVar[str] = ContextVar("whose process a nanny sees to")


@contextlib.contextmanager
def of_process(name: object) -> Iterator[None]:
    """Have what a nanny logs in the block be said of a process, in other words.

    Relies on the logger ``distributed.nanny``, and on how its warnings begin.
    """
    logging.getLogger("distributed.nanny").addFilter(_reworded)  # once, however often
    token = _whose.set(str(name))
    try:
        yield
    finally:
        _whose.reset(token)


def _reworded(record: logging.LogRecord) -> bool:
    if whose := _whose.get(""):  # nannies of other clusters log as ever
        for begins, words in _NANNY.items():
            if record.getMessage().startswith(begins):
                logger.warning(words, whose)
                return False
    return True


def await_heartbeats(worker: Worker, patience: float = 1.0) -> None:
    """Have a worker say that its scheduler does not answer only if it goes on after that.

    While a cluster closes the scheduler often hangs up first, which Dask logs with a traceback. To
    be called in the worker's own process. Relies on the logger ``distributed.worker``, and on how
    the worker logs that a heartbeat fails, on its event loop.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    patience : float
        Seconds in which it may begin to close.
    """

    def say(error: object) -> None:
        if worker.status is Status.running:
            logger.warning("%s has no answer from the scheduler: %s", worker.name, error)

    def is_other(record: logging.LogRecord) -> bool:
        if not record.getMessage().startswith(_HEARTBEAT):
            return True
        error = record.exc_info[1] if record.exc_info else None
        asyncio.get_running_loop().call_later(patience, say, error)
        return False

    logging.getLogger("distributed.worker").addFilter(is_other)
