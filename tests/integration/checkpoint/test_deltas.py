"""Saves of what changed, on real clusters, between which servers die and shards move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

import psnb
from psnb._src.checkpoint.local_store import LocalCheckpoint
from psnb._src.checkpoint.manifest import Manifest
from psnb._src.strategy.strategy import core_of
from tests.checkpoint.saved import released
from tests.conftest import wait_until
from tests.integration.counting import kill, wait_until_copied

ROWS, DIM = 1000, 4
IDS = np.arange(ROWS)


class Trained:
    """A table and a variable, their saves, and what they were when they were saved."""

    def __init__(self, strategy: psnb.ParameterServerStrategy, folder: Path) -> None:
        self.strategy = strategy
        self.table = strategy.embedding("table", DIM, optimizer=psnb.Adam(0.1))
        self.w = strategy.variable(np.ones(10), name="w", optimizer=psnb.Adagrad(0.1))
        self.manager = psnb.CheckpointManager(
            psnb.ClusterCoordinator(strategy), folder, max_to_keep=2, full_every=9
        )
        self._chance, self._saved = np.random.default_rng(0), dict[Path, list[Any]]()
        self.push(IDS)

    def push(self, ids: Any) -> None:
        self.table.push(ids, np.ones((len(ids), DIM), np.float32))
        self.w.push(np.ones(10))

    def save(self) -> Manifest:
        """Train a little, save, and return what the manifest says."""
        self.push(self._chance.integers(0, ROWS, 20))
        path = self.manager.save()
        assert isinstance(path, Path)
        self._saved[path] = self.values()
        with released(LocalCheckpoint(path)) as stored:
            return stored.manifest()

    def values(self) -> list[Any]:
        return [self.table.lookup(IDS), self.w.read()]

    def check(self) -> None:
        """Restore what is kept: each is as it was, and trains on as it did."""
        for path in self.manager.checkpoints:
            assert isinstance(path, Path)
            self.push(IDS)
            self.manager.restore(path)
            for found, expected in zip(self.values(), self._saved[path], strict=True):
                np.testing.assert_array_equal(found, expected)
            saved = psnb.checkpoint.load(path)
            saved.verify()
            np.testing.assert_array_equal(saved["table"].lookup(IDS), self._saved[path][0])


def files_a_shard(said: Manifest) -> list[int]:
    return sorted(len(shard) for shard in said.entries["table"].shards)


def test_a_copy_that_took_over_writes_all_and_the_others_what_changed(
    whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        trained = Trained(strategy, tmp_path)
        trained.save()
        assert files_a_shard(trained.save()) == [2, 2]
        wait_until_copied(strategy)
        first = core_of(strategy).layout.placements[0].primary
        assert first is not None
        kill(whole, first.address)
        assert files_a_shard(trained.save()) == [1, 3]
        assert files_a_shard(trained.save()) == [2, 4]
        trained.check()


def test_what_was_recovered_is_written_again(whole: Client, tmp_path: Path) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        trained = Trained(strategy, tmp_path)
        trained.save()
        trained.save()
        lost = strategy.server_addresses[0]
        kill(whole, lost)

        def is_lost() -> bool:
            try:
                trained.values()
            except psnb.errors.ServerLostError:
                return True
            return False

        wait_until(is_lost, "the server is lost")
        strategy.recover()
        assert trained.save().depth == 0
        assert files_a_shard(trained.save()) == [2, 2]
        trained.check()


def test_a_shard_that_moved_is_written_as_a_whole(cluster: Client, tmp_path: Path) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        trained = Trained(strategy, tmp_path)
        trained.save()
        assert strategy.rebalance(drain=["server-1"]) == 1
        assert files_a_shard(trained.save()) == [1, 2]
        assert files_a_shard(trained.save()) == [2, 3]
        trained.check()
