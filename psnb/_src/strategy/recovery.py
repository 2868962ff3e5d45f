"""Recovery: makes shards again whose servers are lost or do not respond.

On the client's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from distributed import Client

from psnb._src.cluster import roles
from psnb._src.dask_internals import scheduler_identity
from psnb._src.monitor import EventKind
from psnb._src.placement import Layout, ServerAddress, ShardPlace
from psnb._src.server import FenceCommits
from psnb._src.strategy.reconciler import Reconciler
from psnb._src.strategy.servers import Servers
from psnb.errors import ClusterError, ServerLostError, ServerSilentError

_LOOK = 0.2


async def recover_shards(
    client: Client,
    servers: Servers,
    reconciler: Reconciler,
    fences: Sequence[FenceCommits],
    restart_timeout: float,
    check: Callable[[Collection[int]], object] = bool,
) -> list[int]:
    """Host lost shards again, empty, and return which they are: those that no server holds.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    servers : Servers
        The strategy's servers.
    reconciler : Reconciler
        Lets copies take over, if there are copies.
    fences : sequence of FenceCommits
        Operations that tell new shards which commits were given up.
    restart_timeout : float
        Seconds in which Dask's nannies may start the processes of dead servers again.
    check : callable
        Called with the lost shards before anything is changed, and may raise.

    Raises
    ------
    ClusterError
        If there is no server at all.
    ServerLostError
        If a server dies meanwhile.
    """
    wanted = reconciler.wanted
    while True:
        before, asked = servers.layout, servers.running
        alive, silent, lost, pending = await _look(servers)
        if not pending:
            break
        await reconciler.next_round()
    check(lost)
    if not lost:
        return []
    # This is final: silent servers are not waited for any more.
    for server in set(asked).difference(alive):
        servers.give_up(server)
    usable = await _replaced(client, servers, alive, silent, wanted, restart_timeout)
    async with servers.changing:
        lost = still_lost(lost, before, servers.layout)
        if lost:
            await _host(servers, lost, usable, fences)
    return lost


async def _look(
    servers: Servers,
) -> tuple[list[ServerAddress], list[ServerAddress], list[int], list[int]]:
    """Return the live servers, the silent ones, the lost shards and the pending shards.

    A copy of a pending shard is about to take over.
    """
    layout = servers.layout
    holds: dict[ServerAddress, set[int]] = {}
    silent: list[ServerAddress] = []

    async def look(server: ServerAddress) -> None:
        try:
            holds[server] = set(await servers.control.weigh(server))
        except ServerSilentError:
            silent.append(server)
        except ServerLostError:
            return

    await asyncio.gather(*(look(server) for server in servers.running))
    lost, pending = missing(layout, holds)
    return list(holds), silent, lost, pending


def missing(
    layout: Layout, holds: Mapping[ServerAddress, Collection[int]]
) -> tuple[list[int], list[int]]:
    """Return which shards are lost, and those of which a copy is about to take over. Pure.

    Parameters
    ----------
    layout : Layout
        Where shards should be.
    holds : mapping of ServerAddress to collection of int
        The servers that answer, and which shards they hold.
    """
    lost: list[int] = []
    pending: list[int] = []
    for index, place in enumerate(layout.places):
        if place.primary is None or index not in holds.get(place.primary, ()):
            copied = any(index in holds.get(copy, ()) for copy in place.copies)
            (pending if copied else lost).append(index)
    return lost, pending


async def _replaced(
    client: Client,
    servers: Servers,
    alive: Sequence[ServerAddress],
    silent: Sequence[ServerAddress],
    wanted: int,
    restart_timeout: float,
) -> list[ServerAddress]:
    """Start servers in place of dead ones and return all that there are.

    It waits for workers that were started as servers. If the strategy's servers were not, or if
    none comes in time, it takes some of the workers that run closures, but not the last one.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + restart_timeout
    used = {server.address for server in (*alive, *silent)}
    wanted -= len(silent)  # nobody starts them again while they are there
    while True:
        found, late = roles(await scheduler_identity(client)), loop.time() > end
        fresh = [address for address in found.servers if address not in used]
        if not found.servers and (late or not servers.dedicated):
            fresh = [address for address in found.workers if address not in used][:-1]
        if len(alive) + len(fresh) >= wanted or late:
            try:
                started = await servers.start(fresh[: wanted - len(alive)]) if fresh else []
                break
            except ClusterError:  # that of a process which is just about to end, perhaps
                if late:
                    raise
        await asyncio.sleep(_LOOK)
    if not alive and not started:
        raise ClusterError(
            "no worker can be a parameter server: start some with "
            'dask worker ADDRESS --resources "ps=1", then call recover() again'
        )
    return [*alive, *started]


async def _host(
    servers: Servers,
    lost: Sequence[int],
    usable: Sequence[ServerAddress],
    fences: Sequence[FenceCommits],
) -> None:
    """Host lost shards on servers, empty, and publish the new layout."""
    layout = hosted_anew(servers.layout, lost, usable)
    given: dict[ServerAddress, dict[int, ShardPlace]] = {}
    for index in lost:
        place = layout.places[index]
        given.setdefault(place.servers[0], {})[index] = place
    for server, places in given.items():
        await servers.control.host(server, places, fences)
    await servers.publish(layout)
    text = f"shards {list(lost)} are on {', '.join(server.address for server in given)} now"
    servers.events.add(EventKind.SHARDS_RECOVERED, text)


def still_lost(lost: Sequence[int], before: Layout, now: Layout) -> list[int]:
    """Return the lost shards that were given to no other server since servers were asked. Pure."""
    return [i for i in lost if now.places[i].primary in (None, before.places[i].primary)]


def hosted_anew(layout: Layout, lost: Sequence[int], usable: Sequence[ServerAddress]) -> Layout:
    """Return the layout in which lost shards are spread over some servers. Pure."""
    places = list(layout.places)
    load = dict.fromkeys(usable, 0)
    for index, place in enumerate(places):
        if index not in lost and place.primary in load:
            load[place.primary] += 1
    for index in lost:
        server = min(load, key=lambda each: load[each])
        load[server] += 1
        nowhere = {"copies": (), "filling": None, "heir": None, "leaving": ()}
        places[index] = places[index].next(primary=None, **nowhere).next(primary=server)
    return layout.with_places(places)
