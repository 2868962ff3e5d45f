"""Workers that exit, are restarted or leave at odd moments: their closures, datasets and values."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import psnb
from psnb import EventKind, errors
from psnb._src.cluster.roles import identity
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import (
    Steps,
    address_of,
    kill_myself,
    kinds_of,
    pid_of,
    state_of,
    wait_for_file,
    wait_until_ready,
    worker_name,
)

NAMES = ("worker-0", "worker-1")

AT_ONCE = 20.0
"""Seconds that are far less than any time limit that a hanging worker would run into."""


@pytest.fixture(scope="module")
def started() -> Iterator[Client]:
    """Two workers, which nannies start again, and a server."""
    with psnb.local_cluster(workers=2, servers=1) as client:
        yield client


@pytest.fixture
def client(started: Client) -> Client:
    """The cluster, once nobody is missing."""

    def whole() -> bool:
        started.cluster.scale(3)  # see _restart
        workers = identity(started)["workers"].values()
        return sorted(str(worker["name"]) for worker in workers) == ["server-0", *NAMES]

    wait_until(whole, "the cluster is whole", 2 * DEADLINE)
    return started


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait."""
    with ThreadPoolExecutor(thread_name_prefix="caller") as threads:
        yield threads


def _kill(client: Client, name: str) -> None:
    os.kill(pid_of(client, name), signal.SIGKILL)


def _restart(client: Client, name: str) -> None:
    """Let its nanny restart a worker, and wait for the new one.

    On a busy machine Dask gives up now and then a worker that is being restarted, without psnb too;
    then the cluster starts another in its place when it is scaled.
    """
    old = address_of(client, name)
    with suppress(TimeoutError):
        client.restart_workers([old], timeout=10)

    def is_back() -> bool:
        client.cluster.scale(3)
        workers = identity(client)["workers"].items()
        return any(str(w["name"]) == name and address != old for address, w in workers)

    wait_until(is_back, f"{name} is back", 2 * DEADLINE)


# First: later, closures of other tests have imported what they like.
def test_a_worker_process_imports_nothing_of_the_notebook(client: Client) -> None:
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.schedule(lambda: psnb.report(loss=1)).fetch(DEADLINE)

    def notebook_modules() -> list[str]:
        heavy = ("ipywidgets", "anywidget", "jupyterlab", "matplotlib", "IPython")
        return [name for name in heavy if name in sys.modules]

    assert not any(client.run(notebook_modules).values())


def test_lambdas_local_functions_and_builtins_run_in_other_processes(client: Client) -> None:
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)

        def pid() -> int:
            return os.getpid()

        values = coordinator.fetch(
            {"lambda": coordinator.schedule(lambda x, y=1: x + y, (1,), {"y": 5}),
             "local": coordinator.schedule(pid),
             "builtin": coordinator.schedule(max, ([3, 9],)),
             "plain": 4}
        )  # fmt: skip
        assert values.pop("local") in {pid_of(client, name) for name in NAMES}
        assert values == {"lambda": 6, "builtin": 9, "plain": 4}


def test_an_idle_worker_that_is_killed_makes_its_values_again_when_it_is_back(
    client: Client,
) -> None:
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        pids = coordinator.create_per_worker_resource(os.getpid)
        wait_until_ready(coordinator, *NAMES)
        before = pids.fetch(DEADLINE)
        _kill(client, "worker-0")
        wait_until(
            lambda: kinds_of(coordinator, "worker-0").count(EventKind.WORKER_JOINED) == 2,
            "it is back",
        )
        after = pids.fetch(DEADLINE)
        assert len(set(before) - set(after)) == len(set(after) - set(before)) == 1
        statistics = coordinator.statistics()
        assert (statistics.retried, statistics.workers_lost) == (0, 1)  # though it is back


