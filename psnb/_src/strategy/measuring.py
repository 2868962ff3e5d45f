"""Measuring: how large what servers hold is. On the client's event loop."""

from __future__ import annotations

import asyncio

from psnb._src.placement import ServerAddress
from psnb._src.strategy.reconciler import Reconciler
from psnb._src.strategy.servers import Servers
from psnb.errors import ServerLostError

_ATTEMPTS = 5

Sizes = dict[int, dict[str, int]]
"""Bytes by the numbers of shards and the names of their tables."""


async def measured(servers: Servers, reconciler: Reconciler) -> dict[ServerAddress, Sizes]:
    """Return the size of all that servers hold, copies included.

    If one is given up meanwhile, or copies take over from it, those are asked that there are then.

    Raises
    ------
    ServerLostError
        If one is gone, or does not respond, and no other has its shards.
    """
    for left in reversed(range(_ATTEMPTS)):
        asked = servers.layout.servers
        try:
            found = await asyncio.gather(*map(servers.control.measure, asked))
        except ServerLostError:
            if not left or not await reconciler.settled():
                raise
        else:
            break
    return dict(zip(asked, found, strict=True))
