"""Workers that closures wait for, and that are not here."""

from __future__ import annotations

from psnb._src.coordinator.closures.call import NO_ARGUMENTS
from psnb._src.coordinator.closures.options import ScheduleOptions
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.workers.absences import MissingWorkers
from tests.coordinator.queues import FUNCTION, ClosureQueue


def test_one_is_reported_once_and_only_after_a_while() -> None:
    absences = MissingWorkers(2.0)
    assert absences.due(["a", 7], ["b", 0], 0.0) == []
    assert absences.due(["a", 7], ["b", 0], 1.9) == []
    assert absences.due(["a", 7], ["b", 0], 2.0) == ["a", 7]
    assert absences.due(["a", 7], ["b", 0], 99.0) == []


def test_one_that_is_here_is_not_reported() -> None:
    absences = MissingWorkers(10.0)
    found = [absences.due(["a", 0], ["a", 0], now) for now in (0.0, 99.0)]
    assert found == [[], []]


def test_one_that_came_meanwhile_has_its_time_again() -> None:
    absences = MissingWorkers(10.0)
    found = [
        absences.due(["a"], here, now)
        for here, now in (([], 0.0), (["a"], 9.0), ([], 10.0), ([], 19.0), ([], 20.0))
    ]
    assert found == [[], [], [], [], ["a"]]


def test_one_is_reported_again_when_it_was_here_meanwhile() -> None:
    absences = MissingWorkers(10.0)
    found = [
        absences.due(["a"], here, now)
        for here, now in (([], 0.0), ([], 10.0), (["a"], 11.0), ([], 12.0), ([], 22.0))
    ]
    assert found == [[], ["a"], [], [], ["a"]]


def test_the_queue_tells_by_name_or_index_for_whom_closures_wait() -> None:
    queue = ClosureQueue(10)
    for number, pin in enumerate((None, "a", 3, "a", lambda worker: False)):
        remote = RemoteValue(queue.inbox)
        queue.put(Work(number, number, FUNCTION, NO_ARGUMENTS, ScheduleOptions(worker=pin), remote))
    assert queue.awaited() == ["a", 3]
