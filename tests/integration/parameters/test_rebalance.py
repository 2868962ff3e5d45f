"""Servers that are added and drained while closures run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import EventKind, errors
from psnb._src.client.server_client import process_client
from psnb._src.server.tables.saved_files import SealedPart
from psnb._src.strategy.strategy import core_of
from tests.conftest import DEADLINE, wait_until
from tests.integration.counting import Counter, wait_until_copied
from tests.integration.helpers import address_of


class Growing:
    """A local cluster to which servers can be added."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def add_server(self, name: str) -> None:
        """Start one more server and wait until it is there."""
        cluster = self.client.cluster
        cluster.worker_spec[name] = cluster.worker_spec["server-0"]
        count = len(cluster.worker_spec)
        cluster.scale(count)
        self.client.wait_for_workers(count, DEADLINE)


@pytest.fixture
def growing() -> Iterator[Growing]:
    """Two workers and a server in this process."""
    with psnb.local_cluster(workers=2, servers=1, processes=False) as client:
        yield Growing(client)


def shards(strategy: psnb.ParameterServerStrategy) -> dict[str, int]:
    """Return how many shards each server is the primary of."""
    found: dict[str, int] = {}
    for place in strategy._core.layout.placements:
        assert place.primary is not None
        found[place.primary.address] = found.get(place.primary.address, 0) + 1
    return found


def test_servers_are_added_and_drained_while_closures_run(growing: Growing) -> None:
    with psnb.ParameterServerStrategy(growing.client, shards=4) as strategy:
        counter = Counter(strategy)
        counter.wait_for(100)
        growing.add_server("server-1")
        assert strategy.rebalance() == 2
        assert set(shards(strategy).values()) == {2}
        assert strategy.num_servers == 2
        counter.wait_for(100)
        assert strategy.rebalance(drain=["server-0"]) == 2
        assert shards(strategy) == {address_of(growing.client, "server-1"): 4}
        assert strategy.server_addresses == (address_of(growing.client, "server-1"),)
        counter.wait_for(100)
        growing.client.retire_workers([address_of(growing.client, "server-0")], close_workers=True)
        counter.schedule(100)
        counter.require_all()
        kinds = [event.kind for event in counter.coordinator.events()]
        assert kinds.count(EventKind.SHARDS_MOVED) == 2
        assert EventKind.SERVER_JOINED in kinds


def test_a_server_is_not_retired_while_it_holds_parameters(growing: Growing) -> None:
    growing.add_server("server-1")
    first, second = (address_of(growing.client, name) for name in ("server-0", "server-1"))
    with psnb.ParameterServerStrategy(growing.client, replicas=1) as strategy:
        v = strategy.variable(np.arange(3))
        for by in ({"workers": [first, second]}, {"names": ["server-0", "server-1"]}):
            assert growing.client.retire_workers(**by) == {}
            assert v.read().tolist() == [0, 1, 2]
    with psnb.ParameterServerStrategy(growing.client) as strategy:
        v = strategy.variable(np.arange(3))
        strategy.rebalance(drain=["server-0"])
        assert list(growing.client.retire_workers([first, second])) == [first]
        assert v.read().tolist() == [0, 1, 2]


def known_version(strategy: str) -> int:
    """Return the version of the layout that a worker knows, without asking for it."""
    layout = process_client().layouts.known(strategy)  # type: ignore[attr-defined]
    return -1 if layout is None else layout.version


def test_a_closure_that_begins_after_a_move_knows_of_it() -> None:
    # Else it might read from a server that was taken for lost, and lives.
    with (
        psnb.local_cluster(workers=1, servers=1) as client,  # what a process knows is its own
        psnb.ParameterServerStrategy(client, shards=2) as strategy,
    ):
        coordinator, name = psnb.ClusterCoordinator(strategy), core_of(strategy).name
        assert coordinator.schedule(known_version, args=(name,)).fetch(DEADLINE) > 0
        Growing(client).add_server("server-1")
        assert strategy.rebalance() == 1
        moved = strategy._core.layout.version
        assert coordinator.schedule(known_version, args=(name,)).fetch(DEADLINE) >= moved


