"""What a closure or dataset function can ask about where it runs.

The context is thread-local: set by the runtime around each closure and each function that makes a
per-worker value, absent elsewhere.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from psnb._src.excerpt import NAME, excerpt
from psnb._src.runtime.leasing import LeaseRequests
from psnb._src.runtime.mail import Mail
from psnb.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class InputContext:
    """The worker on which a dataset or resource function runs; after TensorFlow's class.

    Attributes
    ----------
    num_workers : int
        Workers that the strategy had when this one was connected.
    worker_index : int
        This worker's index, counted from 0. A worker that replaces a lost one takes its index.
    """

    num_workers: int
    worker_index: int


class Cancellation:
    """Tells one closure that nobody wants its result any more; set once, by any thread."""

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Where the current closure or function runs.

    Attributes
    ----------
    worker_index : int
        This worker among the coordinator's, counted from 0.
    num_workers : int
        Workers that the strategy had when this one was connected.
    worker_name : str
        Its name in the Dask cluster; ``worker-0`` or the like if it has none there but its address.
    attempt : int
        1 when the closure runs for the first time, one more after each lost worker.
    closure : int
        The closure's number among its coordinator's, the same in all attempts; -1 in a function
        that makes a per-worker value.
    """

    worker_index: int
    num_workers: int
    worker_name: str
    attempt: int
    send_report: Callable[[float, dict[str, float]], None]
    cancellation: Cancellation = field(default_factory=Cancellation)
    lease_requests: LeaseRequests | None = None
    mail: Mail | None = None
    closure: int = -1

    @property
    def cancelled(self) -> bool:
        """Whether the closure should stop early; cheap, ask as often as you like.

        True when another closure has failed, whose error is raised once this closure has ended, and
        when the coordinator has closed or is out of reach. Nothing stops a closure that does not
        ask. One that returns while this is true has completed like any other: what it returns and
        writes counts. Raise an exception if it must not count.
        """
        return self.cancellation.requested


_local = threading.local()


@contextmanager
def entered(context: WorkerContext) -> Iterator[None]:
    """Make a context the current one of this thread."""
    _local.context = context
    try:
        yield
    finally:
        _local.context = None


def current_context() -> WorkerContext | None:
    """Return the context of this thread; None outside of closures."""
    found: WorkerContext | None = getattr(_local, "context", None)
    return found


def worker_context() -> WorkerContext:
    """Return where the closure or dataset function that calls this runs.

    Raises
    ------
    ConfigurationError
        If called outside of a closure.
    """
    context = current_context()
    if context is None:
        raise ConfigurationError(
            "worker_context() and worker_index() work inside a closure, a dataset function or a "
            "resource function, and this is none: schedule it with coordinator.schedule(...)"
        )
    return context


def worker_index() -> int:
    """Return the index of the worker that runs the closure, counted from 0.

    Raises
    ------
    ConfigurationError
        If called outside of a closure.
    """
    return worker_context().worker_index


def report(**metrics: float) -> None:
    """Report metrics from inside a closure, for the widget, the progress line and the history.

    Cheap and never blocks. A closure that runs again after its worker was lost reports again.
    Outside a closure the values are checked and dropped, so a step can be tried out by hand.

    Parameters
    ----------
    **metrics : float
        Values by name; anything that `float` accepts. A loss may be NaN or infinite, and is shown
        so; ``examples``, of which a sum is kept, must be finite. A coordinator keeps the first 500
        names; what is reported under others is dropped, with a warning in its log.

    Raises
    ------
    ConfigurationError
        If a value is not a number, ``examples`` is not finite, or a name has over 200 characters.
    """
    values: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            values[name] = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(
                f"report({excerpt(name, NAME)}=...): expected a number, found "
                f"{type(value).__name__}: {excerpt(str(error))}"
            ) from error
        if len(name) > NAME:
            raise ConfigurationError(
                f"report({excerpt(name, NAME)}=...): a name has {NAME} characters at most"
            )
    if not math.isfinite(values.get("examples", 0.0)):
        raise ConfigurationError(
            f"report(examples={values['examples']}): the number of examples must be finite, it "
            "is summed up; report what may be NaN under another name"
        )
    context = current_context()
    if context is not None:
        context.send_report(time.time(), values)
