"""Recovery: makes the shards anew that were lost with their servers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from distributed import Client

from psnb.cluster import roles
from psnb.errors import ClusterError, ServerLostError
from psnb.monitor import EventKind
from psnb.placement import Place, ServerAddress
from psnb.strategy.orders import Orders
from psnb.strategy.servers import Servers

_WAIT = 15.0
"""Seconds in which Dask's nannies may start the processes of dead servers again."""

_LOOK = 0.2


async def find_lost(servers: Servers, orders: Orders) -> tuple[list[int], list[ServerAddress]]:
    """Return the shards that no server holds any more, and the servers that live."""
    alive: dict[ServerAddress, set[int]] = {}

    async def look(server: ServerAddress) -> None:
        try:
            report = await orders.describe(server)
        except ServerLostError:
            return
        alive[server] = {index for index, (role, _) in report.items() if role == "primary"}

    await asyncio.gather(*(look(server) for server in servers.running))
    lost = [
        index
        for index, place in enumerate(servers.layout.places)
        if place.primary is None or index not in alive.get(place.primary, ())
    ]
    return lost, sorted(alive)


async def replace_servers(
    client: Client, servers: Servers, alive: Sequence[ServerAddress], wanted: int
) -> list[ServerAddress]:
    """Start servers in place of dead ones and return all that there are.

    It waits for workers that were started as servers; if the cluster has none but those that run
    closures, it takes of these, but for the last.

    Raises
    ------
    ClusterError
        If there is no server at all.
    """
    for server in set(servers.running).difference(alive):
        servers.give_up(server)
    loop = asyncio.get_running_loop()
    end = loop.time() + _WAIT
    used = {server.address for server in alive}
    while True:
        found = roles(await client.scheduler.identity(n_workers=-1))
        fresh = [address for address in found.servers if address not in used]
        if not found.servers and not used.intersection(found.servers):
            fresh = [address for address in found.workers if address not in used][:-1]
        if len(alive) + len(fresh) >= wanted or loop.time() > end:
            break
        await asyncio.sleep(_LOOK)
    started = await asyncio.to_thread(servers.start, fresh[: wanted - len(alive)]) if fresh else []
    if not alive and not started:
        raise ClusterError(
            "no worker can be a parameter server: start some with "
            'dask worker ADDRESS --resources "ps=1", then call recover() again'
        )
    return [*alive, *started]


async def host_again(
    servers: Servers, orders: Orders, lost: Sequence[int], usable: Sequence[ServerAddress]
) -> None:
    """Let servers hold lost shards, empty, and publish where everything is."""
    layout = servers.layout
    places = list(layout.places)
    load = dict.fromkeys(usable, 0)
    for index, place in enumerate(places):
        if index not in lost and place.primary in load:
            load[place.primary] += 1
    given: dict[ServerAddress, list[int]] = {}
    for index in lost:
        server = min(load, key=lambda each: load[each])
        load[server] += 1
        given.setdefault(server, []).append(index)
        places[index] = Place(server)
    for server, shards in given.items():
        await orders.host(server, shards)
    await servers.publish(layout.with_places(places))
    text = f"shards {list(lost)} are on {', '.join(server.address for server in given)} now"
    servers.events.add(EventKind.SHARDS_RECOVERED, text)
