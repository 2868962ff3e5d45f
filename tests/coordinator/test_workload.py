"""What a coordinator tells the scheduler of its closures; the clock is a number."""

from __future__ import annotations

import pytest

from psnb._src.cluster.scaling import Demand
from psnb._src.coordinator.scheduling.scheduler import QueueStatistics
from psnb._src.coordinator.workers.workload import Workload
from psnb._src.monitor.statistics import WorkerStatistics

UNKNOWN = 0.5


def _queue(queued: int = 0, in_flight: int = 0) -> QueueStatistics:
    return QueueStatistics(queued, in_flight, 0, 0, 0, 0, failing=False, paused=False, closed=False)


def _worker(
    name: str, in_flight: int, completed: int = 0, failed: int = 0, busy_seconds: float = 0.0
) -> WorkerStatistics:
    return WorkerStatistics(name, name, 0, "ready", in_flight, completed, failed, busy_seconds)


def test_nothing_to_do_is_no_demand() -> None:
    demand = Workload(UNKNOWN).measure(_queue(), [_worker("a", 0, 7, 0, 7.0)], 0.0)
    assert demand == Demand()
    assert not demand


def test_the_workers_that_hold_closures_are_named() -> None:
    workers = [_worker("a", 2), _worker("b", 0), _worker("c", 1)]
    demand = Workload(UNKNOWN).measure(_queue(0, 3), workers, 0.0)
    assert demand.holding == {"a", "c"}


def test_closures_are_expected_to_take_what_they_took_on_average() -> None:
    workers = [_worker("a", 1, 3, 1, 6.0), _worker("b", 0, 4, 0, 2.0)]
    demand = Workload(UNKNOWN).measure(_queue(9, 1), workers, 0.0)
    assert (demand.closures, demand.occupancy) == (10, 10.0)


def test_before_any_has_ended_closures_take_what_dask_takes_for_unknown() -> None:
    demand = Workload(UNKNOWN).measure(_queue(10), [], 0.0)
    assert demand.occupancy == 10 * UNKNOWN


@pytest.mark.parametrize(("seconds", "each"), [(0.1, UNKNOWN), (20.0, 40.0)])
def test_before_any_has_ended_they_take_twice_as_long_as_the_first_has_run(
    seconds: float, each: float
) -> None:
    workload, queue = Workload(UNKNOWN), _queue(3, 1)
    workload.measure(queue, [_worker("a", 1)], 100.0)
    assert workload.measure(queue, [_worker("a", 1)], 100 + seconds).occupancy == 4 * each


def test_a_worker_that_was_empty_in_between_runs_since_it_got_work_again() -> None:
    workload = Workload(UNKNOWN)
    workload.measure(_queue(0, 1), [_worker("a", 1)], 0.0)
    workload.measure(_queue(1), [_worker("a", 0)], 10.0)  # lost, and back in the queue
    workload.measure(_queue(0, 1), [_worker("a", 1)], 20.0)
    assert workload.measure(_queue(0, 1), [_worker("a", 1)], 21.0).occupancy == 2.0
