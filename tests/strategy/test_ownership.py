"""What a strategy's owner makes of the scheduler's answers."""

from __future__ import annotations

import asyncio

import pytest
from distributed import Client, LocalCluster

from psnb._src.dask_internals import event_loop
from psnb._src.placement import Deed, Layout
from psnb._src.strategy.ownership import Ownership, claim
from psnb.errors import SchedulerLostError
from tests.conftest import DEADLINE


def test_a_scheduler_that_knows_nothing_of_psnb_is_another_one() -> None:
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        ownership = Ownership(client, Deed("mine", 1.0, 60.0, b""))
        for call in (
            ownership.register("s"),
            ownership.describe("s", "v", b""),
            ownership.publish(Layout("s", 1, 1, 10.0, ())),
            ownership.move("s", Layout("t", 1, 1, 10.0, ())),
            ownership.close("s"),
            ownership.leave("s"),
            claim(client, "s"),
        ):
            asked = asyncio.run_coroutine_threadsafe(call, event_loop(client))
            with pytest.raises(SchedulerLostError, match=client.scheduler.address):
                asked.result(DEADLINE)
