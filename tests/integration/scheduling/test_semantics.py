"""What `schedule` can be asked for, on a real cluster of processes that nobody harms."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import errors
from tests.conftest import DEADLINE, wait_until


class Gate:
    """Opened by the notebook through a file; waited for in closures."""

    def __init__(self, path: Any) -> None:
        self.path = str(path)

    def open(self) -> None:
        with open(self.path, "w"):
            pass

    def wait(self) -> bool:
        pause = threading.Event()
        for _ in range(int(DEADLINE * 100)):
            if os.path.exists(self.path):
                return True
            pause.wait(0.01)
        return False


def _until_cancelled() -> bool:
    pause = threading.Event()
    for _ in range(int(DEADLINE * 100)):
        if psnb.worker_context().cancelled:
            return True
        pause.wait(0.01)
    return False


@pytest.fixture
def ready(coordinator: psnb.ClusterCoordinator) -> psnb.ClusterCoordinator:
    """The coordinator, once both workers are ready."""
    wait_until(
        lambda: [w.state for w in coordinator.statistics().workers] == ["ready", "ready"],
        "both workers are ready",
    )
    return coordinator


def test_closures_run_on_the_worker_that_they_are_pinned_to(
    ready: psnb.ClusterCoordinator,
) -> None:
    for worker in ready.statistics().workers:
        name, index = worker.name, worker.index
        for pin in (name, index, lambda w, name=name: w.name == name):
            remotes = [ready.schedule(psnb.worker_index, worker=pin) for _ in range(5)]
            assert set(ready.fetch(remotes)) == {index}


def test_a_higher_priority_goes_first(ready: psnb.ClusterCoordinator, tmp_path: Any) -> None:
    gate = Gate(tmp_path / "gate")
    first = [ready.schedule(gate.wait, worker=0) for _ in range(2)]
    log = ready.create_per_worker_resource(list)
    for name, priority in [("low", -1), ("first", 0), ("high", 1), ("second", 0)]:
        ready.schedule(lambda log, name: log.append(name), (log, name), worker=0, priority=priority)
    last = ready.schedule(list, (log,), worker=0, priority=-2)
    gate.open()
    assert ready.fetch(first) == [True, True]
    assert last.fetch(DEADLINE) == ["high", "first", "second", "low"]


def test_results_are_arguments_of_other_closures(coordinator: psnb.ClusterCoordinator) -> None:
    array = coordinator.schedule(np.arange, (5,))
    total = coordinator.schedule(lambda x: x["a"][0].sum(), ({"a": [array]},))
    both = coordinator.schedule(lambda x, y: (x.tolist(), int(y)), (array,), {"y": total})
    assert both.fetch(DEADLINE) == ([0, 1, 2, 3, 4], 10)


def test_none_is_a_result_that_can_be_passed_on(coordinator: psnb.ClusterCoordinator) -> None:
    nothing = coordinator.schedule(lambda: None)
    assert coordinator.schedule(lambda x: x is None, (nothing,)).fetch(DEADLINE) is True


def test_a_failed_input_is_the_cause_of_its_dependents_error(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    bad = coordinator.schedule(lambda: 1 / 0)
    try:
        dependent = coordinator.schedule(lambda x: x, (bad,))
    except ZeroDivisionError:  # it had failed already, and that was raised
        dependent = coordinator.schedule(lambda x: x, (bad,))
    with pytest.raises(errors.ClosureInputError, match="division by zero") as raised:
        dependent.fetch(DEADLINE)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_remote_value_that_a_function_captures_is_refused(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    remote = coordinator.schedule(int)
    with pytest.raises(errors.SerializationError, match="pass it as an argument"):
        coordinator.schedule(lambda: remote)


def test_map_schedules_a_call_for_each_item(coordinator: psnb.ClusterCoordinator) -> None:
    assert coordinator.fetch(coordinator.map(abs, [-1, 2, -3])) == [1, 2, 3]
    assert coordinator.fetch(coordinator.map(pow, range(4), [2, 2, 2])) == [0, 1, 4]
    with pytest.raises(errors.ConfigurationError, match="iterable"):
        coordinator.map(abs)


def test_values_come_as_they_are_completed(
    coordinator: psnb.ClusterCoordinator, tmp_path: Any
) -> None:
    gate = Gate(tmp_path / "gate")
    slow = coordinator.schedule(gate.wait, worker=0)
    quick = coordinator.schedule(int, worker=1)
    ended = psnb.as_completed([slow, quick], DEADLINE)
    assert next(ended) is quick
    gate.open()
    assert list(ended) == [slow]


def test_values_and_the_coordinator_can_be_awaited(coordinator: psnb.ClusterCoordinator) -> None:
    async def main() -> list[int]:
        values = await asyncio.gather(*(_value(r) for r in coordinator.map(abs, range(-50, 0))))
        coordinator.schedule(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await coordinator.join_async(DEADLINE)
        return values

    assert asyncio.run(main()) == list(range(50, 0, -1))
    coordinator.join(DEADLINE)


async def _value(remote: psnb.RemoteValue) -> Any:
    return await remote


def test_per_worker_values_are_read_back_by_index(
    ready: psnb.ClusterCoordinator, cluster: Client
) -> None:
    index = ready.create_per_worker_resource(psnb.worker_index)
    assert index.fetch(DEADLINE) == [0, 1]
    assert ready.fetch({"index": [index], "other": 3}) == {"index": [[0, 1]], "other": 3}


def test_per_worker_values_show_what_closures_changed(ready: psnb.ClusterCoordinator) -> None:
    counts = ready.create_per_worker_resource(list)
    for _ in range(10):
        ready.schedule(lambda counts: counts.append(1), (counts,))
    ready.join(DEADLINE)
    assert sum(len(each) for each in counts.fetch(DEADLINE)) == 10


def test_a_value_that_could_not_be_made_fails_its_fetch_and_nothing_else(
    ready: psnb.ClusterCoordinator,
) -> None:
    bad = ready.create_per_worker_resource(lambda: 1 / 0)
    with pytest.raises(errors.ClosureInputError, match="division by zero"):
        bad.fetch(DEADLINE)
    ready.join(DEADLINE)


def test_a_fetch_that_times_out_leaves_nothing_behind(
    ready: psnb.ClusterCoordinator, tmp_path: Any
) -> None:
    gate = Gate(tmp_path / "gate")
    value = ready.create_per_worker_resource(psnb.worker_index)
    remotes = [ready.schedule(gate.wait, worker=0) for _ in range(2)]
    with pytest.raises(TimeoutError, match="values of workers"):
        value.fetch(0.05)
    gate.open()
    ready.join(DEADLINE)
    assert ready.fetch(remotes) == [True, True]
    assert value.fetch(DEADLINE) == [0, 1]


def test_datasets_and_iterators_cannot_be_fetched(coordinator: psnb.ClusterCoordinator) -> None:
    dataset = coordinator.create_per_worker_dataset([1])
    for value in (dataset, iter(dataset)):
        with pytest.raises(errors.ConfigurationError, match="stay on the workers"):
            value.fetch()


def test_a_running_closure_learns_that_another_one_failed(ready: psnb.ClusterCoordinator) -> None:
    waits = ready.schedule(_until_cancelled, worker=0)
    wait_until(lambda: waits.status is psnb.ClosureStatus.RUNNING, "it runs")
    ready.schedule(lambda: 1 / 0, worker=1)
    with pytest.raises(ZeroDivisionError):
        ready.join(DEADLINE)
    assert waits.fetch() is True
    assert ready.schedule(lambda: psnb.worker_context().cancelled).fetch(DEADLINE) is False


def test_a_running_closure_learns_that_the_coordinator_was_closed(
    ready: psnb.ClusterCoordinator, tmp_path: Any
) -> None:
    begun, stopped = tmp_path / "begun", tmp_path / "stopped"

    def waits() -> None:
        begun.touch()
        if _until_cancelled():
            stopped.touch()

    ready.schedule(waits)
    wait_until(begun.exists, "it runs")
    ready.close()
    wait_until(stopped.exists, "it has stopped")


def test_a_per_worker_dataset_still_works_after_a_cancellation(
    ready: psnb.ClusterCoordinator,
) -> None:
    iterator = iter(ready.create_per_worker_dataset(range(1000)))
    first = [ready.schedule(next, (iterator,), worker=0).fetch(DEADLINE) for _ in range(3)]
    ready.schedule(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ready.join(DEADLINE)
    assert first == [0, 1, 2]
    assert ready.schedule(next, (iterator,), worker=0).fetch(DEADLINE) == 3


def test_a_worker_that_starts_later_leaves_the_work_to_the_others(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    coordinator = psnb.ClusterCoordinator(strategy, start_delay=3600.0)
    assert coordinator.settings.start_delay.step == 3600.0
    assert set(coordinator.fetch(coordinator.map(_index_of, range(100)))) == {0}
    with pytest.raises(errors.ConfigurationError, match="start_delay=StartDelay"):
        psnb.ClusterCoordinator(strategy, start_delay=1.0)


def _index_of(_: int) -> int:
    return psnb.worker_index()
