"""Replicas of tables of which rows leave hold what the primary holds, whenever they were filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb._src.server.operations import CreateSparse
from psnb._src.server.optimizers import Adagrad
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import Always, CountFilter
from psnb._src.server.tables.eviction import leaving
from psnb._src.server.tables.eviction.policy import Eviction
from psnb._src.server.tables.initializers import Uniform
from psnb._src.server.tables.operations import on_table
from tests.server.pair import SYNCED, B, Pair, same

BOUND = 40
RANDOM = np.random.default_rng(0)


def no_rule(usage: Any) -> np.ndarray:
    """Give rows other scores each time, as a function on two servers may."""
    return RANDOM.random(usage.age.size)


def creation(seed: int) -> CreateSparse:
    how = Eviction(
        BOUND, ["lru", "lfu", no_rule][seed % 3], (None, 30)[seed % 2], (None, 4)[seed % 2]
    )
    admission = CountFilter(2) if seed % 4 == 3 else Always()
    return CreateSparse(
        *("l", 2, None, 0, 1, "float32", Uniform(), 7, Adagrad(0.1)),
        admission=admission,
        eviction=how,
    )


class Run:
    """A pair of hosts, and what is done at random to their table."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.pair = Pair()
        self.pair.do(creation(seed))

    def ids(self) -> np.ndarray:
        size = self.random.integers(0, 9)
        return self.random.choice(120, size, replace=False).astype(np.uint64)

    def step(self) -> None:
        ids = self.ids()
        gradients = self.random.normal(size=(ids.size, 2)).astype(np.float32)
        match self.random.integers(6):
            case 0:
                self.pair.send("a", on_table("l", ops.LookUpRows(ids)))
            case 1:
                self.pair.hosts["a"].tick()
            case 2:
                preview = ops.Preview([ops.PushRows(ids, gradients)], ops.LookUpRows(self.ids()))
                self.pair.send("a", on_table("l", preview))
            case 3:
                self.pair.send("a", on_table("l", ops.PutRows(ids, gradients)))
            case _:
                self.pair.commit(on_table("l", ops.PushRows(ids, gradients)))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def check(self) -> None:
        shards = [self.pair.shard(host) for host in "ab"]
        assert same(*shards)
        one, other = (shard.table("l").beside() for shard in shards)
        assert one["queue"].tolist() == other["queue"].tolist()
        assert one["counts"].tolist() == other["counts"].tolist()
        assert shards[0].table("l").extent <= BOUND


@pytest.mark.parametrize("seed", range(6))
def test_a_replica_that_was_filled_meanwhile_lets_the_same_rows_leave(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "_LEAST", 5)
    monkeypatch.setattr(ops, "SEGMENT", 400)  # a few rows at a time
    monkeypatch.setattr("psnb._src.server.transfer.LAST", 200)
    run = Run(seed)
    run.steps(30)
    run.pair.tell("a", syncing=B)
    while run.pair.copied() is not SYNCED:
        run.steps(2)
        for wire in run.pair.wires:
            if wire.waiting:
                wire.deliver()
    run.pair.flow()
    run.check()
    run.pair.tell("a", "b", synced=(B,), syncing=None)
    for _ in range(4):
        run.steps(10)
        run.pair.flow()
        run.check()
    assert run.pair.shard("b").table("l").describe_rows()["evicted"]  # type: ignore[attr-defined]
