"""Spreads shards over the servers that there are, or empties some, while in use.

The new places are computed here; the `Reconciler` moves the shards. A shard moves in steps: the
new server gets a copy, which is filled while the old server works; then the old one stops, the
copy has everything and takes over. Requests at that moment are sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from distributed import Client

from psnb._src.cluster.links import present
from psnb._src.cluster.roles import roles
from psnb._src.dask_compat.reach import scheduler_identity
from psnb._src.monitor.events import EventKind
from psnb._src.placement.layout import Layout, ServerAddress
from psnb._src.strategy.reconciler import Reconciler
from psnb._src.strategy.servers import Servers
from psnb.errors import ConfigurationError, ServerLostError

_ATTEMPTS = 5

Sizes = dict[int, dict[str, int]]
"""Bytes by the numbers of shards and the names of their tables."""


async def measured(servers: Servers, reconciler: Reconciler) -> dict[ServerAddress, Sizes]:
    """Return the size of all that servers hold, copies included.

    If a server is given up meanwhile, or replicas take over from it, all are asked once more.

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


async def rebalance(
    client: Client, servers: Servers, reconciler: Reconciler, drain: Collection[str]
) -> int:
    """Spread shards over all servers that there are, except those to be drained.

    If it is cancelled, the layout stays valid; another call continues from there.

    Returns
    -------
    int
        How many shards were moved.
    """
    cluster = await scheduler_identity(client)
    found, listed = roles(present(cluster)), roles(cluster)
    known = {**listed.servers, **listed.workers}
    names = {name: address for address, name in known.items()}
    drained = {names.get(each, each) for each in drain}
    running = {server.address: server for server in servers.running}
    if unknown := drained - running.keys():
        raise ConfigurationError(
            f"rebalance(drain=...): {sorted(known.get(each, each) for each in unknown)} are "
            "not servers of this strategy; it has "
            f"{sorted(known.get(address, address) for address in running)}"
        )
    fresh = [each for each in found.servers if each not in running and each not in drained]
    if len(running) + len(fresh) - len(drained) <= servers.layout.replicas:
        raise ConfigurationError(
            "rebalance(drain=...) would leave too few servers: start others first, with "
            'dask worker ADDRESS --resources "ps=1"'
        )
    await servers.start(fresh)
    sizes = await measured(servers, reconciler)
    layout = servers.layout
    usable = [
        server
        for server in servers.running
        if server.address not in drained
        and (server in sizes or not reconciler.is_unresponsive(server))
    ]
    weights = [0.0] * len(layout.placements)
    for shards in sizes.values():
        for index, tables in shards.items():
            weights[index] = max(weights[index], float(sum(tables.values())))
    wanted = dict(moves(layout, usable, weights)) if usable else {}
    await reconciler.arrange(
        wanted, [server for server in servers.running if server.address in drained]
    )
    if wanted:
        text = f"shards moved: {', '.join(f'{i} to {to.address}' for i, to in wanted.items())}"
        servers.events.add(EventKind.SHARDS_MOVED, text)
    return len(wanted)


def moves(
    layout: Layout, usable: Sequence[ServerAddress], weights: Sequence[float]
) -> list[tuple[int, ServerAddress]]:
    """Return which shards should get another primary, so that servers are loaded evenly. Pure.

    Shards on servers that are not usable move in any case, others only if the higher load of the
    two servers becomes lower; so a balanced layout stays as it is.

    Parameters
    ----------
    layout : Layout
        Where shards are.
    usable : sequence of ServerAddress
        Servers that may hold shards.
    weights : sequence of float
        The size of each shard, in bytes.
    """
    # An empty shard will have something one day.
    weight = [each + 1.0 for each in weights]
    holds: dict[ServerAddress, list[int]] = {server: [] for server in usable}
    found: dict[int, ServerAddress] = {}
    homeless = []
    for index, placement in enumerate(layout.placements):
        if placement.primary in holds:
            holds[placement.primary].append(index)
        elif placement.primary is not None:
            homeless.append(index)

    def load(server: ServerAddress) -> float:
        return sum(weight[index] for index in holds[server])

    for index in sorted(homeless, key=lambda index: -weight[index]):
        target = min(usable, key=load)
        holds[target].append(index)
        found[index] = target
    while True:
        heaviest, lightest = max(usable, key=load), min(usable, key=load)
        gap = load(heaviest) - load(lightest)
        fitting = [index for index in holds[heaviest] if weight[index] < gap]
        if not fitting:
            placements = layout.placements
            return sorted(move for move in found.items() if move[1] != placements[move[0]].primary)
        # The shard that brings the two loads closest together.
        index = min(fitting, key=lambda index: abs(gap - 2 * weight[index]))
        holds[heaviest].remove(index)
        holds[lightest].append(index)
        found[index] = lightest
