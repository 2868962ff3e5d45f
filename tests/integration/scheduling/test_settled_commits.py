"""What has ended beside a closure that takes long is not kept: by no server, nor the notebook."""

from __future__ import annotations

import gc
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.coordinator.coordinator import coordinator_core
from psnb._src.coordinator.scheduling.scheduler import LEAST_REPORTED
from psnb._src.server.shard import ParameterShard
from psnb._src.server.transfer import Transfer
from tests.conftest import wait_until
from tests.integration.counting import wait_until_copied

TOGETHER, TIMES = 100, 6
TRANSFER_WITHOUT_LOG, LOG_ENTRY = 2_000, 130
"""Bytes, measured as 1,000 and 119: a number of each of the 600 that have ended would be 5,000."""


def shards_of(variable: str) -> list[ParameterShard]:
    """Return the shards of this process that have a variable, replicas too."""
    gc.collect()
    found = [each for each in gc.get_objects() if isinstance(each, ParameterShard)]
    return [each for each in found if variable in each.tables()]


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(psnb.Async(), id="async"),
        pytest.param(psnb.Geo(2), id="geo", marks=pytest.mark.second_tier("a further mode")),
    ],
)
def test_servers_and_notebook_keep_no_more_than_twice_what_is_in_flight(
    mode: Any, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    with (
        psnb.local_cluster(workers=2, servers=2, processes=False) as client,
        psnb.ParameterServerStrategy(client, replicas=1, mode=mode) as strategy,
    ):
        v = strategy.variable(np.zeros(2, np.float32), optimizer=psnb.SGD(1.0))
        coordinator = psnb.ClusterCoordinator(strategy)

        def short() -> None:
            v.push(np.ones(2, np.float32))

        def long() -> None:
            while not over.exists():
                time.sleep(0.02)

        slow = coordinator.schedule(long, worker=0)
        wait_until(lambda: slow.status is psnb.ClosureStatus.RUNNING, "the long one runs")
        wait_until_copied(strategy)
        shards = shards_of(v.name)
        try:
            kept, sent = [], []
            for _ in range(TIMES):
                for each in [coordinator.schedule(short, worker=1) for _ in range(TOGETHER)]:
                    each.fetch()
                kept += [len(each.log) for each in shards]
                sent += [len(pickle.dumps(Transfer(each).last())) for each in shards]
            settled = coordinator_core(coordinator).queue._scheduler.in_flight.settled
            assert len(settled) <= 2
        finally:
            over.touch()
        assert 0 < max(kept) <= 2 * max(TOGETHER + 1, LEAST_REPORTED)
        for entries, size in zip(kept, sent, strict=True):
            assert size < TRANSFER_WITHOUT_LOG + LOG_ENTRY * entries
