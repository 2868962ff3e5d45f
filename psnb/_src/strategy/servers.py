"""Servers: the processes that hold a strategy's shards, and the layout that says which holds which.

`Servers` starts and stops them, and publishes each layout on the scheduler. One task of the
client's event loop at a time changes the layout: the one that holds `changing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Callable, Sequence

from distributed import Client

from psnb._src.cluster import ClosureScaling, ServerProtection
from psnb._src.dask_internals import ask_scheduler, event_loop, pool_of
from psnb._src.monitor import EventKind, EventLog
from psnb._src.placement import (
    LAYOUT,
    Layout,
    LayoutCache,
    LayoutRegistry,
    ServerAddress,
    ShardId,
    ShardPlace,
)
from psnb._src.runtime import Runtime
from psnb._src.server import AddKey, DropOtherKeys
from psnb._src.strategy.ownership import Ownership
from psnb._src.strategy.server_control import ServerControl
from psnb._src.threads import aside
from psnb.errors import (
    ClusterError,
    CoordinatorClosedError,
    PsnbError,
    ServerLostError,
)

_STOP_TIMEOUT = 2.0


class Servers:
    """The servers of one strategy.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    ownership : Ownership
        Tells the scheduler of the strategy.
    patience : float
        Seconds without a sign of life after which a server counts as silent.
    dedicated : bool
        Whether the servers are workers that were started as servers, and run no closures.

    Attributes
    ----------
    name : str
        The strategy's name, unique in the cluster: another one after it was taken over.
    ownership : Ownership
        As given.
    ended : CoordinatorClosedError or None
        Why nobody looks after them any more, if that is for good.
    on_end : callable
        Called on the client's event loop when that is so.
    control : ServerControl
        Sends requests to the servers themselves.
    layout_cache : LayoutCache
        The layouts that this process knows.
    events : EventLog
        What happened to servers and shards.
    changing : asyncio.Lock
        Held while the next layout is decided and published; requests made meanwhile have time
        limits. For the client's event loop only.
    """

    def __init__(
        self, client: Client, ownership: Ownership, patience: float, dedicated: bool
    ) -> None:
        self._client, self.ownership, self.dedicated = client, ownership, dedicated
        self.events = EventLog()
        self.ended: CoordinatorClosedError | None = None
        self.on_end: Callable[[], object] = bool
        self.name = _new_name()
        self.control = ServerControl(pool_of(client), patience)
        self._life = patience + ownership.deed.keep
        self._numbers = itertools.count()
        self._running: dict[ServerAddress, None] = {}
        self._lost: dict[ServerAddress, None] = {}  # since all shards had a server
        self._layout = Layout(self.name, 0, 0, patience, ())
        self._stopping: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None  # keeps a reference to the task
        self.changing = asyncio.Lock()
        self._starting = asyncio.Lock()  # one task at a time looks which exist and starts the rest
        self.layout_cache = LayoutCache(
            lambda strategy: ask_scheduler(client, LAYOUT, strategy=strategy),
        )
        aside(extend, client)

    def take(self, layout: Layout) -> None:
        """Take the servers of a strategy over as they are; on the client's event loop."""
        self.name, self._layout = layout.strategy, layout
        self._running = dict.fromkeys(layout.servers)
        self._numbers = itertools.count(1 + max(map(_number, layout.servers), default=-1))
        self.layout_cache.learn(layout)

    async def move(self) -> None:
        """Give strategy and servers other names: nobody reaches them who knows the former ones.

        On the client's event loop.

        Raises
        ------
        ServerLostError
            If a server is lost meanwhile, or is silent and holds shards that no other has. Either
            all has been moved, or nothing; it can be taken over again.
        """
        async with self.changing:
            before, name = self.name, _new_name()
            names = {each: each._replace(key=_key(name, _number(each))) for each in self._running}
            asked = [self.control.ask(each, AddKey(to.key)) for each, to in names.items()]
            for server, error in zip(
                list(names), await asyncio.gather(*asked, return_exceptions=True), strict=True
            ):
                if isinstance(error, BaseException):
                    if any(server == place.primary for place in self._layout.places):
                        raise error
                    del names[server]  # what it has a copy of is elsewhere
            layout = self._layout.renamed(name, names)
            await self.ownership.move(before, layout)
            self.name, self._running = name, dict.fromkeys(names.values())
            self._layout = layout
            self.layout_cache.learn(layout)
            for server in names:
                self.control.hang_up(server)
            # First all hear where the copies are: they are reached by the former keys until then.
            for tell in (
                lambda server: self.control.follow(server, layout),
                lambda server: self.control.ask(server, DropOtherKeys()),
            ):
                await asyncio.gather(*map(tell, self._running))

    @property
    def layout(self) -> Layout:
        """Where all shards are; any thread."""
        return self._layout

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """All shards."""
        return tuple(ShardId(self.name, index) for index in range(len(self._layout.places)))

    @property
    def running(self) -> tuple[ServerAddress, ...]:
        """The servers that were started and not given up, whether they hold shards or not.

        Any thread.
        """
        return tuple(self._running)

    @property
    def lost(self) -> tuple[ServerAddress, ...]:
        """The servers that were lost, until all shards have a server again; any thread."""
        return tuple(self._lost)

    async def start(self, addresses: Sequence[str]) -> list[ServerAddress]:
        """Start a server at each of some Dask workers; return them. On the client's event loop.

        If another task has started a server at one of them meanwhile, that server is returned: with
        two in one process, one could hold the copy of what the other holds, and both die together.

        Raises
        ------
        ClusterError
            If one cannot be reached; no server is started then.
        """
        async with self._starting:
            there = {server.address: server for server in self.running}
            started = [
                ServerAddress(address, _key(self.name, next(self._numbers)))
                for address in addresses
                if address not in there
            ]
            try:
                await self._begin(started)
            except BaseException:
                for server in started:
                    self._stop(server)
                raise
            # Only now: asked before it has begun, a server would answer that it is gone.
            self._running |= dict.fromkeys(started)
            for server in started if there else ():  # a strategy begins with some
                text = f"{server.address} joins as server"
                self.events.add(EventKind.SERVER_JOINED, text)
            there |= {server.address: server for server in started}
            return [there[address] for address in addresses]

    async def _begin(self, servers: Sequence[ServerAddress]) -> None:
        asked = (self.control.start(server, self._life) for server in servers)
        for error in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(error, PsnbError):
                raise ClusterError(f"a parameter server does not start: {error}") from error
            if isinstance(error, BaseException):
                raise error

    def give_up(self, server: ServerAddress) -> None:
        """Remove a server that is lost or holds nothing any more; on the client's event loop."""
        if server in self._running:
            del self._running[server]
            self._stop(server)

    def lose(self, server: ServerAddress) -> None:
        """Remove a server whose process has ended; on the client's event loop."""
        self._lost[server] = None
        self.give_up(server)

    async def dismiss(self, server: ServerAddress) -> None:
        """Remove a server with all that it holds; return when it has ended, if it can be reached.

        On the client's event loop.
        """
        self._lost[server] = None
        if server in self._running:
            del self._running[server]
            await self._end(server)

    async def publish(self, layout: Layout) -> None:
        """Make a layout the current one; on the client's event loop.

        Raises
        ------
        ServerLostError
            If the scheduler does not answer.
        CoordinatorClosedError
            If the strategy was taken over, or this is another scheduler.
        """
        # Known here first: what this process decides on next must not forget it.
        self._layout = layout
        if not layout.incomplete:
            self._lost.clear()
        self.layout_cache.learn(layout)
        await self.ownership.publish(layout)

    def end(self, why: CoordinatorClosedError) -> None:
        """Note that nobody looks after them any more, for good; on the client's event loop.

        Those whose processes end need not wait for this one to move what they hold.
        """
        self.ended = why
        for server in self.running:
            self.control.hang_up(server)
        self.on_end()

    def close(self) -> None:
        """Stop all servers, and forget where shards were; returns at once, any thread."""
        # A RuntimeError: the loop is closed. Servers end by themselves some minutes later.
        with contextlib.suppress(RuntimeError):
            event_loop(self._client).call_soon_threadsafe(self._begin_to_close)

    def _begin_to_close(self) -> None:
        self._closing = asyncio.create_task(self._close(), name="psnb closing servers")

    async def forget(self) -> None:
        """Have the scheduler forget the strategy, if it can be reached; on the event loop."""
        if self.ended is not None:
            return  # there is no scheduler, or the strategy is another process's
        with contextlib.suppress(OSError, ServerLostError, CoordinatorClosedError):
            async with asyncio.timeout(_STOP_TIMEOUT):
                await self.ownership.close(self.name)

    async def _close(self) -> None:
        await self.forget()
        for server in self.running:
            self.give_up(server)
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=_STOP_TIMEOUT)

    def _stop(self, server: ServerAddress) -> None:
        task = asyncio.create_task(self._end(server), name="psnb stopping a server")
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _end(self, server: ServerAddress) -> None:
        # A server that does not hear it ends by itself, after some minutes without any message.
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                await self.control.stop(server)
        except TimeoutError:
            self.control.hang_up(server)


