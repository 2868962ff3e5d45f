"""The metrics of closures: the queue hands on those of each that has returned, once."""

from __future__ import annotations

import pytest

from psnb._src.coordinator.scheduling.instructions import RecordStates
from psnb._src.metrics.means import Mean
from psnb._src.protocol.packing import dumps, loads
from psnb._src.worker.reports import ReportedStates
from tests.coordinator.queues import TIMEOUT, ClosureQueue, done, fail, put

STATES = ReportedStates()
STATES.add({"loss": Mean()([0.5])})
REPORTED = STATES.packed()


@pytest.fixture
def handed() -> list[bytes]:
    return []


@pytest.fixture
def queue(handed: list[bytes]) -> ClosureQueue:
    made = ClosureQueue(10)
    made.on[RecordStates] = lambda each: handed.append(each.packed)
    return made


def test_states_are_handed_on_and_the_value_is_without_them(
    queue: ClosureQueue, handed: list[bytes]
) -> None:
    (closure,) = put(queue, 1)
    queue.take(100)
    queue.settle([done(closure, dumps("value", "it"), reported=REPORTED)])
    assert [loads(each) for each in handed] == [({}, {"loss": Mean()([0.5])})]
    assert closure.remote.fetch(TIMEOUT) == "value"


def test_a_second_outcome_of_a_closure_hands_on_nothing(
    queue: ClosureQueue, handed: list[bytes]
) -> None:
    (closure,) = put(queue, 1)
    queue.take(100)
    for _ in range(2):
        queue.settle([done(closure, dumps("value", "it"), reported=REPORTED)])
    assert len(handed) == 1


def test_a_closure_that_raised_hands_on_nothing(queue: ClosureQueue, handed: list[bytes]) -> None:
    (closure,) = put(queue, 1)
    queue.take(100)
    fail(queue, closure, ValueError("boo"))
    assert handed == []


def test_an_outcome_after_the_queue_was_closed_hands_on_nothing(
    queue: ClosureQueue, handed: list[bytes]
) -> None:
    (closure,) = put(queue, 1)
    queue.take(100)
    queue.close()
    queue.settle([done(closure, dumps("value", "it"), reported=REPORTED)])
    assert handed == []


def test_who_waits_for_a_closure_finds_its_states_handed_on(
    queue: ClosureQueue, handed: list[bytes]
) -> None:
    found: list[int] = []
    (closure,) = put(queue, 1)
    closure.remote.call_back(lambda remote: found.append(len(handed)))
    queue.take(100)
    queue.settle([done(closure, dumps("value", "it"), reported=REPORTED)])
    assert found == [1]
