"""Dask's adaptive scaling, which sees closures: it takes neither servers nor busy workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Adaptive, Client, LocalCluster

import psnb
from psnb import EventKind
from psnb._src.cluster.resizing import cannot_add
from psnb._src.cluster.roles import identity
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import Steps, wait_for_file

QUICK = {"interval": "100ms", "wait_count": 2, "target_duration": "1s"}


@pytest.fixture
def small() -> Iterator[Client]:
    """A local cluster of one worker and one server for one test alone."""
    with psnb.local_cluster(workers=1, servers=1, processes=False) as client:
        yield client


@pytest.fixture
def make_steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Steps]]:
    """Make closures that run until they are told to end, at the latest with the test."""
    made: list[Steps] = []

    def make() -> Steps:
        made.append(Steps(tmp_path_factory.mktemp("steps")))
        return made[-1]

    yield make
    for steps in made:
        steps.end()


@pytest.fixture
def steps(make_steps: Callable[[], Steps]) -> Steps:
    """A closure that runs until it is told to end, at the latest with the test."""
    return make_steps()


def test_a_cluster_that_scales_itself_is_not_asked_for_workers(plain: Client) -> None:
    assert cannot_add(plain) == ""
    adaptive = plain.cluster.adapt(minimum=2, maximum=2)
    assert "scales itself" in cannot_add(plain)
    adaptive.stop()


class Counting(Adaptive):
    """Counts how often it has looked at the cluster."""

    looks = 0

    async def adapt(self) -> None:
        await super().adapt()
        self.looks += 1


def _wait_for_looks(adaptive: Counting, count: int) -> None:
    end = adaptive.looks + count
    wait_until(lambda: adaptive.looks >= end, f"adaptive scaling looks {count} times")


def _retiring(coordinator: psnb.ClusterCoordinator) -> set[str]:
    return {e.worker for e in coordinator.events() if e.kind is EventKind.WORKER_RETIRING}


def _closable(client: Client) -> set[str]:
    """Ask which workers Dask would take away, if it were to take all."""
    return set(client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.workers_to_close(n=9)))


def _target(client: Client, target_duration: float) -> int:
    """Ask the scheduler as Dask's Adaptive does."""

    async def ask() -> Any:
        return await client.scheduler.adaptive_target(target_duration=target_duration)

    return client.sync(ask)


def _targets(dask_scheduler: Any, **options: float) -> tuple[int, int]:
    """Return the target, and Dask's own, which changes while tasks run, at the same moment."""
    own = type(dask_scheduler).adaptive_target
    return dask_scheduler.adaptive_target(**options), own(dask_scheduler, **options)


def _scale_up_and_down(client: Client, steps: Steps) -> None:
    """Check that slow closures fill three workers, of whom one stays when they have ended."""
    with (
        psnb.ParameterServerStrategy(client, num_servers=1) as strategy,
        psnb.ClusterCoordinator(strategy) as coordinator,
    ):
        v = strategy.variable(np.arange(3))
        remotes = coordinator.map(lambda _: steps(), range(12))
        adaptive = client.cluster.adapt(Adaptive=Counting, minimum=2, maximum=4, **QUICK)
        wait_until(lambda: len(set(steps.runs())) == 3, "closures run on three workers")
        _wait_for_looks(adaptive, 3)
        assert len(client.cluster.plan) == 4
        assert not _retiring(coordinator)
        steps.end()
        assert set(coordinator.fetch(remotes)) == set(steps.runs())
        wait_until(lambda: len(client.cluster.plan) == 2, "the idle workers leave")
        _wait_for_looks(adaptive, 3)
        assert len(client.cluster.plan) == 2
        assert set(strategy.server_addresses) <= set(identity(client)["workers"])
        assert coordinator.statistics().retried == 0
        np.testing.assert_array_equal(coordinator.schedule(v.read).fetch(DEADLINE), np.arange(3))
        adaptive.stop()


def test_closures_scale_a_cluster_up_and_their_end_scales_it_down(steps: Steps) -> None:
    with psnb.local_cluster(workers=1, servers=1) as client:
        _scale_up_and_down(client, steps)


@pytest.mark.second_tier("a second kind of cluster: the test above has a local one")
def test_closures_scale_a_cluster_that_psnb_did_not_make(steps: Steps) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        _scale_up_and_down(client, steps)


def test_a_minimum_of_nothing_takes_neither_a_server_nor_a_worker_in_the_middle_of_a_closure(
    steps: Steps,
) -> None:
    with (
        psnb.local_cluster(workers=2, servers=1, processes=False) as client,
        psnb.ParameterServerStrategy(client) as strategy,
        psnb.ClusterCoordinator(strategy) as coordinator,
    ):
        v = strategy.variable(np.arange(3))
        remote = coordinator.schedule(steps)
        wait_until(lambda: len(steps.runs()) == 1, "it runs")
        wait_until(lambda: len(_closable(client)) == 1, "the scheduler knows where")
        adaptive = client.cluster.adapt(Adaptive=Counting, minimum=0, maximum=3, **QUICK)
        wait_until(lambda: strategy.num_workers == 1, "the idle worker has left")
        _wait_for_looks(adaptive, 5)
        assert strategy.worker_names() == set(steps.runs())
        assert not _retiring(coordinator) & set(steps.runs())
        steps.end()
        assert [remote.fetch(DEADLINE)] == steps.runs()
        wait_until(lambda: strategy.num_workers == 0, "the last worker has left")
        _wait_for_looks(adaptive, 3)
        np.testing.assert_array_equal(v.read(), np.arange(3))
        # From nothing it comes back.
        np.testing.assert_array_equal(coordinator.schedule(v.read).fetch(DEADLINE), np.arange(3))
        adaptive.stop()


