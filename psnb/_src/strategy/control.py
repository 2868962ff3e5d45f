"""ServerControl: requests of a strategy to its servers themselves, over control connections.

On the client's event loop. A server counts as unresponsive when no heartbeat came for
``heartbeat_timeout`` seconds, whatever its process does meanwhile: its event loop has not turned.
Ticks of this process are counted rather than clocks compared, so a notebook that was frozen itself
takes no server for unresponsive. See `psnb._src.server.server` for what the requests do there.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from psnb._src.client.connection import ControlConnection
from psnb._src.dask_compat.reach import ConnectionPool
from psnb._src.placement.layout import Layout, ServerAddress
from psnb._src.placement.status import ServerStatus
from psnb._src.server.operations import FollowPlacements, HostOperation, MeasureShards, StopServer
from psnb.errors import ServerLostError, ServerUnresponsiveError

TICKS = 50
"""Ticks for each `heartbeat_timeout`."""

STOP_TIMEOUT = 2.0
"""Seconds in which a server must end."""


class ServerControl:
    """Sends requests to servers, over a control connection to each.

    Parameters
    ----------
    pool : distributed.core.ConnectionPool
        The client's connections.
    heartbeat_timeout : float
        Seconds without a heartbeat after which a server counts as unresponsive.

    Attributes
    ----------
    tick : float
        Seconds between two checks.
    heartbeat_timeout : float
        As given.
    """

    def __init__(self, pool: ConnectionPool, heartbeat_timeout: float) -> None:
        self._pool, self.heartbeat_timeout = pool, heartbeat_timeout
        self.tick = heartbeat_timeout / TICKS
        self._connections: dict[ServerAddress, ControlConnection] = {}

    def connection(self, server: ServerAddress) -> ControlConnection:
        if server not in self._connections:
            self._connections[server] = ControlConnection(self._pool, server)
        return self._connections[server]

    def hang_up(self, server: ServerAddress) -> None:
        """Close the control connection to a server."""
        connection = self._connections.pop(server, None)
        if connection is not None:
            connection.close()

    async def stop(self, server: ServerAddress) -> None:
        """End a server, if it can be reached, with all it holds; closes the connection."""
        with contextlib.suppress(OSError):  # a timeout, too
            async with asyncio.timeout(STOP_TIMEOUT):
                await self.connection(server).ask(StopServer())
        self.hang_up(server)

    async def heartbeat(self, server: ServerAddress, layout: Layout) -> ServerStatus:
        """Tell a server which shards to hold; return its status. See `ControlConnection.ask`."""
        asked = self.connection(server).ask(following(server, layout))
        return await asked

    async def measure(self, server: ServerAddress) -> dict[int, dict[str, int]]:
        """Return the bytes of each table of each shard that the server holds; raises as `ask`."""
        return await self.ask(server, MeasureShards())

    async def ask(self, server: ServerAddress, operation: HostOperation) -> Any:
        """Run an operation of a server.

        Raises
        ------
        ServerLostError
            If the server has ended.
        ServerUnresponsiveError
            If the server does not respond.
        """
        connection = self.connection(server)
        asking = asyncio.create_task(connection.ask(operation), name="psnb order")
        silence, heard = 0.0, connection.heard
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=self.tick)
                silence = 0.0 if connection.heard > heard else silence + self.tick
                heard = connection.heard
                if silence >= self.heartbeat_timeout:
                    raise ServerUnresponsiveError(unresponsive(server, silence))
            return asking.result()
        except ConnectionRefusedError as error:
            raise ServerLostError(gone(server, error)) from error
        except OSError as error:
            text = f"no connection to parameter {server.name} at {server.address}: {error!r}"
            raise ServerUnresponsiveError(text) from error
        finally:
            asking.cancel()


def following(server: ServerAddress, layout: Layout) -> FollowPlacements:
    """Return the operation that tells a server which shards to hold."""
    mine = {i: each for i, each in enumerate(layout.placements) if server in each.servers}
    return FollowPlacements(mine, [each.version for each in layout.placements])


def gone(server: ServerAddress, error: BaseException) -> str:
    """Return the text that says that a server has ended."""
    return f"parameter {server.name} at {server.address} is gone: {error}"


def unresponsive(server: ServerAddress, silence: float) -> str:
    """Return the text that says that a server does not respond."""
    return f"parameter {server.name} at {server.address} has not answered for {silence:.0f} s"
