"""An epoch over thousands of partitions of Dask: what is asked of Dask grows with them, no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import wait

import psnb
from psnb._src.coordinator.datasets import dask_source
from psnb.data import Dataset
from tests.integration.data.test_leases import numbers, visits_of

PARTITIONS, EACH = 3000, 4


@pytest.mark.second_tier("an epoch over thousands of partitions takes a minute")
def test_an_epoch_over_thousands_of_partitions_asks_about_each_twice_and_uses_every_row_once(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, ask = list[int](), dask_source.holders

    async def counted(client: Any, keys: list[Any]) -> dict[Any, list[str]]:
        asked.append(len(keys))
        return await ask(client, keys)

    monkeypatch.setattr(dask_source, "holders", counted)
    rows = da.arange(PARTITIONS * EACH, chunks=EACH)
    kept = strategy.client.persist(rows, workers=strategy.worker_addresses)
    wait(kept)
    visits = visits_of(strategy, PARTITIONS * EACH)

    def step(iterator: Iterator[Any]) -> None:
        ids = next(iterator)
        visits.push(ids, -np.ones((len(ids), 1), np.float32))

    dataset = coordinator.create_per_worker_dataset(
        Dataset.from_dask(kept).batch(EACH), sharding="dynamic"
    )
    iterator = iter(dataset)
    assert sum(asked) == PARTITIONS
    coordinator.run_epoch(step, iterator)
    assert numbers(visits, PARTITIONS * EACH) == [1] * (PARTITIONS * EACH)
    assert sum(asked) <= 2 * PARTITIONS
    assert max(asked) <= 2 * dask_source._AT_ONCE
