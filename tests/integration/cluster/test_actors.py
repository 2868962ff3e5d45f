"""Parameter servers are Dask actors, which the scheduler keeps."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from distributed import Client, Scheduler, Worker

import psnb
from psnb import errors
from psnb._src.cluster.roles import identity
from psnb._src.dask_compat.reach import event_loop
from psnb._src.placement.registry import HOLDER
from psnb._src.strategy import servers as servers_module
from psnb._src.utils.threads import run_on_loop
from tests.conftest import wait_until
from tests.integration.helpers import address_of


def actors(client: Client) -> dict[str, tuple[bool, str, set[str]]]:
    """Return of each server's task whether it is an actor, its state, and who wants it."""

    def look(dask_scheduler: Scheduler) -> dict[str, Any]:
        return {
            str(key): (task.actor, task.state, {each.client_key for each in task.who_wants or ()})
            for key, task in dask_scheduler.tasks.items()
            if str(key).startswith("psnb-server-")
        }

    found: dict[str, Any] = client.run_on_scheduler(look)
    return found


def wait_until_kept(client: Client) -> None:
    """Wait until the scheduler alone wants the servers."""
    wait_until(
        lambda: all(wants == {HOLDER} for *_, wants in actors(client).values()),
        "the notebook has let them go",
    )


def served(client: Client) -> int:
    """Return how many servers the processes have, and check that each is Dask's actor."""

    def look(dask_worker: Worker) -> int:
        servers = set(dask_worker.plugins["psnb"]._servers._servers.values())
        for server in servers:
            assert dask_worker.state.actors[server.task].host is server.host
        return len(servers)

    return sum(client.run(look).values())


def test_servers_are_actors_that_the_scheduler_keeps_until_the_strategy_is_closed(
    cluster: Client,
) -> None:
    with psnb.ParameterServerStrategy(cluster, name="mine") as strategy:
        strategy.variable(np.zeros(2))
        wait_until_kept(cluster)
        assert [each[:2] for each in actors(cluster).values()] == [(True, "memory")] * 2
        assert served(cluster) == 2
    assert not actors(cluster)
    wait_until(lambda: served(cluster) == 0, "the servers have ended")


def test_servers_outlive_their_client_and_end_with_the_next_owner(cluster: Client) -> None:
    with Client(cluster.scheduler.address, security=cluster.security) as before:
        made = psnb.ParameterServerStrategy(before, name="mine")
        variable = made.variable(np.arange(3), "v")
        variable.assign_add(np.ones(3, int))
        keys = set(actors(cluster))
    made.close()
    assert set(actors(cluster)) == keys
    with psnb.attach(cluster, "mine").strategy as strategy:
        assert strategy.parameters["v"].read().tolist() == [1, 2, 3]  # type: ignore[union-attr]
        # Dask's keys stay, without a moment in which nobody wants them; the servers' own do not.
        assert set(actors(cluster)) == keys
        assert not keys & {server.key for server in strategy._core.servers.running}
    assert not actors(cluster)


def test_a_server_that_is_given_up_is_an_actor_no_longer(cluster: Client) -> None:
    names = [each["name"] for each in identity(cluster)["workers"].values()]
    drained = min(name for name in names if name.startswith("server"))
    with psnb.ParameterServerStrategy(cluster, shards=2) as strategy:
        v = strategy.variable(np.ones(4))
        strategy.rebalance(drain=[drained])
        wait_until(lambda: len(actors(cluster)) == 1, "the other has one")
        assert served(cluster) == 1
        assert v.read().tolist() == [1] * 4


def test_what_is_cancelled_in_dask_hands_over_first(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster, shards=2) as strategy:
        v = strategy.variable(np.ones(4))
        server = strategy._core.servers.running[0]

        def cancel(dask_scheduler: Scheduler) -> None:
            dask_scheduler.client_releases_keys(keys=[server.key], client=HOLDER)

        cluster.run_on_scheduler(cancel)
        # Another takes its place; that may be a new one in the same process.
        wait_until(lambda: server not in strategy._core.servers.running, "it is given up")
        assert v.read().tolist() == [1] * 4


def test_a_server_that_finds_no_thread_is_refused_in_time(
    cluster: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "_START_TIMEOUT", 0.5)
    end = f"{time.monotonic_ns()}"

    def fill(end: str) -> None:
        from distributed import Event

        Event(end).wait()

    workers = identity(cluster)["workers"].values()
    threads = sum(each["nthreads"] for each in workers)
    tasks = cluster.map(lambda _: fill(end), range(threads), pure=False)
    try:
        wait_until(
            lambda: sum(map(len, cluster.processing().values())) == threads, "all threads are busy"
        )
        with pytest.raises(errors.ClusterError, match="tasks have all of its threads"):
            psnb.ParameterServerStrategy(cluster)
    finally:
        from distributed import Event

        Event(end, client=cluster).set()
        cluster.gather(tasks)
    wait_until(lambda: not actors(cluster), "nothing is left of it")
    with psnb.ParameterServerStrategy(cluster) as strategy:
        assert strategy.variable(np.ones(1)).read() == [1]


def test_a_server_that_holds_nothing_can_be_retired(pair: Client) -> None:
    with psnb.ParameterServerStrategy(pair, num_servers=1) as strategy:
        v = strategy.variable(np.ones(1))
        (holding,) = strategy.server_addresses
        idle = address_of(pair, "server-0")
        if idle == holding:
            idle = address_of(pair, "server-1")
        run_on_loop(event_loop(pair), lambda: strategy._core.servers.start([idle]))
        wait_until_kept(pair)
        assert len(actors(pair)) == 2
        assert not pair.retire_workers([holding])
        assert set(pair.retire_workers([idle])) == {idle}
        assert v.read() == [1]


def test_a_strategy_starts_over_after_a_restart_of_dask(pair: Client) -> None:
    with psnb.ParameterServerStrategy(pair) as strategy:
        v = strategy.variable(np.ones(1))
        before = set(actors(pair))
        pair.restart()
        wait_until(lambda: not before & set(actors(pair)), "the servers are gone")
        strategy.recover(initialize=True)
        assert v.read() == [1]
        wait_until(
            lambda: set(actors(pair)) == {each.key for each in strategy._core.servers.running},
            "there are as many actors as servers",
        )
