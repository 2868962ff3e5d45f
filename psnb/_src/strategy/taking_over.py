"""Taking over: the strategy of an owner that has gone becomes this process's.

The scheduler decides who may, one at a time. Then what was halfway is finished or given up, under
the strategy's id as it was, with the servers looked after as ever. Only then strategy and servers
get other names, under which nothing is halfway; whoever knows the former names reaches nothing
(`Servers.move`). If this process dies meanwhile, another one takes over what it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from distributed import Client

from psnb._src.cluster import dashboard_link
from psnb._src.dask_internals import cloudpickled, event_loop, pool_of
from psnb._src.modes import Mode
from psnb._src.parameters import CommServerClient, Partitioner, Request
from psnb._src.placement import Layout, ShardId
from psnb._src.server import OpenLog
from psnb._src.strategy.core import StrategyCore, unpickled_here
from psnb._src.strategy.departures import Departures, no_last_save
from psnb._src.strategy.ownership import Ownership, claim
from psnb._src.strategy.reconciler import Reconciler
from psnb._src.strategy.servers import Servers
from psnb._src.threads import aside, on_loop
from psnb.errors import PsnbError, ServerSilentError

Attempt = Callable[[Sequence[Request]], Sequence[Any]]
"""Makes requests; returns errors in the place of answers."""

Finish = Callable[[Attempt, Sequence[ShardId]], None]
"""Has shards finish what is halfway, or give it up, all alike."""


@dataclass(frozen=True, slots=True)
class StrategyTerms:
    """What a strategy was made with that only its owner reads."""

    mode: Mode
    partitioner: Partitioner | None
    dedicated: bool
    half: bool

    def packed(self) -> bytes:
        """Return it pickled; a partitioner of the notebook's by value."""
        return cloudpickled(self)


def take_over(client: Client, strategy: str, finish: Finish) -> tuple[StrategyCore, Mode]:
    """Become the owner of a strategy that has none.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    strategy : str
        The strategy's id.
    finish : callable
        See `Finish`.

    Raises
    ------
    ClusterError
        If it has an owner that lives, or was freed this very moment.
    ServerSilentError
        If a server does not respond that holds what no other does; it can be tried again.
    SerializationError
        If a class or function that it was made with cannot be unpickled here.
    """
    loop = event_loop(client)
    ownership, layout = on_loop(loop, lambda: claim(client, strategy))
    try:
        return _taken(client, ownership, layout, finish)
    except BaseException:
        with suppress(PsnbError):
            on_loop(loop, lambda: ownership.leave(strategy))
        raise


def _taken(
    client: Client, ownership: Ownership, layout: Layout, finish: Finish
) -> tuple[StrategyCore, Mode]:
    terms: StrategyTerms = unpickled_here("what it was made with", ownership.deed.packed)
    servers = Servers(client, ownership, layout.patience, terms.dedicated)
    loop, dashboard = event_loop(client), aside(dashboard_link, client)

    async def take() -> Reconciler:
        servers.take(layout)
        return Reconciler(client, servers, Departures(loop, servers, no_last_save))

    reconciler = on_loop(loop, take)
    server_client = CommServerClient(loop, pool_of(client), servers.layout_cache)
    try:
        finish(server_client.attempt, servers.shards)
    finally:
        reconciler.close()
        server_client.close()
    on_loop(loop, servers.move)
    core = StrategyCore(client, servers, terms.partitioner, terms.half, dashboard)
    try:
        core.take()
        for outcome in core.attempt([Request(shard, OpenLog()) for shard in core.shards]):
            if isinstance(outcome, ServerSilentError):
                raise outcome
    except BaseException:
        core.leave()  # by the id that it has now
        raise
    return core, terms.mode
