"""What a closure or dataset function can ask about where it runs.

The context is thread-local: set by the runtime around each closure and each function that makes a
per-worker value, absent elsewhere.
"""

from __future__ import annotations

import enum
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from psnb._src.metrics.metric import MetricState
from psnb._src.utils.ahead import require_closure
from psnb._src.utils.foreign_names import SaysWhatToUse
from psnb._src.utils.text import NAME, printable, truncate
from psnb._src.worker.lease_requests import LeaseRequests
from psnb._src.worker.mail import PeerMessages
from psnb._src.worker.reports import EXAMPLES, ReportedStates
from psnb.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class InputContext(SaysWhatToUse):
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


class Stop(enum.IntEnum):
    """What a closure is asked to do; each includes those before it."""

    NOT = 0
    AFTER_STEP = 1  # end with the step that it does
    EARLY = 2  # its result is not wanted any more
    UNWRITTEN = 3  # nor that it writes anything


class Cancellation:
    """Tells one closure to stop; the event loop sets it."""

    stop = Stop.NOT


class WorkerContext(msgspec.Struct, frozen=True):
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
    cancellation: Cancellation = msgspec.field(default_factory=Cancellation)
    lease_requests: LeaseRequests | None = None
    mail: PeerMessages | None = None
    closure: int = -1
    states: ReportedStates | None = None
    function: str = ""
    send_lines: Callable[[str, list[str]], None] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the closure should stop early; cheap, ask as often as you like.

        True when another closure has failed, whose error is raised once this closure has ended,
        when the coordinator has closed or is out of reach, and after a call to
        `RemoteValue.cancel`. Nothing stops a closure that does not ask. One that returns while this
        is true has completed like any other, unless it was cancelled: what it returns and writes
        counts. Raise an exception if it must not count.
        """
        return self.cancellation.stop >= Stop.EARLY


_local = threading.local()


class entered:  # noqa: N801
    """Makes a context the current one of this thread in a block, in place of the one before.

    A class, as each closure is such a block: a generator would take more than twice as long.
    """

    __slots__ = ("_before", "_context")

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._before = context_here()
        _local.context = self._context

    def __exit__(self, *exc_info: object) -> None:
        _local.context = self._before


def current_context() -> WorkerContext | None:
    """Return the context of this thread; None outside of closures."""
    require_closure()
    return context_here()


def context_here() -> WorkerContext | None:
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


def report(**metrics: float | MetricState) -> None:
    """Report metrics from inside a closure, for the widget, the progress line and the history.

    Cheap and never blocks. Outside a closure the values are checked and dropped, so a step can be
    tried out by hand.

    A number is sent immediately, and charted as one value among others: a closure that runs again
    after its worker was lost is charted again. What `Trainer` makes of numbers, and the totals in
    `ClusterCoordinator.statistics`, go with the closure's result: one that ran twice counts once,
    and one that raises does not count. A number is weighted by the ``examples`` that are reported
    in the same call, if they are: so a shorter batch counts less in the mean of an epoch.

    The state of a metric of `psnb.metrics` goes with the closure's result, too, and those of all
    closures are merged exactly. `ClusterCoordinator.metrics` has them; the history and the
    live views have the merged value as ``auc``, and that of the examples of about the last second
    as ``batch_auc`` (of ``train/auc`` as ``train/batch_auc``).

    Parameters
    ----------
    **metrics : float or MetricState
        Values by name: anything that `float` accepts, or the state of a metric, such as
        ``auc=psnb.metrics.AUC()(labels, scores)``; a name has one or the other, and control
        characters of it are escaped. A loss may be NaN or infinite, and is shown so; ``examples``,
        of which a sum is kept, must be finite. A coordinator keeps the first 500 names; what is
        reported under others is dropped, with a warning in its log.

    Raises
    ------
    ConfigurationError
        If a value is neither, ``examples`` is not a finite number, a name has over 200 characters,
        or the closure has reported a state of another metric under this name. For a state in a
        function that makes a per-worker value, which has no result.
    """
    values: dict[str, float] = {}
    states: dict[str, MetricState] = {}
    for given, value in metrics.items():
        name = printable(given)
        if isinstance(value, MetricState):
            states[name] = value
        else:
            values[name] = _number(name, value)
        if len(name) > NAME:
            raise ConfigurationError(
                f"report({truncate(name, NAME)}=...): a name has {NAME} characters at most"
            )
    if EXAMPLES in states or not math.isfinite(values.get(EXAMPLES, 0.0)):
        raise ConfigurationError(
            f"report(examples={metrics['examples']}): the number of examples must be finite, it "
            "is summed up; report what may be NaN under another name"
        )
    context = current_context()
    if context is None:
        return
    if states:
        if context.states is None:
            raise ConfigurationError(
                f"report({truncate(next(iter(states)), NAME)}=...): the state of a metric travels "
                "with the result of a closure, and this function makes a per-worker value"
            )
        context.states.add(states)
    if values and context.states is not None:
        context.states.add_numbers(values)
    if values or not states:
        context.send_report(time.time(), values)


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"report({truncate(name, NAME)}=...): expected a number, found "
            f"{type(value).__name__}: {truncate(str(error))}"
        ) from error
