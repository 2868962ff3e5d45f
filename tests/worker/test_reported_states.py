"""The metrics of a closure: merged by name, and sent in front of its result."""

from __future__ import annotations

import threading

import pytest

import psnb
from psnb._src.metrics.metric import MetricState
from psnb._src.protocol.messages import Taken
from psnb._src.protocol.packing import dumps, loads
from psnb._src.worker.context import WorkerContext, entered
from psnb._src.worker.reports import (
    ReportedStates,
    remembered,
    split_front,
    split_remembered,
    with_weight,
)
from psnb.errors import ConfigurationError
from psnb.metrics import AUC, Mean

AUC_STATE = AUC()([0, 1], [0.2, 0.9])
OTHER = AUC()([1], [0.4])


def context(states: ReportedStates | None) -> WorkerContext:
    return WorkerContext(0, 1, "w", 1, lambda when, values: NUMBERS.append(values), states=states)


NUMBERS: list[dict[str, float]] = []


@pytest.mark.parametrize("weight", [None, 0.5])
@pytest.mark.parametrize("states", [{}, {"auc": AUC_STATE}])
@pytest.mark.parametrize("value", [b"", dumps("W", "it")])
@pytest.mark.parametrize("used", [[], [Taken(1, 2, 3, 4, 5, None, False)]])
def test_what_servers_remember_of_a_closure_is_got_back(
    used: list[Taken], value: bytes, states: dict[str, MetricState], weight: float | None
) -> None:
    reported = ReportedStates()
    reported.add(states)
    front = with_weight(reported.packed(), weight)
    again, front, found = split_remembered(remembered(used, front, value))
    packed, found_weight = split_front(front)
    assert (again, found, found_weight) == (used, value, weight)
    assert loads(packed) == ({}, states) if states else not packed


def test_several_reports_of_a_name_are_merged_and_numbers_are_sent_at_once_too() -> None:
    NUMBERS.clear()
    states = ReportedStates()
    with entered(context(states)):
        psnb.report(auc=AUC_STATE, loss=0.5)
        psnb.report(auc=OTHER)
        psnb.report(loss=2.0)
    numbers, merged = loads(states.packed())
    assert merged == {"auc": AUC_STATE + OTHER}
    assert numbers == {"loss": (2.5, 2.0, 0)}
    assert NUMBERS == [{"loss": 0.5}, {"loss": 2.0}]


def test_control_characters_of_a_name_are_kept_as_escapes() -> None:
    NUMBERS.clear()
    with entered(context(ReportedStates())):
        psnb.report(**{"a\x1bb": 1.0})
    assert NUMBERS == [{"a\\x1bb": 1.0}]


def test_reports_of_several_threads_are_all_merged() -> None:
    states = ReportedStates()
    begin = threading.Barrier(8)

    def report() -> None:
        begin.wait()
        for _ in range(50):
            states.add({"auc": OTHER})

    threads = [threading.Thread(target=report) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (auc,) = loads(states.packed())[1].values()
    assert auc.array.sum() == 400 * OTHER.array.sum()


def test_a_name_with_states_of_two_metrics_is_refused_and_nothing_is_reported() -> None:
    NUMBERS.clear()
    states = ReportedStates()
    with entered(context(states)):
        psnb.report(auc=AUC_STATE)
        with pytest.raises(ConfigurationError, match="Mean"):
            psnb.report(other=OTHER, loss=1.0, auc=Mean()([1.0]))
    assert loads(states.packed()) == ({}, {"auc": AUC_STATE})
    assert NUMBERS == []


def test_examples_are_a_number() -> None:
    with pytest.raises(ConfigurationError, match="examples"):
        psnb.report(examples=Mean()([1.0]))


def test_a_function_that_makes_a_per_worker_value_has_no_result_for_states() -> None:
    with entered(context(None)), pytest.raises(ConfigurationError, match="per-worker value"):
        psnb.report(auc=AUC_STATE)


def test_outside_of_closures_states_are_dropped() -> None:
    psnb.report(auc=AUC_STATE)
