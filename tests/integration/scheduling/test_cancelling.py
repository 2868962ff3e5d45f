"""One closure that is cancelled on a real cluster."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psnb
from psnb import ClosureStatus, errors
from psnb._src.coordinator.coordinator import coordinator_core
from psnb._src.coordinator.scheduling.doubts import Doubt
from psnb._src.coordinator.workers.connection import WorkerConnection
from psnb._src.protocol.messages import ClosureResults, ToNotebook
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import wait_for_file


def wait_for_cancellation(began: Path) -> None:
    began.touch()
    end = time.monotonic() + DEADLINE
    while not psnb.worker_context().cancelled and time.monotonic() < end:
        time.sleep(0.01)


def test_a_running_closure_writes_nothing_and_its_thread_is_free_again(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    tmp_path: Path,
) -> None:
    v = strategy.variable(np.zeros(3), name="cancelled")
    began = tmp_path / "began"

    def step() -> str:
        v.assign_add(np.ones(3))
        wait_for_cancellation(began)
        return "done"

    remote = coordinator.schedule(step, worker=0)
    wait_for_file(began)
    assert remote.cancel()
    assert remote.status is ClosureStatus.CANCELLED
    assert not remote.cancel()
    with pytest.raises(errors.ClosureCancelledError):
        remote.fetch()
    later = [coordinator.schedule(lambda: 1, worker=0) for _ in range(10)]
    assert coordinator.fetch(later) == [1] * 10
    coordinator.join(DEADLINE)
    assert v.read().tolist() == [0.0] * 3


def test_one_that_stops_early_is_cancelled_whatever_is_known_first(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the worker says of it comes first, as the servers are asked when it has.
    core = coordinator_core(coordinator)
    doubts, heard = list[Doubt](), WorkerConnection._take_in
    resolve = core.resolver.resolve
    monkeypatch.setattr(core.resolver, "resolve", doubts.append)

    def take_in(connection: WorkerConnection, message: ToNotebook) -> None:
        heard(connection, message)
        while doubts and isinstance(message, ClosureResults):
            resolve(doubts.pop())

    monkeypatch.setattr(WorkerConnection, "_take_in", take_in)
    remote = coordinator.schedule(wait_for_cancellation, (tmp_path / "began",))
    wait_for_file(tmp_path / "began")
    assert remote.cancel()
    assert remote.status is ClosureStatus.CANCELLED
    coordinator.join(DEADLINE)


def test_one_that_cannot_be_stopped_lets_join_return(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    began, go = tmp_path / "began", tmp_path / "go"

    def stubborn() -> None:
        began.touch()
        wait_for_file(go)

    remote = coordinator.schedule(stubborn)
    wait_for_file(began)
    assert remote.cancel()
    coordinator.join(DEADLINE)
    go.touch()


def test_closures_that_are_cancelled_at_any_moment_count_once_or_not_at_all(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    one = strategy.variable(np.zeros(400, np.int64), name="cancelled one")
    other = strategy.variable(np.zeros(400, np.int64), name="cancelled other")

    def step(number: int) -> int:
        for each in (one, other):
            each.scatter_add([number], np.array([1]))
        return number

    coordinator.pause()
    remotes = coordinator.map(step, range(400))
    cancelled = [remote.cancel() for remote in remotes[1:21:2]]  # before any of them runs
    coordinator.resume()
    cancelled += [remote.cancel() for remote in remotes[21::2]]
    coordinator.join(DEADLINE)
    found, again = one.read(), other.read()
    np.testing.assert_array_equal(found, again)
    for number, remote in enumerate(remotes):
        assert found[number] == (remote.status is ClosureStatus.COMPLETED), number
    assert [r.status is ClosureStatus.CANCELLED for r in remotes[1::2]] == cancelled
    assert all(cancelled[:10])


def test_examples_of_a_cancelled_closure_are_read_by_others(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    dataset = psnb.data.Dataset.range(40)
    iterator = iter(coordinator.create_per_worker_dataset(dataset, sharding="dynamic", splits=4))
    began, go = tmp_path / "began", tmp_path / "go"

    def takes(numbers: psnb.PerWorkerValues) -> None:
        next(numbers)
        began.touch()
        wait_for_file(go)
        next(numbers)

    remote = coordinator.schedule(takes, (iterator,))
    wait_for_file(began)
    assert remote.cancel()
    go.touch()
    found: list[int] = []
    for worker in itertools.cycle((0, 1)):  # each has a split that the other one does not get
        if iterator.exhausted:
            break
        remote = coordinator.schedule(
            lambda numbers: next(numbers, None), (iterator,), worker=worker
        )
        if (value := remote.fetch(DEADLINE)) is not None:
            found.append(value)
    assert sorted(found) == list(range(40))


def test_an_interrupt_in_the_middle_of_it_leaves_nothing_for_join_to_wait_for(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = tmp_path / "began"
    remote = coordinator.schedule(wait_for_cancellation, (began,))
    wait_for_file(began)
    queue = coordinator_core(coordinator).queue
    handle = queue._handle

    def interrupted(*events: Any) -> None:
        signal.raise_signal(signal.SIGINT)  # it strikes when nothing defers it
        handle(*events)

    monkeypatch.setattr(queue, "_handle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        remote.cancel()
    coordinator.join(DEADLINE)
    assert remote.status is ClosureStatus.CANCELLED


def test_whatever_waits_for_a_closure_that_never_ends_says_what_gives_it_up(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    remote = coordinator.schedule(wait_for_cancellation, (tmp_path / "began",), worker=0)
    # A worker says after half a second what it does.
    wait_until(lambda: any(w.activity for w in coordinator.statistics().workers), "activity")
    waits: list[Callable[[], object]] = [
        lambda: coordinator.join(0.1),
        lambda: coordinator.mark(timeout=0.1),
        lambda: coordinator.drain(0.1),
        lambda: remote.fetch(0.1),
        lambda: list(psnb.as_completed([remote], timeout=0.1)),
    ]
    for wait in waits:
        with pytest.raises(TimeoutError) as error:
            wait()
        said = "".join([str(error.value), *getattr(error.value, "__notes__", ())])
        assert "remote.cancel()" in said
    coordinator.resume()
    assert remote.cancel()
