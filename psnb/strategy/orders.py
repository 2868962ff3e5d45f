"""Orders: what a strategy has its servers do with whole shards; each order with a time limit.

On the client's event loop. See `psnb.server.host` for what the orders do there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from psnb.errors import ServerLostError
from psnb.parameters import CommTransport
from psnb.placement import ServerAddress

TIMEOUT = 10.0
"""Seconds in which a server must obey, or say something: one that does not counts as dead."""

_LOOK = 0.02

Report = dict[int, tuple[str, dict[str, str]]]
"""What a server says: for each shard there, its role and how far its copies are, by key."""


class Orders:
    """Gives orders to servers.

    Every method raises `ServerLostError` if the server is gone or does not answer in time.

    Parameters
    ----------
    transport : CommTransport
        The way to them.
    """

    def __init__(self, transport: CommTransport) -> None:
        self._transport = transport

    async def describe(self, server: ServerAddress) -> Report:
        """Return what the server holds."""
        report: Report = await self._ask(server, "describe")
        return report

    async def weigh(self, server: ServerAddress) -> dict[int, int]:
        """Return the bytes of each shard that the server holds."""
        tables = await self._ask(server, "statistics")
        return {index: sum(shard.values()) for index, shard in tables.items()}

    async def host(self, server: ServerAddress, shards: Sequence[int]) -> None:
        """Let a server hold new shards."""
        await self._ask(server, "host", shards=list(shards))

    async def promote(self, server: ServerAddress, shards: Sequence[int]) -> None:
        """Let a server be the primary of shards that it has a copy of."""
        await self._ask(server, "promote", shards=list(shards))

    async def copy(self, server: ServerAddress, shard: int, to: ServerAddress) -> None:
        """Let a primary begin to fill a copy of a shard."""
        await self._ask(server, "copy", index=shard, address=to.address, key=to.key)

    async def filled(self, server: ServerAddress, shard: int, to: ServerAddress) -> None:
        """Wait until the copy is complete, however long it takes while both servers live."""
        while True:
            _, copies = (await self.describe(server)).get(shard, ("", {}))
            state = copies.get(to.key)
            if state == "filled":
                return
            if state != "filling":
                raise ServerLostError(
                    f"shard {shard} could not be copied from {server.address} to {to.address}: the "
                    "connection between them broke"
                )
            await asyncio.sleep(_LOOK)

    async def let_go(self, server: ServerAddress, shard: int, to: ServerAddress) -> None:
        """Let a primary do without a copy."""
        await self._ask(server, "let_go", index=shard, key=to.key)

    async def retire(self, server: ServerAddress, shard: int, to: ServerAddress) -> None:
        """Let a primary change a shard no more; returns when the copy has everything."""
        await self._ask(server, "retire", index=shard, key=to.key)

    async def drop(self, server: ServerAddress, shards: Sequence[int]) -> None:
        """Let a server forget shards."""
        await self._ask(server, "drop", shards=list(shards))

    async def _ask(self, server: ServerAddress, operation: str, **arguments: Any) -> Any:
        try:
            return await self._transport.ask(server, operation, TIMEOUT, **arguments)
        except TimeoutError as error:
            raise ServerLostError(
                f"parameter server {server.key} at {server.address} says nothing for {TIMEOUT:g} s"
            ) from error