def test_a_server_that_is_just_starting_again_is_not_dispensable(small: Client) -> None:
    # Adaptive scaling takes what it asked for and does not see yet for the cheapest to give up.
    with psnb.ParameterServerStrategy(small) as strategy:
        v = strategy.variable(np.arange(3))
        small.sync(small.cluster.scale_down, ["server-0", "worker-0"])
        assert small.cluster.plan == {"server-0"}
        np.testing.assert_array_equal(v.read(), np.arange(3))


def test_two_notebooks_hold_the_workers_that_run_their_closures(
    cluster: Client, strategy: psnb.ParameterServerStrategy, make_steps: Callable[[], Steps]
) -> None:
    idle, first, second = _closable(cluster), make_steps(), make_steps()
    mine = psnb.ClusterCoordinator(strategy)
    with (
        Client(cluster.scheduler.address) as other,
        psnb.ParameterServerStrategy(other) as others_strategy,
    ):
        others = psnb.ClusterCoordinator(others_strategy)
        kept = mine.schedule(first, worker="worker-0")
        others.schedule(second, worker="worker-1")
        wait_until(lambda: not _closable(cluster), "both workers are held")
        assert _target(cluster, 5) == 4
        (holder,) = [w.address for w in mine.statistics().workers if w.in_flight]
        # What the other notebook sent runs to its end, but nobody waits for it.
        others.close()
        assert _closable(cluster) == idle - {holder}
        assert _target(cluster, 5) == 3
    first.end()
    kept.fetch(DEADLINE)
    wait_until(lambda: _closable(cluster) == idle, "none is held")


def test_the_target_counts_closures_by_the_time_they_need(
    cluster: Client, coordinator: psnb.ClusterCoordinator, steps: Steps
) -> None:
    servers = coordinator.strategy.num_servers
    remotes = coordinator.map(lambda _: steps(), range(20))
    wait_until(lambda: len(steps.runs()) == 2, "two run")
    wait_until(lambda: _target(cluster, 0.01) == servers + 20, "one each, if they must be quick")
    wait_until(lambda: _target(cluster, 1000) == servers + 2, "no fewer than hold closures")
    steps.end()
    coordinator.fetch(remotes)
    wait_until(lambda: _target(cluster, 0.01) == servers, "nothing is to be done any more")


def test_the_target_is_the_larger_of_what_tasks_and_closures_need(
    cluster: Client, coordinator: psnb.ClusterCoordinator, steps: Steps, tmp_path: Path
) -> None:
    servers, end = coordinator.strategy.num_servers, tmp_path / "end"
    tasks = cluster.map(wait_for_file, [end] * 30, pure=False)
    wait_until(lambda: _target(cluster, 0.5) >= servers + 20, "tasks need more than closures")
    remotes = coordinator.map(lambda _: steps(), range(12))
    wait_until(lambda: not _closable(cluster), "the scheduler knows where closures run")
    combined, own = cluster.run_on_scheduler(_targets, target_duration=0.5)
    assert combined == max(own, servers + 12)  # Dask may expect less of the tasks by now
    end.touch()
    cluster.gather(tasks)
    wait_until(lambda: _target(cluster, 0.01) == servers + 12, "closures alone")
    wait_until(lambda: not _closable(cluster), "those that run closures stay")
    steps.end()
    coordinator.fetch(remotes)


def test_closures_keep_a_scheduler_from_ending_for_idleness(
    cluster: Client, coordinator: psnb.ClusterCoordinator, steps: Steps
) -> None:
    def make_idle_for_long(dask_scheduler: Any) -> None:
        dask_scheduler.check_idle()  # takes note of tasks that there were
        dask_scheduler.idle_since = 3600.0

    def idle_since(dask_scheduler: Any) -> float | None:
        return dask_scheduler.idle_since

    remote = coordinator.schedule(steps)
    wait_until(lambda: len(steps.runs()) == 1, "it runs")
    cluster.run_on_scheduler(make_idle_for_long)
    wait_until(lambda: cluster.run_on_scheduler(idle_since) != 3600.0, "it is not idle")
    steps.end()
    remote.fetch(DEADLINE)


def test_dask_tasks_scale_as_they_did(cluster: Client, strategy: Any) -> None:
    cluster.submit(sum, [1, 2]).result()
    combined, own = cluster.run_on_scheduler(_targets)
    assert combined == own
