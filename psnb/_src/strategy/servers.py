"""Servers: the processes that hold a strategy's shards, and the layout that says which holds which.

`Servers` starts and stops them, and publishes each layout on the scheduler. They are Dask actors:
this process holds a new one until the scheduler's registry does, with the next layout. One task of
the client's event loop at a time changes the layout: the one that holds `changing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Callable, Sequence

from distributed import Client, Future

from psnb._src.cluster.links import warn_of_short_limits
from psnb._src.cluster.protection import ServerProtection
from psnb._src.cluster.roles import dashboard_link
from psnb._src.cluster.scaling import ClosureScaling
from psnb._src.dask_compat.reach import ask_scheduler, event_loop, pool_of
from psnb._src.monitor.events import EventKind, EventLog
from psnb._src.placement.layout import Layout, ServerAddress, ShardId, ShardPlacement
from psnb._src.placement.layout_cache import LayoutCache
from psnb._src.placement.registry import LAYOUT, SERVER_KEY, LayoutRegistry, ParameterServer
from psnb._src.server.operations import AddKey, DropOtherKeys, HostShards, PrepareServer
from psnb._src.strategy.control import STOP_TIMEOUT, ServerControl, following
from psnb._src.strategy.ownership import Ownership
from psnb._src.transport.questions import Answers
from psnb._src.utils.threads import run_in_thread, run_on_loop, start_task
from psnb._src.worker.plugin import Runtime
from psnb.errors import ClusterError, CoordinatorClosedError, PsnbError, ServerLostError

_START_TIMEOUT = 30.0
_POLL_INTERVAL = 1.0
_FIRST = 1_000
"""The priority with which Dask begins servers: before the tasks that wait for a thread."""


class Servers:
    """The servers of one strategy.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    ownership : Ownership
        Tells the scheduler of the strategy.
    heartbeat_timeout : float
        Seconds without a heartbeat after which a server counts as unresponsive.
    dedicated : bool
        Whether the servers are workers that were started as servers, and run no closures.

    Attributes
    ----------
    name : str
        The strategy's name, unique in the cluster: another one after it was taken over.
    ownership : Ownership
        As given.
    ended : CoordinatorClosedError or None
        Why the reconciler has ended, if it has.
    on_end : callable
        Called on the client's event loop when it ends.
    control : ServerControl
        Sends requests to the servers themselves.
    layout_cache : LayoutCache
        The layouts that this process knows.
    events : EventLog
        What happened to servers and shards.
    dashboard : str
        The address of Dask's own dashboard; empty if there is none.
    changing : asyncio.Lock
        Held while the next layout is decided and published; requests made meanwhile have time
        limits. For the client's event loop only.
    """

    def __init__(
        self, client: Client, ownership: Ownership, heartbeat_timeout: float, dedicated: bool
    ) -> None:
        self._client, self.ownership, self.dedicated = client, ownership, dedicated
        self.events = EventLog()
        self.ended: CoordinatorClosedError | None = None
        self.on_end: Callable[[], object] = bool
        self.name = _new_name()
        self.control = ServerControl(pool_of(client), heartbeat_timeout)
        self._numbers = itertools.count()
        self._running: dict[ServerAddress, None] = {}
        self._lost: dict[ServerAddress, None] = {}  # since all shards had a server
        self._futures: dict[ServerAddress, Future] = {}  # of servers that the registry has not yet
        self._layout = Layout(self.name, 0, 0, heartbeat_timeout, ())
        self._stopping: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None  # keeps a reference to the task
        self.changing = asyncio.Lock()
        self._starting = asyncio.Lock()  # one task at a time looks which exist and starts the rest
        self.layout_cache = LayoutCache(
            lambda strategy: ask_scheduler(client, LAYOUT, strategy=strategy),
        )
        run_in_thread(extend, client)
        self.dashboard = run_in_thread(dashboard_link, client)

    def take(self, layout: Layout) -> None:
        """Take the servers of a strategy over as they are; on the client's event loop."""
        self.name, self._layout = layout.strategy, layout
        self._running = dict.fromkeys(layout.servers)
        self._numbers = itertools.count(1 + max(map(_number, layout.servers), default=-1))
        self.layout_cache.learn(layout)

    async def move(self) -> None:
        """Give strategy and servers other names: the former ones reach nothing.

        On the client's event loop.

        Raises
        ------
        ServerLostError
            If a server is lost meanwhile, or is unresponsive and holds shards that no other has.
            Either all has been moved, or nothing; it can be taken over again.
        """
        async with self.changing:
            name = _new_name()
            names = {each: each._replace(key=_key(name, _number(each))) for each in self._running}
            asked = [self.control.ask(each, AddKey(to.key)) for each, to in names.items()]
            for server, error in zip(
                list(names), await asyncio.gather(*asked, return_exceptions=True), strict=True
            ):
                if isinstance(error, BaseException):
                    if any(server == placement.primary for placement in self._layout.placements):
                        raise error
                    del names[server]  # the shard that it has a replica of is elsewhere
            layout = self._layout.renamed(name, names)
            former = {new.key: old.key for old, new in names.items()}
            await self.ownership.move(layout, former)
            self.name, self._running = name, dict.fromkeys(names.values())
            self._layout = layout
            self.layout_cache.learn(layout)
            for server in names:
                self.control.hang_up(server)
            # First all learn where the replicas are: they answer to the former keys until then.
            asked = [self.control.ask(each, following(each, layout)) for each in self._running]
            await asyncio.gather(*asked)
            asked = [self.control.ask(each, DropOtherKeys()) for each in self._running]
            await asyncio.gather(*asked)

    @property
    def layout(self) -> Layout:
        """Where all shards are; any thread."""
        return self._layout

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """All shards."""
        return tuple(ShardId(self.name, index) for index in range(len(self._layout.placements)))

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
        two in one process, one could hold the replica of the other's shard, and both die together.

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
                beginning = map(self._begin_one, started)
                for error in await asyncio.gather(*beginning, return_exceptions=True):
                    if isinstance(error, PsnbError):
                        raise ClusterError(f"a parameter server does not start: {error}") from error
                    if isinstance(error, BaseException):
                        raise error
            except BaseException:  # a cancellation, too: none is left without an owner
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

    async def _begin_one(self, server: ServerAddress) -> None:
        future = self._futures[server] = self._client.submit(
            ParameterServer,
            f"{_number(server)} at {server.address}",
            key=server.key,
            workers=[server.address],
            actor=True,
            pure=False,
            priority=_FIRST,
        )
        waiting = asyncio.create_task(future.exception(asynchronous=True), name="psnb beginning")
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                while not waiting.done():
                    # Dask would wait without end for a process that freezes, leaves, or has died.
                    await self.control.ask(server, PrepareServer())
                    await asyncio.wait({waiting}, timeout=_POLL_INTERVAL)
        except TimeoutError as error:
            raise ServerLostError(
                f"Dask does not begin one at {server.address} within {_START_TIMEOUT:.0f} s: tasks "
                "have all of its threads, or it is paused, as its memory is full"
            ) from error
        finally:
            waiting.cancel()
        if future.status != "finished":
            why = waiting.result() or "the connection to the scheduler broke"
            raise ServerLostError(f"Dask cannot begin one at {server.address}: {why}")

    def _let_go(self, server: ServerAddress) -> None:
        if (future := self._futures.pop(server, None)) is not None:
            future.release()  # here, as the traceback of an error may refer to it

    def give_up(self, server: ServerAddress, *, ended: bool = False) -> None:
        """Remove a server that is lost or holds nothing any more; on the client's event loop.

        ``ended``: its process has, so views show it as lost.
        """
        if ended:
            self._lost[server] = None
        if server in self._running:
            del self._running[server]
            self._stop(server)

    async def dismiss(self, server: ServerAddress) -> None:
        """Remove a server with all that it holds; return when it has ended, if it can be reached.

        On the client's event loop.
        """
        self._lost[server] = None
        if server in self._running:
            del self._running[server]
            await self.control.stop(server)

    async def publish(self, layout: Layout) -> None:
        """Make a layout the current one; on the client's event loop.

        Raises
        ------
        ServerLostError
            If the scheduler does not answer.
        CoordinatorClosedError
            If the strategy was taken over, or this is another scheduler.
        """
        # Known here first: this process's next decision must include it.
        self._layout = layout
        if not layout.incomplete:
            self._lost.clear()
        self.layout_cache.learn(layout)
        servers = self.running
        await self.ownership.publish(layout, servers)
        for server in servers:
            self._let_go(server)  # the registry holds it

    def end(self, why: CoordinatorClosedError) -> None:
        """Note that the reconciler has ended; on the client's event loop.

        Servers whose processes end need not wait for this process to move their shards.
        """
        self.ended = why
        for server in self.running:
            self.control.hang_up(server)
        self.on_end()

    def close(self) -> None:
        """Stop all servers, and forget where shards were; returns immediately, any thread."""
        # A RuntimeError: the loop is closed. The registry ends servers without an owner.
        with contextlib.suppress(RuntimeError):
            event_loop(self._client).call_soon_threadsafe(self._begin_to_close)

    def _begin_to_close(self) -> None:
        self._closing = asyncio.create_task(self._close(), name="psnb closing servers")

    async def forget(self) -> None:
        """Have the scheduler forget the strategy, if it can be reached; on the event loop."""
        if self.ended is not None:
            return  # there is no scheduler, or the strategy is another process's
        with contextlib.suppress(OSError, ServerLostError, CoordinatorClosedError):
            async with asyncio.timeout(STOP_TIMEOUT):
                await self.ownership.close()

    async def _close(self) -> None:
        await self.forget()
        for server in self.running:
            self.give_up(server)
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=STOP_TIMEOUT)

    def _stop(self, server: ServerAddress) -> None:
        # Immediately, as closures that continue must write nothing to it; what it holds is freed.
        # The registry lets its actor go with the next layout, also if it does not get this.
        self._let_go(server)
        start_task(self.control.stop(server), self._stopping, "psnb stopping a server")


