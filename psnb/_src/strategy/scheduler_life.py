"""Notices that the Dask scheduler has ended. On the client's event loop.

Dask's client tries for minutes to reconnect, without a message: see `psnb._src.cluster.links`. But
when its scheduler ends, every Dask worker ends within seconds, with all parameters that it holds,
and a scheduler that is started at the same address knows nothing of them. So waiting is pointless
once nothing listens there any more, or another scheduler does. If only the connection has broken,
Dask reconnects.
"""

from __future__ import annotations

import asyncio

from distributed import Client

from psnb._src.cluster.links import listens
from psnb._src.dask_compat.reach import (
    has_ended,
    is_connected,
    scheduler_address,
    scheduler_identity,
    scheduler_since,
)
from psnb._src.transport.questions import next_beat
from psnb._src.utils.loops import LoopErrors
from psnb.errors import SchedulerLostError

_INTERVAL = 1.0
"""Seconds between two looks at a connection that is there."""

_POLL_INTERVAL = 0.25

_GRACE = 1.0
"""Seconds that Dask gets to connect again."""


async def scheduler_ends(client: Client, interval: float = _INTERVAL) -> None:
    """Wait for the end of a client's scheduler; returns if the client is closed.

    Parameters
    ----------
    client : distributed.Client
        The client.
    interval : float
        Seconds between two looks; fewer while there is no connection.

    Raises
    ------
    SchedulerLostError
        When it has ended.
    """
    loop, address = asyncio.get_running_loop(), scheduler_address(client)
    errors = LoopErrors("Looking after the scheduler", SchedulerLostError)
    # Dask asks for the id whenever it connects. (Asking for it here, whenever a look finds that the
    # connection was broken, misses one that was broken between two looks, and an answer lost.) The
    # answer to its first question may be lost, too: then it asks again.
    known, since = "", None
    while not has_ended(client):
        with errors:
            known = known or scheduler_since(client)[0]
            if scheduler_since(client)[0] not in ("", known):
                raise scheduler_lost(address)
            since = None if is_connected(client) else since or loop.time()
            if since and loop.time() - since >= _GRACE and await listens(address) is False:
                raise scheduler_lost(address)
        await next_beat(interval if since is None else min(interval, _POLL_INTERVAL))


async def check_scheduler(client: Client) -> None:
    """Wait a little until a client's scheduler answers.

    Raises
    ------
    SchedulerLostError
        If it has ended. If it only does not answer, it may be busy: then this returns.
    """
    loop, address = asyncio.get_running_loop(), scheduler_address(client)
    until = loop.time() + _GRACE
    # A client takes itself for connected until it has noticed.
    while not (is_connected(client) and await _answers(client)):
        if has_ended(client):
            return
        if loop.time() >= until:
            if await listens(address) is False:
                raise scheduler_lost(address)
            return
        await asyncio.sleep(_POLL_INTERVAL)


async def _answers(client: Client) -> bool:
    try:
        async with asyncio.timeout(_POLL_INTERVAL):
            return bool(await scheduler_identity(client))
    except OSError:  # the connection is broken, or the client is closed
        return False


def scheduler_lost(address: str) -> SchedulerLostError:
    """Return what is raised when the scheduler at an address has ended."""
    return SchedulerLostError(
        f"the Dask scheduler at {address} has ended, and with it all workers and servers of its "
        "cluster, and the parameters there: start a cluster, connect with a new client, and go on "
        "from what was saved last with psnb.resume(directory, client)"
    )
