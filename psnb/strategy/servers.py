"""Servers: the processes that hold a strategy's shards, and the layout that says which holds which.

It starts the actors, keeps them alive by their Dask futures, and publishes each layout on the
scheduler. Layouts are changed by one thread at a time: the strategy sees to that.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Sequence
from typing import Any

from distributed import Client

from psnb.errors import ClusterError, ServerLostError
from psnb.guard import SERVER_KEY, ServerGuard
from psnb.monitor import EventLog
from psnb.placement import Directory, Layout, LayoutBook, Place, ServerAddress, ShardId
from psnb.runtime import Runtime
from psnb.scaling import ClosureScaling
from psnb.server import ParameterServer
from psnb.strategy.orders import Orders

_START_TIMEOUT = 60.0
_PUBLISH_TIMEOUT = 10.0


class Servers:
    """The servers of one strategy.

    Parameters
    ----------
    client : distributed.Client
        The cluster.

    Attributes
    ----------
    name : str
        The strategy's, unique among those of the cluster.
    directory : Directory
        What this process knows of layouts.
    events : EventLog
        What happened to servers and shards.
    changing : asyncio.Lock
        Held by whoever decides on the next layout, from looking to publishing; servers are asked
        meanwhile, each time with a time limit. The client's event loop's.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.events = EventLog()
        self.name = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()
        self._futures: dict[ServerAddress, Any] = {}
        self._layout = Layout(self.name, 0, 0, ())
        self.changing = asyncio.Lock()
        self.directory = Directory(
            lambda strategy: client.scheduler.psnb_layout(strategy=strategy),
        )
        client.register_plugin(Runtime())
        _extend_scheduler(client)

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
        return tuple(self._futures)

    def start(self, addresses: Sequence[str]) -> list[ServerAddress]:
        """Start a server at each of some Dask workers.

        Raises
        ------
        ClusterError
            If they do not start in a minute.
        """
        futures = {
            ServerAddress(address, key): self._client.submit(
                ParameterServer,
                f"{key.rpartition('-')[2]} at {address}",
                actor=True,
                key=key,
                workers=[address],
            )
            for address in addresses
            for key in [f"{SERVER_KEY}{self.name}-{next(self._numbers)}"]
        }
        end = time.monotonic() + _START_TIMEOUT
        try:
            for future in futures.values():
                future.result(max(0.0, end - time.monotonic()))  # raises what made a start fail
        except TimeoutError as error:
            raise ClusterError(
                f"the parameter servers did not start within {_START_TIMEOUT:.0f} s: the "
                f"threads of {', '.join(addresses)} may be busy with other tasks"
            ) from error
        self._futures |= futures
        return list(futures)

    def give_up(self, server: ServerAddress) -> None:
        """Let a server go: it is dead, or holds nothing any more."""
        future = self._futures.pop(server, None)
        if future is not None:
            future.release()

    async def publish(self, layout: Layout) -> None:
        """Make a layout the one that counts; on the client's event loop.

        Raises
        ------
        ServerLostError
            If the scheduler does not answer.
        """
        # Known here first: what this process decides on next must not forget it.
        self._layout = layout
        self.directory.learn(layout)
        await self._publish(layout.packed())

    def close(self) -> None:
        """Free all servers, and forget where shards were; returns at once."""
        for server in list(self._futures):
            self.give_up(server)
        if self._client.status == "running":
            self._client.loop.add_callback(self._publish, None)

    async def _publish(self, packed: list[Any] | None) -> None:
        try:
            await self._client.scheduler.psnb_publish(
                owner=self._client.id, strategy=self.name, layout=packed
            )
        except OSError as error:
            if packed is not None:
                raise ServerLostError(f"the Dask scheduler does not answer: {error}") from error


async def begin(servers: Servers, orders: Orders, places: Sequence[Place], replicas: int) -> None:
    """Let servers hold the first shards, and publish where they are."""
    for server in servers.running:
        shards = [index for index, place in enumerate(places) if place.primary == server]
        await orders.host(server, shards)
    await servers.publish(Layout(servers.name, 1, replicas, tuple(places)))


def _extend_scheduler(client: Client) -> None:
    try:
        client.register_plugin(ServerGuard())
        client.register_plugin(ClosureScaling())
        client.register_plugin(LayoutBook())
    except ImportError as error:
        raise ClusterError(
            f"the Dask scheduler cannot import psnb ({error}): install it beside the scheduler "
            "too, in the same version as here and on the workers"
        ) from error
