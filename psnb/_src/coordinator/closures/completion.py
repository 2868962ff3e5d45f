"""as_completed: remote values in the order in which they end. Pure, without polling."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Iterable, Iterator

from psnb._src.coordinator.closures.remote_value import RemoteValue, require_progress
from psnb._src.utils.text import shown
from psnb._src.utils.tracebacks import timed_out
from psnb.errors import ConfigurationError

_LOOK_AGAIN = 1.0
"""Seconds between checks whether closures are blocked: there is no callback for that."""


def as_completed(
    remotes: Iterable[RemoteValue], timeout: float | None = None
) -> Iterator[RemoteValue]:
    """Iterate over remote values in the order in which their closures end.

    Those that have ended already come first, in the order given. A closure that failed or was
    cancelled has ended too: `RemoteValue.fetch` raises. Each value comes once. They may be of
    several coordinators.

    Parameters
    ----------
    remotes : iterable of RemoteValue
        What `ClusterCoordinator.schedule` or `map` returned.
    timeout : float, optional
        Seconds from this call to the last value; None waits for as long as it takes.

    Returns
    -------
    iterator of RemoteValue
        You may stop early; that changes nothing.

    Raises
    ------
    TimeoutError
        From the iterator, if the next value takes longer; everything goes on.
    ServerUnresponsiveError
        From the iterator, if all that have not ended wait for a server that does not respond;
        nothing has changed.
    ConfigurationError
        If something in ``remotes`` is not a remote value.

    Examples
    --------
    >>> for remote in psnb.as_completed(coordinator.map(score, files)):
    ...     print(remote.fetch())
    """
    distinct = list(dict.fromkeys(remotes))
    for each in distinct:
        if not isinstance(each, RemoteValue):
            raise ConfigurationError(f"as_completed takes remote values, found {shown(each)}")
    end = None if timeout is None else time.monotonic() + timeout
    return _iterate(distinct, end, timeout)


def _iterate(
    remotes: list[RemoteValue], end: float | None, timeout: float | None
) -> Iterator[RemoteValue]:
    ended: queue.SimpleQueue[RemoteValue] = queue.SimpleQueue()
    callback, pending = ended.put, dict.fromkeys(remotes)
    try:
        for remote in [each for each in remotes if each.done()]:
            del pending[remote]
            yield remote
        for remote in pending:
            remote.call_back(callback)
        while pending:
            left = math.inf if end is None else max(0.0, end - time.monotonic())
            try:
                remote = ended.get(timeout=min(left, _LOOK_AGAIN))
            except queue.Empty:
                require_progress(pending)
                if left <= _LOOK_AGAIN:
                    raise timed_out(
                        f"after {timeout} s {len(pending)} of {len(remotes)} closures have not "
                        "ended; they go on; remote.cancel() gives one up"
                    ) from None
                continue
            del pending[remote]
            yield remote
    finally:
        for remote in pending:
            remote.forget(callback)
