"""Questions about all rows of tables on real servers: from closures, and while servers die."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.client.handles import shards_of
from psnb._src.client.tables import scan as table_scan
from tests.conftest import DEADLINE
from tests.integration.counting import kill, wait_until_copied

DIM = 16


def filled(strategy: psnb.ParameterServerStrategy, count: int) -> tuple[psnb.Embedding, Any]:
    table = strategy.embedding("items", DIM)
    rows = np.random.default_rng(0).normal(size=(count, DIM)).astype(np.float32)
    table.assign(np.arange(count), rows)
    return table, rows


def test_closures_look_into_a_table(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        table, rows = filled(strategy, 1000)

        def look() -> Any:
            table.assign([3], np.full((1, DIM), 9, np.float32))
            near, _ = table.nearest(np.ones(DIM), k=1)
            return near, sum(len(ids) for ids, _ in table.items()), table.describe().rows

        near, count, described = coordinator.schedule(look).fetch(DEADLINE)
        assert (near.tolist(), count, described) == ([3], 1000, 1000)
        found, _ = table.nearest(rows[5], k=1, metric="l2")
        assert found.tolist() == [5]


@pytest.mark.second_tier("a cluster of its own, of which a server is killed")
def test_all_is_found_although_a_server_dies(
    whole: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        wait_until_copied(strategy)
        table, rows = filled(strategy, 300_000)
        wait_until_copied(strategy)
        shards, left = shards_of(table), [2]
        scan = table_scan.on_table

        def on_table(*request: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:  # when the second piece is asked for
                server = strategy._core.layout.placements[shards.tables[0][0].number].primary
                assert server is not None
                kill(whole, server.address)
            return scan(*request)

        monkeypatch.setattr(table_scan, "on_table", on_table)
        left[0] = len(shards.tables) + 1
        found, _ = table.nearest(np.ones(DIM), k=20, metric="dot")
        expected = rows.astype(np.float64).sum(axis=1)
        assert found.tolist() == np.argsort(-expected)[:20].tolist()
        assert left[0] < 0
        wait_until_copied(strategy)
        some = table.items(chunk=10_000)
        ids = [next(some)[0]]
        left[0] = 2
        ids += [each for each, _ in some]
        assert left[0] < 0
        assert sorted(np.concatenate(ids).tolist()) == list(range(300_000))
