"""Servers that die under a strategy with replicas: nothing is lost, training goes on."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import EventKind, errors
from psnb._src.checkpoint.manager import FolderManager
from psnb._src.client.handles import shards_of
from psnb.checkpoint import load
from tests.conftest import DEADLINE, wait_until
from tests.integration.counting import Counter, kill, wait_until_copied


def primary(strategy: psnb.ParameterServerStrategy, shard: int = 0) -> str:
    server = strategy._core.layout.placements[shard].primary
    assert server is not None
    return server.address


def test_no_commit_is_lost_with_a_server_and_training_goes_on(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        wait_until_copied(strategy)
        counter = Counter(strategy)
        counter.schedule(500)
        counter.wait_for(100)
        kill(whole, primary(strategy))
        counter.wait_for(100)
        counter.require_all()
        kinds = [event.kind for event in counter.coordinator.events()]
        assert kinds.index(EventKind.SERVER_LOST) < kinds.index(EventKind.SHARDS_TAKEN_OVER)


def test_a_copy_has_learned_at_the_rates_of_the_server_that_died(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        # Another rate each time that it is called, wherever that is.
        v = strategy.variable([0.0], optimizer=psnb.SGD(lambda step: os.urandom(1)[0] + 1))
        wait_until_copied(strategy)
        for _ in range(20):
            v.push([-1.0])
        before = v.read().tolist()
        [(shard, _)] = shards_of(v).tables
        kill(whole, primary(strategy, shard.number))
        assert v.read().tolist() == before


def test_a_copy_sums_bags_as_the_server_that_died(whole: Client) -> None:
    ids = np.random.default_rng(0).integers(0, 5_000, 4_000)
    bags = psnb.data.Ragged(ids, np.arange(0, 4_001, 40))
    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        e = strategy.embedding("e", 32, optimizer=psnb.Adagrad(0.1))
        wait_until_copied(strategy)
        for _ in range(2):
            e.push_bags(bags, None, e.lookup_bags(bags) + 1)
        before = e.lookup_bags(bags)
        kill(whole, strategy.server_addresses[0])
        np.testing.assert_array_equal(e.lookup_bags(bags), before)


def test_a_new_copy_is_filled_so_that_the_other_server_may_die_too(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        wait_until_copied(strategy)
        counter = Counter(strategy)
        counter.schedule(500)
        for _ in range(2):
            counter.wait_for(100)
            lost = primary(strategy)
            kill(whole, lost)
            wait_until(lambda lost=lost: primary(strategy) != lost, "a copy has taken over")
            wait_until_copied(strategy)
        counter.require_all()
        assert strategy.num_servers == 2


def test_what_the_notebook_and_other_threads_write_survives(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        wait_until_copied(strategy)
        counter = Counter(strategy)
        enough, begun = threading.Event(), threading.Event()

        def write() -> None:
            while not enough.is_set():
                counter.count_here()
                begun.set()

        thread = threading.Thread(target=write)
        thread.start()
        assert begun.wait(DEADLINE)
        lost = primary(strategy)
        kill(whole, lost)
        wait_until(lambda: primary(strategy) != lost, "a copy has taken over")
        for _ in range(20):
            counter.counted()
        enough.set()
        thread.join(DEADLINE)
        counter.require_all()


class Killing:
    """A strategy of which a server is killed when its first snapshots are taken."""

    def __init__(self, strategy: psnb.ParameterServerStrategy) -> None:
        self._core, self._client = strategy._core, strategy.client
        self._lost: str | None = primary(strategy)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def snapshots(self, since: Any = None) -> Any:
        taken = self._core.snapshots(since)
        if self._lost is not None:
            kill(self._client, self._lost)
            self._lost = None
        return taken


def test_a_checkpoint_of_a_server_that_dies_before_it_was_written_is_taken_from_the_copies(
    whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        for name in "ab":
            strategy.variable(np.arange(3.0), name=name)
        wait_until_copied(strategy)
        saved = load(FolderManager(Killing(strategy), tmp_path, 1).save())
        assert [saved[name].tolist() for name in "ab"] == 2 * [[0, 1, 2]]
        kinds = [event.kind for event in strategy.server_events()]
        assert EventKind.SERVER_LOST in kinds


def test_what_was_tuned_and_admitted_is_the_same_on_the_copy(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        wait_until_copied(strategy)
        v = strategy.variable(np.zeros(2), optimizer=psnb.Adam(0.5))
        e = strategy.embedding(
            "e", 2, optimizer=psnb.Adagrad(0.5), admission=psnb.CountFilter(2), initializer=1.0
        )
        assert v.optimizer is not None
        v.optimizer.learning_rate = 0.125
        e.lookup([1, 2, 3])
        e.lookup([1, 2])
        for _ in range(3):
            v.push(np.ones(2))
            e.push([1, 2], np.ones((2, 2), np.float32))
        before = v.read(), e.lookup([1, 2]), e.statistics().rows
        for shard in range(2):  # both servers, one after the other
            lost = primary(strategy, shard)
            kill(whole, lost)
            wait_until(lambda s=shard, a=lost: primary(strategy, s) != a, "a copy has taken over")
            wait_until_copied(strategy)
        after = v.read(), e.lookup([1, 2]), e.statistics().rows
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other)
        assert v.optimizer.learning_rate == 0.125
        assert (e.lookup([3]) == 1).all()  # its second occurrence: the first was not forgotten


def test_one_server_cannot_have_replicas() -> None:
    with (
        psnb.local_cluster(workers=1, servers=1, processes=False) as client,
        pytest.raises(errors.ClusterError, match="takes 2 servers, but there is 1"),
    ):
        psnb.ParameterServerStrategy(client, replicas=1)


@pytest.mark.parametrize("replicas", [2, -1, "one"])
def test_other_numbers_of_replicas_are_refused(cluster: Client, replicas: object) -> None:
    with pytest.raises(errors.ConfigurationError, match="replicas must be 0 or 1"):
        psnb.ParameterServerStrategy(cluster, replicas=replicas)  # type: ignore[arg-type]
