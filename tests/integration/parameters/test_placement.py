"""Where parameters go: shards are spread over the servers by bytes."""

from __future__ import annotations

import numpy as np
from distributed import Client

import psnb


def held(strategy: psnb.ParameterServerStrategy) -> list[int]:
    """Return the bytes on each server."""
    return [sum(tables.values()) for tables in strategy.memory().values()]


def test_shards_of_many_sizes_are_balanced_by_bytes(cluster: Client) -> None:
    partitioner = psnb.MaxSize(4000)
    with psnb.ParameterServerStrategy(cluster, partitioner=partitioner) as strategy:
        for rows in (5000, 10, 3000, 700, 2):
            strategy.variable(np.zeros(rows, np.float32), optimizer=psnb.Adagrad())
        assert abs(np.subtract(*held(strategy))) <= 2 * 4000


def test_variables_and_embeddings_are_balanced_together(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    strategy.embedding("one row", 1000, rows=1, optimizer=psnb.Adagrad())  # on the first server
    first = held(strategy)[0]
    assert first == 1000 * 4 * 2
    strategy.variable(np.zeros(900, np.float32), name="small", optimizer=psnb.Adagrad())
    assert held(strategy) == [first, 900 * 4 * 2]
    strategy.variable(np.zeros(10, np.float32), name="smaller")  # where a few bytes are left
    second = list(strategy.memory().values())[1]
    assert sorted(second) == ["one row", "small", "smaller"]
    assert second["one row"] == 0