def test_a_worker_that_is_killed_while_it_makes_a_dataset_makes_it_again(
    client: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_until_ready(coordinator, *NAMES)

        def dataset() -> list[int]:
            # Each worker kills itself the first time: the file is its memory.
            try:
                (tmp_path / worker_name()).touch(exist_ok=False)
            except FileExistsError:
                return [worker_name()] * 5
            kill_myself()
            raise AssertionError

        iterator = iter(coordinator.create_per_worker_dataset(dataset))
        remotes = [coordinator.schedule(next, (iterator,), worker=NAMES[i % 2]) for i in range(10)]
        assert coordinator.fetch(remotes) == list(NAMES) * 5
        coordinator.join(DEADLINE)
        for name in NAMES:
            assert kinds_of(coordinator, name).count(EventKind.WORKER_LOST) == 1


def test_a_worker_that_is_restarted_while_it_makes_a_dataset_finishes_it(
    client: Client, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_until_ready(coordinator, *NAMES)
        begun, go_on = tmp_path / "begun", tmp_path / "go on"

        def dataset() -> list[int]:
            with begun.open("a") as file:
                file.write(f"{worker_name()}\n")
            wait_for_file(go_on)
            return [os.getpid()] * 5

        iterator = iter(coordinator.create_per_worker_dataset(dataset))
        wait_until(
            lambda: begun.exists() and len(begun.read_text().split()) == 2, "both make theirs"
        )
        pid = pid_of(client, "worker-0")
        first = coordinator.schedule(next, (iterator,), worker="worker-0")
        wait_until(lambda: first.status is psnb.ClosureStatus.RUNNING, "it waits for the dataset")
        restarting = threads.submit(_restart, client, "worker-0")
        wait_until(lambda: state_of(coordinator, "worker-0") == "draining", "it leaves")
        go_on.touch()
        assert first.fetch(DEADLINE) == pid
        restarting.result(3 * DEADLINE)
        second = coordinator.schedule(next, (iterator,), worker="worker-0")
        assert second.fetch(DEADLINE) != pid
        assert begun.read_text().split().count("worker-0") == 2
        assert coordinator.statistics().retried == 0


def test_a_worker_that_is_restarted_by_its_nanny_finishes_its_closure_and_comes_back(
    client: Client, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        value = coordinator.create_per_worker_resource(os.getpid)
        steps = Steps(tmp_path)
        remote = coordinator.schedule(steps)
        (name,) = steps.begun()
        pid = pid_of(client, name)
        restarting = threads.submit(_restart, client, name)
        wait_until(lambda: state_of(coordinator, name) == "draining", "it leaves")
        steps.end()
        assert remote.fetch(DEADLINE) == name
        restarting.result(3 * DEADLINE)
        new = coordinator.schedule(lambda value: (os.getpid(), value), (value,), worker=name)
        found, made = new.fetch(DEADLINE)
        assert found == made != pid
        assert coordinator.statistics().retried == 0


class Deadly:
    """A per-worker value that kills the worker which sends it."""

    def __reduce__(self) -> Any:
        kill_myself()
        raise AssertionError


def test_a_worker_that_is_killed_while_its_value_is_read_is_an_error_of_that_read(
    client: Client,
) -> None:
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_until_ready(coordinator, *NAMES)
        value = coordinator.create_per_worker_resource(
            lambda: Deadly() if psnb.worker_index() == 0 else 3
        )
        with pytest.raises(errors.WorkerLostError):
            value.fetch(DEADLINE)
        coordinator.join(DEADLINE)
        assert coordinator.schedule(lambda: 3).fetch(DEADLINE) == 3


@pytest.fixture
def one_process() -> Iterator[Client]:
    """A server and two workers that nobody starts again, in this process."""
    with psnb.local_cluster(workers=2, servers=1, processes=False) as client:
        yield client


def _retire(client: Client, name: str) -> None:
    client.retire_workers([address_of(client, name)])


def test_a_worker_that_is_retired_before_its_value_is_read_is_left_out(
    one_process: Client, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    with psnb.ParameterServerStrategy(one_process) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_until_ready(coordinator, *NAMES)
        value = coordinator.create_per_worker_resource(worker_name)
        steps = Steps(tmp_path)
        first, second = NAMES
        busy = coordinator.schedule(
            steps, worker=lambda w: w.name == first or steps.runs() == [first]
        )
        steps.begun()
        reading = threads.submit(value.fetch, DEADLINE)
        wait_until(lambda: coordinator.statistics().queued == 1, "it waits for a free thread")
        _retire(one_process, first)
        wait_until(lambda: state_of(coordinator, first) != "ready", "it leaves")
        steps.end()
        assert (reading.result(DEADLINE), busy.fetch(DEADLINE)) == ([second], first)


def test_a_worker_that_is_retired_during_its_start_delay_leaves_at_once(
    one_process: Client,
) -> None:
    with psnb.ParameterServerStrategy(one_process) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy, start_delay=3600.0)
        wait_until_ready(coordinator, *NAMES)
        late = next(w.name for w in coordinator.statistics().workers if w.index == 1)
        begin = time.monotonic()
        _retire(one_process, late)
        wait_until(
            lambda: (
                kinds_of(coordinator, late)
                == [
                    EventKind.WORKER_JOINED,
                    EventKind.WORKER_RETIRING,
                    EventKind.WORKER_RETIRED,
                ]
            ),
            "it has left",
        )
        workers = identity(one_process)["workers"]
        assert late not in {worker["name"] for worker in workers.values()}
        assert time.monotonic() - begin < AT_ONCE
        assert coordinator.schedule(worker_name).fetch(DEADLINE) != late
