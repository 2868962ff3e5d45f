"""What workers have, and the numbers of commits, without a queue around it."""

from __future__ import annotations

from psnb._src.coordinator.scheduling.in_flight import InFlight
from psnb._src.coordinator.scheduling.work import Work
from tests.coordinator.queues import ClosureQueue, closure, commit_of


def begun(in_flight: InFlight, count: int) -> list[Work]:
    queue = ClosureQueue(1)  # for its condition only
    closures = [closure(queue, number) for number in range(count)]
    for each in closures:
        in_flight.begin(each)
    return closures


def test_a_closure_that_is_begun_again_keeps_its_commit_number() -> None:
    in_flight = InFlight()
    first, second = begun(in_flight, 2)
    assert in_flight.give_back(first)
    in_flight.begin(first)
    assert (commit_of(first), commit_of(second)) == (0, 1)


def test_a_lost_closure_is_in_flight_though_it_does_not_run() -> None:
    in_flight = InFlight()
    closures = begun(in_flight, 1)
    assert in_flight.lose(closures) == closures
    assert (len(in_flight), in_flight.open(), in_flight.running()) == (1, 1, False)


def test_only_what_runs_can_be_lost() -> None:
    in_flight = InFlight()
    closures = begun(in_flight, 1)
    in_flight.lose(closures)
    assert in_flight.lose(closures) == []
    assert in_flight.open() == 1


def test_nothing_is_held_up_any_more_when_the_last_open_closure_is_known() -> None:
    in_flight = InFlight()
    first, second = in_flight.lose(begun(in_flight, 2))
    in_flight.block("a server is unresponsive")
    in_flight.take_back(first)
    assert in_flight.blocked_by == "a server is unresponsive"
    in_flight.take_back(second)
    assert in_flight.blocked_by == ""


def test_closed_attempts_are_those_that_were_begun() -> None:
    in_flight = InFlight()
    under_way, ended, again, lost = begun(in_flight, 4)
    in_flight.end(ended)
    again.execution.attempt += 1
    in_flight.lose([lost])
    never_taken = closure(ClosureQueue(1), 4)
    attempts = in_flight.closed_attempts([again, never_taken])
    assert in_flight.settled.bounds() == (commit_of(ended), commit_of(again))
    assert commit_of(under_way) not in attempts
    assert attempts == {
        commit_of(again): 1,
        commit_of(lost): 1,
    }
