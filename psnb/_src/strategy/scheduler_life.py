"""SchedulerLife: notices that the Dask scheduler has ended. On the client's event loop.

Dask's client tries for half a minute to connect again, and says nothing meanwhile. But when its
scheduler ends, every Dask worker ends within seconds, with all parameters that it holds, and a
scheduler that is started at the same address knows nothing of them. So there is nothing to wait
for, once nobody listens there any more. A connection that has only broken is made again by Dask.
"""

from __future__ import annotations

import asyncio

from distributed import Client

from psnb._src.dask_internals import host_and_port, is_connected, scheduler_address
from psnb.errors import SchedulerLostError

_GRACE = 2.0
"""Seconds that Dask gets to connect again."""

_CONNECT_TIMEOUT = 1.0


class SchedulerLife:
    """Whether a client's scheduler lives."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._since: float | None = None  # when the connection was lost

    async def look(self) -> None:
        """Raise SchedulerLostError if it has ended."""
        address = scheduler_address(self._client)
        if is_connected(self._client) or not address.startswith(("tcp://", "tls://")):
            self._since = None
            return
        now = asyncio.get_running_loop().time()
        self._since = self._since or now
        if now - self._since < _GRACE:
            return
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                _, writer = await asyncio.open_connection(*host_and_port(address))
            writer.close()
        except ConnectionRefusedError:
            raise SchedulerLostError(
                f"the Dask scheduler at {address} has ended, and with it all workers and servers "
                "of its cluster, and the parameters there: start a cluster, connect with a new "
                "client, make strategy and parameters as before, and restore what was saved last"
            ) from None
        except OSError:
            return  # it cannot be reached: it may be there still
