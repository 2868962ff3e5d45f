"""What becomes of requests to a server that does not respond, on a real cluster.

The layouts here say other things than the strategy's: when they change, the test decides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.client import comm_client
from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.handles import shards_of
from psnb._src.client.requests import on_table
from psnb._src.dask_compat.reach import event_loop, pool_of
from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.placement.layout_cache import LayoutCache
from psnb._src.server.tables.operations import ReadValues
from psnb.errors import ServerUnresponsiveError
from tests.conftest import DEADLINE
from tests.integration.helpers import frozen

PROCESSES = True  # of which one can be frozen

PATIENCE = 0.2


class Reader:
    """Reads a variable from where the layouts say, one after the other, that it is."""

    def __init__(self, client: Client, variable: psnb.Variable) -> None:
        ((self._shard, self._table),) = shards_of(variable).tables
        self._client, self._asked = client, 0

    def read(self, *places: ShardPlacement, patience: float = PATIENCE) -> Any:
        """Read, while each question to the scheduler is answered by the next place."""

        async def ask(strategy: str) -> Any:
            self._asked += 1
            place = places[min(self._asked, len(places)) - 1]
            there = (place,) * (self._shard.number + 1)
            return Layout(strategy, self._asked, 1, patience, there).packed()

        sender = CommServerClient(
            event_loop(self._client), pool_of(self._client), LayoutCache(ask), look_again=PATIENCE
        )
        try:
            return sender.call([on_table(self._shard, self._table, ReadValues())])[0]
        finally:
            sender.close()


@contextmanager
def reading(cluster: Client) -> Iterator[tuple[Reader, ServerAddress, ServerAddress]]:
    """Give a reader of a variable, a server that is frozen, and the one that has the variable."""
    with psnb.ParameterServerStrategy(cluster, heartbeat_timeout=2 * DEADLINE) as strategy:
        variable = strategy.variable(np.float64(7.0))
        number = shards_of(variable).tables[0][0].number
        there = strategy._core.layout.placements[number].primary
        (other,) = set(strategy._core.layout.servers) - {there}
        assert there is not None
        pids = cluster.run(os.getpid, workers=[other.address])
        with frozen(pids[other.address]):
            yield Reader(cluster, variable), other, there


@pytest.fixture
def servers(cluster: Client) -> Iterator[tuple[Reader, ServerAddress, ServerAddress]]:
    with reading(cluster) as found:
        yield found


def test_the_layout_is_read_again_before_a_server_counts_as_unresponsive(
    servers: tuple[Reader, ServerAddress, ServerAddress],
) -> None:
    reader, unresponsive, there = servers
    # One question finds the shard; one follows the first look whether the server lives.
    before = [ShardPlacement(unresponsive)] * 2
    assert reader.read(*before, ShardPlacement(there)) == 7.0


def test_a_copy_has_time_to_take_over_after_the_notebook_has_lost_patience(
    servers: tuple[Reader, ServerAddress, ServerAddress], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, _, there = servers
    monkeypatch.setattr(comm_client, "FAILOVER_TIMEOUT", PATIENCE)
    nobody, patience = ServerAddress("tcp://127.0.0.1:1", "psnb-server-s-0"), 5 * PATIENCE
    began = time.monotonic()
    with pytest.raises(ServerUnresponsiveError):
        reader.read(ShardPlacement(nobody, (there,)), patience=patience)
    assert time.monotonic() - began >= patience + PATIENCE