async def begin(servers: Servers, addresses: Sequence[str], shards: int, replicas: int) -> None:
    """Start servers with the first shards, and publish the layout; all of that or nothing."""
    try:
        started = await servers.start(addresses)
        placements = [ShardPlacement(started[index % len(started)]) for index in range(shards)]
        for server in started:
            mine = {i: each for i, each in enumerate(placements) if each.primary == server}
            await servers.control.ask(server, HostShards(mine, ()))
        heartbeat_timeout = servers.control.heartbeat_timeout
        await servers.ownership.register(servers.name)
        await servers.publish(
            Layout(servers.name, 1, replicas, heartbeat_timeout, tuple(placements))
        )
    except BaseException:  # a cancellation, too: none is left without an owner
        servers.close()
        raise


def _new_name() -> str:
    return uuid.uuid4().hex[:8]


def _key(strategy: str, number: int) -> str:
    return f"{SERVER_KEY}{strategy}-{number}"


def _number(server: ServerAddress) -> int:
    return int(server.key.rpartition("-")[2])


def extend(client: Client) -> None:
    """Have a cluster's processes load psnb's plugins, and warn of settings that would end them.

    Raises
    ------
    ClusterError
        If a worker or the scheduler cannot import psnb.
    """
    plugins = (Runtime(), LayoutRegistry(), ServerProtection(), ClosureScaling(), Answers())
    for plugin in plugins:
        try:
            client.register_plugin(plugin)
        except ImportError as error:
            where = "a Dask worker" if isinstance(plugin, Runtime) else "the Dask scheduler"
            raise ClusterError(
                f"{where} cannot import psnb ({error}): install it there too, in the same version "
                "as here. All of a cluster's processes need it"
            ) from error
    run_on_loop(event_loop(client), lambda: warn_of_short_limits(client))
