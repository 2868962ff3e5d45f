"""Keeper: watches the servers of a strategy with replicas and mends what breaks.

When a server dies, the copies of its shards become the shards, and new copies are filled on other
servers: on one that has taken the dead one's place, if Dask's nanny started its process again. Only
the notebook decides that; a server that was given up by mistake finds out from its copies, which do
not follow it any more.

Threads: the Dask client's event loop. One task for each server asks it for a sign of life, one more
acts on what they find.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace

from distributed import Client

from psnb.cluster import roles
from psnb.errors import ClusterError, PsnbError, ServerLostError
from psnb.monitor import EventKind
from psnb.placement import ServerAddress, copies_to_make, fail_over
from psnb.strategy.orders import Orders
from psnb.strategy.servers import Servers

logger = logging.getLogger("psnb")

_BEAT = 0.2
"""Seconds between signs of life."""

_LOOK_FOR_SERVERS = 1.0


class Keeper:
    """Keeps two copies of each shard.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    servers : Servers
        The strategy's.
    orders : Orders
        The way to give them orders.
    """

    def __init__(self, client: Client, servers: Servers, orders: Orders) -> None:
        self._client, self._servers, self._orders = client, servers, orders
        self._wanted = len(servers.running)
        self._dead: set[ServerAddress] = set()
        self._filling: dict[int, ServerAddress] = {}
        self._watches: dict[ServerAddress, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop = client.loop.asyncio_loop
        self._looked = 0.0
        self._task = asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    def close(self) -> None:
        """End it; returns at once, any thread. Idempotent."""
        self._task.cancel()

    def want(self, servers: int) -> None:
        """Note how many servers there should be; lost ones are replaced up to it."""
        self._wanted = servers

    async def _run(self) -> None:
        try:
            while self._client.status == "running":
                self._watch_all()
                try:
                    async with self._servers.changing:
                        await self._fail_over()
                        await self._mend_copies()
                    await self._recruit()
                except ServerLostError as error:
                    # Found out while acting on it: its watch finds out as well.
                    logger.info("a parameter server was lost meanwhile: %s", error)
                except (OSError, PsnbError) as error:
                    logger.warning("the parameter servers cannot be looked after: %s", error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_BEAT):
                        await self._news.wait()
                self._news.clear()
        finally:
            for watch in self._watches.values():
                watch.cancel()

    def _watch_all(self) -> None:
        running = set(self._servers.running)
        for server in running - self._watches.keys() - self._dead:
            task = asyncio.create_task(self._watch(server), name=f"psnb watch of {server.address}")
            self._watches[server] = task
        for server in self._watches.keys() - running:
            self._watches.pop(server).cancel()
        self._dead &= running

    async def _watch(self, server: ServerAddress) -> None:
        try:
            while True:
                await self._orders.describe(server)
                await asyncio.sleep(_BEAT)
        except ServerLostError as error:
            self._servers.events.add(EventKind.SERVER_LOST, str(error))
            self._dead.add(server)
            del self._watches[server]
            self._news.set()

    async def _fail_over(self) -> None:
        if not self._dead:
            return
        layout = self._servers.layout
        plan = fail_over(layout, self._dead)
        for server, shards in plan.promoted.items():
            await self._orders.promote(server, shards)
        if plan.places != layout.places:
            await self._servers.publish(layout.with_places(plan.places))
        for server in self._dead:
            self._servers.give_up(server)
        for server, shards in plan.promoted.items():
            text = f"the copies of shards {list(shards)} at {server.address} have taken over"
            self._servers.events.add(EventKind.SHARDS_TAKEN_OVER, text)
        if plan.lost:
            self._servers.events.add(
                EventKind.SHARDS_LOST,
                f"shards {list(plan.lost)} are lost with all of their copies; strategy.recover() "
                "brings them back from the last checkpoint",
            )
        gone = {index for index, server in self._filling.items() if server in self._dead}
        gone |= {index for shards in plan.promoted.values() for index in shards} | set(plan.lost)
        for index in gone:
            self._filling.pop(index, None)
        self._dead.clear()
        for server, copies in plan.bereft.items():
            for index, copy in copies:
                await self._orders.let_go(server, index, copy)

    async def _mend_copies(self) -> None:
        layout = self._servers.layout
        places = list(layout.places)
        useless: list[tuple[ServerAddress, int, ServerAddress]] = []
        primaries = dict.fromkeys(place.primary for place in places if place.primary is not None)
        for server in primaries:
            report = await self._orders.describe(server)
            for index, place in enumerate(places):
                if place.primary != server or index not in report:
                    continue
                copy = place.replica or self._filling.get(index)
                state = report[index][1].get(copy.key) if copy else None
                if copy is None or state == "filling":
                    continue
                if state == "filled":
                    places[index] = replace(place, replica=copy)
                else:
                    places[index] = replace(place, replica=None)
                    useless.append((server, index, copy))
                self._filling.pop(index, None)
        # Published first: who is let go of must not be promoted any more.
        if tuple(places) != layout.places:
            layout = layout.with_places(places)
            await self._servers.publish(layout)
        for server, index, copy in useless:
            await self._orders.let_go(server, index, copy)
        alive = set(self._servers.running) - self._dead
        for index, copy in copies_to_make(layout, sorted(alive), self._filling).items():
            primary = layout.places[index].primary
            if primary is not None:
                await self._orders.copy(primary, index, copy)
                self._filling[index] = copy
                self._news.set()

    async def _recruit(self) -> None:
        missing = self._wanted - len(self._servers.running)
        if missing <= 0 or self._loop.time() - self._looked < _LOOK_FOR_SERVERS:
            return
        self._looked = self._loop.time()
        identity = await self._client.scheduler.identity(n_workers=-1)
        used = {server.address for server in self._servers.running}
        fresh = [address for address in roles(identity).servers if address not in used][:missing]
        if fresh:
            try:
                await asyncio.to_thread(self._servers.start, fresh)
                for address in fresh:
                    self._servers.events.add(EventKind.SERVER_JOINED, f"{address} joins as server")
            except ClusterError as error:
                logger.warning("a parameter server cannot be used: %s", error)