def test_with_copies_servers_come_and_go_likewise(growing: Growing) -> None:
    growing.add_server("server-1")
    with psnb.ParameterServerStrategy(growing.client, replicas=1, shards=6) as strategy:
        counter = Counter(strategy)
        counter.wait_for(100)
        growing.add_server("server-2")
        strategy.rebalance()
        assert set(shards(strategy).values()) == {2}
        counter.wait_for(100)
        strategy.rebalance(drain=["server-0"])
        assert set(shards(strategy).values()) == {3}
        wait_until_copied(strategy)
        gone = address_of(growing.client, "server-0")
        assert all(server.address != gone for server in strategy._core.layout.servers)
        counter.require_all()


def test_a_server_is_drained_onto_one_that_has_not_joined_yet(growing: Growing) -> None:
    with psnb.ParameterServerStrategy(growing.client, shards=2) as strategy:
        growing.add_server("server-1")
        assert strategy.rebalance(drain=["server-0"]) == 2
        assert strategy.server_addresses == (address_of(growing.client, "server-1"),)


def test_a_drained_server_first_writes_the_checkpoint_that_it_has_begun(
    growing: Growing, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(growing.client, shards=2) as strategy:
        strategy.variable(np.arange(3.0), name="v")
        growing.add_server("server-1")
        drained, other = (address_of(growing.client, f"server-{number}") for number in "01")
        begun, go_on = threading.Event(), threading.Event()

        def progress(share: float) -> None:
            begun.set()
            assert go_on.wait(DEADLINE)

        taken = strategy._core.snapshots()
        with ThreadPoolExecutor(2) as pool:
            writing = pool.submit(taken.write, str(tmp_path), lambda server, kind: kind, progress)
            assert begun.wait(DEADLINE)
            moving = pool.submit(strategy.rebalance, [drained])
            wait_until(lambda: shards(strategy) == {other: 2}, "the shards have moved")
            try:
                assert not moving.done()
                assert drained in strategy.server_addresses
            finally:
                go_on.set()
            (written,) = writing.result(DEADLINE).values()
            part = written["v", 0]
            moving.result(DEADLINE)
        assert strategy.server_addresses == (other,)
        assert SealedPart(tmp_path / part.file, part).read("values").tolist() == [0, 1, 2]


def test_optimizers_state_moves_with_its_shard(growing: Growing) -> None:
    with psnb.ParameterServerStrategy(growing.client, shards=2) as strategy:
        here = psnb.Adam(0.5)
        v = strategy.variable(np.zeros(3), optimizer=here)
        e = strategy.embedding("e", 2, optimizer=here, initializer=0.0)
        w = strategy.variable(np.zeros(3), optimizer=here)  # on the other shard
        rng = np.random.default_rng(0)
        for step in range(6):
            if step == 3:
                growing.add_server("server-1")
                assert strategy.rebalance() == 1
            gradient = rng.standard_normal(3)
            psnb.push(
                {v: gradient, w: gradient, e: ([1, 2, 3], np.full((3, 2), gradient[0], "f4"))}
            )
        np.testing.assert_array_equal(v.read(), w.read())
        alone = strategy.variable(np.zeros(3), optimizer=here)
        rng = np.random.default_rng(0)
        for _ in range(6):
            alone.push(rng.standard_normal(3))
        np.testing.assert_array_equal(v.read(), alone.read())


def test_a_balanced_strategy_moves_nothing(growing: Growing) -> None:
    with psnb.ParameterServerStrategy(growing.client) as strategy:
        assert strategy.rebalance() == 0
        growing.add_server("server-1")
        assert strategy.rebalance() == 0  # one shard cannot be divided


def test_drains_that_cannot_be_are_refused(growing: Growing) -> None:
    with psnb.ParameterServerStrategy(growing.client) as strategy:
        with pytest.raises(errors.ConfigurationError, match="too few servers"):
            strategy.rebalance(drain=["server-0"])
        with pytest.raises(errors.ConfigurationError, match=r"'worker-0', 'x'.* are not servers"):
            strategy.rebalance(drain=["x", "worker-0"])
        assert strategy.num_servers == 1


@pytest.mark.parametrize("shards", [0, 1, "many"])
def test_fewer_shards_than_servers_are_refused(cluster: Client, shards: object) -> None:
    with pytest.raises(errors.ConfigurationError, match="shards must be 2 or more"):
        psnb.ParameterServerStrategy(cluster, shards=shards)  # type: ignore[arg-type]
