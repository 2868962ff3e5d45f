"""What a strategy's owner makes of the scheduler's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator

import pytest
from distributed import Client, LocalCluster

from psnb._src.dask_compat.reach import event_loop
from psnb._src.placement.layout import Layout
from psnb._src.placement.registry import PUBLISH, OwnershipRecord
from psnb._src.strategy.ownership import Ownership, claim
from psnb._src.strategy.servers import Servers
from psnb.errors import SchedulerLostError
from tests.conftest import DEADLINE


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a scheduler that was never told of psnb."""
    with (
        LocalCluster(
            n_workers=0,
            processes=False,
            dashboard_address="127.0.0.1:0",  # or it would take 8787
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def on_its_loop(client: Client, call: Coroutine[object, object, object]) -> object:
    return asyncio.run_coroutine_threadsafe(call, event_loop(client)).result(DEADLINE)


def test_a_scheduler_that_knows_nothing_of_psnb_is_another_one(client: Client) -> None:
    ownership = Ownership(client, OwnershipRecord("mine", 1.0, 60.0, b""))
    for call in (
        ownership.register("s"),
        ownership.describe("v", b""),
        ownership.publish(Layout("s", 1, 1, 10.0, ()), ()),
        ownership.move(Layout("t", 1, 1, 10.0, ()), {}),
        ownership.close(),
        ownership.leave(),
        claim(client, "s"),
    ):
        with pytest.raises(SchedulerLostError, match=client.scheduler.address):
            on_its_loop(client, call)


def test_a_strategy_can_be_closed_before_that_is_noticed(client: Client) -> None:
    servers = Servers(
        client, Ownership(client, OwnershipRecord("mine", 1.0, 60.0, b"")), 10.0, True
    )
    del client.cluster.scheduler.handlers[PUBLISH]  # as if there were another one
    on_its_loop(client, servers.forget())