async def begin(servers: Servers, addresses: Sequence[str], shards: int, replicas: int) -> None:
    """Start servers with the first shards, and publish the layout; all of that or nothing."""
    try:
        started = await servers.start(addresses)
        places = [ShardPlace(started[index % len(started)]) for index in range(shards)]
        for server in started:
            mine = {index: place for index, place in enumerate(places) if place.primary == server}
            await servers.control.host(server, mine)
        patience = servers.control.patience
        await servers.ownership.register(servers.name)
        await servers.publish(Layout(servers.name, 1, replicas, patience, tuple(places)))
    except BaseException:
        servers.close()
        raise


def _new_name() -> str:
    return uuid.uuid4().hex[:8]


def _key(strategy: str, number: int) -> str:
    return f"psnb-server-{strategy}-{number}"


def _number(server: ServerAddress) -> int:
    return int(server.key.rpartition("-")[2])


def extend(client: Client) -> None:
    """Have a cluster's processes load what psnb needs there.

    Raises
    ------
    ClusterError
        If the scheduler cannot import psnb.
    """
    client.register_plugin(Runtime())
    try:
        client.register_plugin(LayoutRegistry())
        client.register_plugin(ServerProtection())
        client.register_plugin(ClosureScaling())
    except ImportError as error:
        raise ClusterError(
            f"the Dask scheduler cannot import psnb ({error}): install it beside the scheduler "
            "too, in the same version as here and on the workers"
        ) from error
