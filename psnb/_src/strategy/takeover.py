"""Taking over: the strategy of an owner that has gone becomes this process's.

The scheduler allows it to one process at a time. Then orphaned commits are applied or dropped,
under the strategy's former id, with its reconciler running as usual. Only then strategy and servers
get other names, under which nothing is pending, and the former names reach nothing
(`Servers.move`). If this process dies meanwhile, another one can take over in any of these states.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from distributed import Client

from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.commit import recover_orphans
from psnb._src.client.requests import Request
from psnb._src.dask_compat.reach import event_loop, pool_of
from psnb._src.placement.layout import Layout
from psnb._src.protocol.modes import Mode
from psnb._src.server.operations import OpenLog
from psnb._src.server.tables.sharding import Partitioner
from psnb._src.strategy.core import StrategyCore, unpickled_here
from psnb._src.strategy.ownership import Ownership, claim
from psnb._src.strategy.reconciler import Reconciler
from psnb._src.strategy.servers import Servers
from psnb._src.utils.threads import run_on_loop
from psnb.errors import PsnbError, ServerUnresponsiveError

logger = logging.getLogger("psnb")


@dataclass(frozen=True, slots=True)
class StrategyTerms:
    """What a strategy was made with that only its owner reads, pickled."""

    mode: Mode
    partitioner: Partitioner | None
    dedicated: bool
    half: bool


def take_over(client: Client, strategy: str) -> tuple[StrategyCore, Mode]:
    """Become the owner of a strategy that has none.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    strategy : str
        The strategy's id.

    Raises
    ------
    ClusterError
        If it has an owner that lives, or was freed this very moment.
    ServerUnresponsiveError
        If a server does not respond that holds what no other does; it can be tried again.
    SerializationError
        If a class or function that it was made with cannot be unpickled here.
    """
    loop = event_loop(client)
    ownership, layout = run_on_loop(loop, lambda: claim(client, strategy))
    try:
        return _taken(client, ownership, layout)
    except BaseException:  # an interrupt, too: another process may claim it
        with suppress(PsnbError):
            run_on_loop(loop, ownership.leave)
        raise


def _taken(client: Client, ownership: Ownership, layout: Layout) -> tuple[StrategyCore, Mode]:
    terms: StrategyTerms = unpickled_here("what it was made with", ownership.record.packed)
    servers = Servers(client, ownership, layout.heartbeat_timeout, terms.dedicated)
    loop = event_loop(client)

    async def take() -> Reconciler:
        servers.take(layout)
        return Reconciler(client, servers)

    reconciler = run_on_loop(loop, take)
    server_client = CommServerClient(loop, pool_of(client), servers.layout_cache)
    try:
        loading = run_on_loop(loop, lambda: recover_orphans(servers.shards, server_client.ask))
    finally:
        reconciler.close()
        server_client.close()
    run_on_loop(loop, servers.move)
    core = StrategyCore(client, servers, terms.partitioner, terms.half)
    try:
        core.take()
        requests = [Request(shard, OpenLog()) for shard in servers.shards]
        for outcome in core.server_client.attempt(requests):
            if isinstance(outcome, ServerUnresponsiveError):
                raise outcome
        if loading:
            logger.warning(
                "the notebook before died while it restored or rewound parameters: some may have "
                "a part of what they were to get. strategy.recover(checkpoint), or "
                "CheckpointManager.restore(), loads all of a checkpoint"
            )
    except BaseException:  # an interrupt, too: another process may claim it
        core.leave()  # by the id that it has now
        raise
    return core, terms.mode
