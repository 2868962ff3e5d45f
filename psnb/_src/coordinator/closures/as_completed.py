"""as_completed: remote values in the order in which they end. Pure, without polling."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Iterator

from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.excerpt import shown
from psnb._src.shown_error import timed_out
from psnb.errors import ConfigurationError


def as_completed(
    remotes: Iterable[RemoteValue], timeout: float | None = None
) -> Iterator[RemoteValue]:
    """Iterate over remote values in the order in which their closures end.

    Those that have ended already come first, in the order given. A closure that failed or was
    cancelled has ended too: its `fetch` raises. Each value comes once. They may be of several
    coordinators.

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
    callback = ended.put
    pending = {remote for remote in remotes if remote.add_callback(callback)}
    try:
        yield from (remote for remote in remotes if remote not in pending)
        while pending:
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                remote = ended.get(timeout=left)
            except queue.Empty:
                raise timed_out(
                    f"after {timeout} s {len(pending)} of {len(remotes)} closures have not ended; "
                    "they go on"
                ) from None
            pending.discard(remote)
            yield remote
    finally:
        for remote in pending:
            remote.remove_callback(callback)
