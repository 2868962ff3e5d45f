"""Rebalancing: moves shards between servers while they are in use.

A shard moves as a copy is made: the new server gets a copy, filled while the old one works; then
the old one stops, the copy has everything and takes over. Whoever asks in that moment asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from distributed import Client

from psnb.cluster import roles
from psnb.errors import ConfigurationError, PsnbError
from psnb.monitor import EventKind
from psnb.placement import Place, ServerAddress, moves
from psnb.strategy.orders import Orders
from psnb.strategy.servers import Servers


async def rebalance(
    client: Client, servers: Servers, orders: Orders, drain: Collection[str]
) -> int:
    """Spread shards over all servers that there are but those to be drained.

    Returns
    -------
    int
        How many shards were moved.
    """
    found = roles(await client.scheduler.identity(n_workers=-1))
    known = {**found.servers, **found.workers}
    names = {name: address for address, name in known.items()}
    drained = {names.get(each, each) for each in drain}
    running = {server.address: server for server in servers.running}
    if unknown := drained - running.keys():
        raise ConfigurationError(
            f"rebalance(drain=...): {sorted(known.get(each, each) for each in unknown)} are no "
            "servers of this strategy; it has "
            f"{sorted(known.get(address, address) for address in running)}"
        )
    fresh = [each for each in found.servers if each not in running and each not in drained]
    if len(running) + len(fresh) - len(drained) <= servers.layout.replicas:
        raise ConfigurationError(
            "rebalance(drain=...) would leave too few servers: start others first, with "
            'dask worker ADDRESS --resources "ps=1"'
        )
    if fresh:
        await asyncio.to_thread(servers.start, fresh)
        for address in fresh:
            servers.events.add(EventKind.SERVER_JOINED, f"{address} joins as server")
    usable = [server for server in servers.running if server.address not in drained]
    async with servers.changing:
        weights = [0.0] * len(servers.layout.places)
        for server in servers.layout.servers:
            for index, nbytes in (await orders.weigh(server)).items():
                weights[index] = float(nbytes)
        wanted = moves(servers.layout, usable, weights)
    for index, target in wanted:
        await _move(servers, orders, index, target)
    async with servers.changing:
        await _empty(servers, orders, drained)
    if wanted:
        text = f"shards moved: {', '.join(f'{index} to {to.address}' for index, to in wanted)}"
        servers.events.add(EventKind.SHARDS_MOVED, text)
    return len(wanted)


async def _move(servers: Servers, orders: Orders, index: int, target: ServerAddress) -> None:
    source = servers.layout.places[index].primary
    if source is None or source == target:
        return
    # Not under the lock: it may take long, and servers may die meanwhile.
    await orders.copy(source, index, target)
    await orders.filled(source, index, target)
    async with servers.changing:
        layout = servers.layout
        place = layout.places[index]
        if place.primary != source:
            return  # the source died, and another copy took over
        try:
            await orders.retire(source, index, target)
            await orders.promote(target, [index])
        except PsnbError:
            await orders.promote(source, [index])
            raise
        places = list(layout.places)
        places[index] = Place(target)
        await servers.publish(layout.with_places(places))
        await orders.drop(source, [index])
        if place.replica is not None and place.replica != target:
            await orders.drop(place.replica, [index])


async def _empty(servers: Servers, orders: Orders, drained: Collection[str]) -> None:
    """Let go of the copies on drained servers, and of the servers."""
    layout = servers.layout
    places = [
        Place(place.primary)
        if place.replica is not None and place.replica.address in drained
        else place
        for place in layout.places
    ]
    if tuple(places) != layout.places:
        await servers.publish(layout.with_places(places))
    for index, (before, after) in enumerate(zip(layout.places, places, strict=True)):
        if before.replica is not None and after.replica is None and before.primary is not None:
            await orders.let_go(before.primary, index, before.replica)
    for server in servers.running:
        if server.address in drained:
            servers.give_up(server)
