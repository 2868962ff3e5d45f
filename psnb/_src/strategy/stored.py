"""StoredStrategies: the strategies on the servers of a cluster, with or without an owner."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from distributed import Client

from psnb._src.dask_compat.reach import ask_scheduler, event_loop, pool_of
from psnb._src.monitor.html.tables import html_table
from psnb._src.placement.layout import Layout, ServerAddress, unpacked
from psnb._src.placement.registry import STRATEGIES, Owner, OwnershipRecord
from psnb._src.strategy.control import ServerControl
from psnb._src.strategy.servers import extend
from psnb._src.utils.text import text_table
from psnb._src.utils.threads import run_in_thread, run_on_loop
from psnb.errors import ServerLostError

_HEAD = ("strategy", "since", "parameters", "bytes", "owner")


@dataclass(frozen=True, slots=True)
class StoredStrategy:
    """A strategy that lives on a cluster.

    Attributes
    ----------
    name : str
        For `attach`; unique on the cluster.
    id : str
        psnb's own.
    since : float
        When it was made, in seconds since 1970.
    parameters : tuple of str
        The names of its variables and embeddings.
    nbytes : int
        Bytes that the servers hold that answer, with optimizer state and copies.
    owner : str
        The process that owns it, or has owned it last.
    owned : bool
        Whether that process lives: then the strategy cannot be attached.
    retention : float
        Seconds for which it is kept without an owner.
    """

    name: str
    id: str
    since: float
    parameters: tuple[str, ...]
    nbytes: int
    owner: str
    owned: bool
    retention: float

    def row(self) -> tuple[str, ...]:
        """Return the cells of a table."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        owner = self.owner if self.owned else f"none; before: {self.owner}"
        return self.name, since, str(len(self.parameters)), f"{self.nbytes:,}", owner


class StoredStrategies(tuple[StoredStrategy, ...]):
    """What lives on a cluster, the oldest first; all that a tuple can."""

    __slots__ = ()

    def __repr__(self) -> str:
        return text_table(_HEAD, [each.row() for each in self]) if self else "no strategies"

    def _repr_html_(self) -> str:
        rows = [each.row() for each in self]
        return html_table("strategies", _HEAD, rows) or "no strategies"


def stored_strategies(client: Client) -> StoredStrategies:
    """Return the strategies that live on a cluster.

    Raises
    ------
    ClusterError
        If the scheduler cannot import psnb.
    """
    run_in_thread(extend, client)
    return run_on_loop(event_loop(client), lambda: _stored(client))


async def _stored(client: Client) -> StoredStrategies:
    found = []
    for key, record, owner, layout, parameters, _, lives in await ask_scheduler(client, STRATEGIES):
        what, who = OwnershipRecord(*record), Owner(*owner)
        nbytes = await _weigh(client, unpacked(layout))
        found.append(
            StoredStrategy(
                what.name,
                key,
                what.made,
                tuple(parameters),
                nbytes,
                who.where,
                lives,
                what.retention,
            )
        )
    return StoredStrategies(sorted(found, key=lambda each: each.since))


async def _weigh(client: Client, layout: Layout) -> int:
    control = ServerControl(pool_of(client), layout.heartbeat_timeout)

    async def weigh(server: ServerAddress) -> int:
        try:
            shards = await control.measure(server)
            return sum(sum(tables.values()) for tables in shards.values())
        except ServerLostError:
            return 0
        finally:
            control.hang_up(server)

    return sum(await asyncio.gather(*map(weigh, layout.servers)))
