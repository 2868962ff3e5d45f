"""Embeddings of half width on real clusters: modes, kills and checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.client.handles import shards_of
from tests.conftest import DEADLINE
from tests.integration.counting import kill, wait_until_copied

IDS = np.arange(500)


def table(strategy: psnb.ParameterServerStrategy) -> psnb.Embedding:
    return strategy.embedding(
        "e", 8, dtype="bfloat16", slot_dtype="bfloat16", optimizer=psnb.RowWiseAdagrad(0.1)
    )


def state(made: psnb.Embedding) -> dict[int, bytes]:
    """Return the bits of each row, and of its optimizer's state."""
    return {
        int(id_): row.tobytes() + slot.tobytes()
        for each in shards_of(made).shard_states()
        for id_, row, slot in zip(
            each["ids"], each["values"], each["slot.accumulator"], strict=True
        )
    }


@pytest.mark.parametrize("mode", [psnb.Async(), psnb.Sync(2), psnb.Geo(2)], ids=repr)
def test_closures_train_it_in_each_mode(cluster: Client, mode: psnb.Async) -> None:
    with psnb.ParameterServerStrategy(cluster, mode=mode) as strategy:
        made, coordinator = table(strategy), psnb.ClusterCoordinator(strategy)
        begun = made.lookup(IDS)

        def step() -> None:
            made.push(IDS, 2 * (made.lookup(IDS) - 1))

        for _ in range(60):
            coordinator.schedule(step)
        coordinator.join(DEADLINE)
        assert ((made.lookup(IDS) - 1) ** 2).mean() < 0.5 * ((begun - 1) ** 2).mean()


def test_a_replica_has_the_same_bits_and_a_checkpoint_goes_on_with_them(
    whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        made = table(strategy)
        wait_until_copied(strategy)
        for step in range(20):
            made.push(IDS, np.random.default_rng(step).normal(size=(500, 8)).astype(np.float32))
        before = state(made)
        server = strategy._core.layout.placements[0].primary
        assert server is not None
        kill(whole, server.address)
        assert state(made) == before
        coordinator = psnb.ClusterCoordinator(strategy)
        path = psnb.CheckpointManager(coordinator, tmp_path).save()
        made.push(IDS, np.ones((500, 8), np.float32))
        assert state(made) != before
        psnb.CheckpointManager(coordinator, tmp_path).restore(path)
        assert state(made) == before
        saved = psnb.checkpoint.load(path)["e"]
        np.testing.assert_array_equal(saved.lookup(IDS), made.lookup(IDS, training=False))
    with psnb.resume(tmp_path, whole) as coordinator:
        assert state(coordinator.strategy.parameters["e"]) == before
