"""The metrics of a closure: merged by name, and sent in front of its result."""

from __future__ import annotations

import threading

import pytest

import psnb
from psnb._src.protocol.packing import dumps, loads
from psnb._src.worker.context import WorkerContext, entered
from psnb._src.worker.reports import ReportedStates, split_outcome
from psnb.errors import ConfigurationError
from psnb.metrics import AUC, Mean

AUC_STATE = AUC()([0, 1], [0.2, 0.9])
OTHER = AUC()([1], [0.4])


def context(states: ReportedStates | None) -> WorkerContext:
    return WorkerContext(0, 1, "w", 1, lambda when, values: NUMBERS.append(values), states=states)


NUMBERS: list[dict[str, float]] = []


@pytest.mark.parametrize("result", [b"", dumps({"loss": 0.5}, "it"), dumps(b"M", "it")])
def test_states_travel_in_front_of_a_result(result: bytes) -> None:
    states = ReportedStates()
    states.add({"auc": AUC_STATE})
    packed, front = split_outcome(states.attach(result))
    assert packed == result
    assert loads(front) == ({}, {"auc": AUC_STATE})


@pytest.mark.parametrize("result", [b"", dumps({"loss": 0.5}, "it"), dumps(b"M", "it")])
def test_a_result_without_states_is_sent_as_it_is(result: bytes) -> None:
    assert ReportedStates().attach(result) == result
    assert split_outcome(result) == (result, b"")


def test_several_reports_of_a_name_are_merged_and_numbers_are_sent_at_once_too() -> None:
    NUMBERS.clear()
    states = ReportedStates()
    with entered(context(states)):
        psnb.report(auc=AUC_STATE, loss=0.5)
        psnb.report(auc=OTHER)
        psnb.report(loss=2.0)
    numbers, merged = loads(split_outcome(states.attach(b""))[1])
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
    (auc,) = loads(split_outcome(states.attach(b""))[1])[1].values()
    assert auc.array.sum() == 400 * OTHER.array.sum()


def test_a_name_with_states_of_two_metrics_is_refused_and_nothing_is_reported() -> None:
    NUMBERS.clear()
    states = ReportedStates()
    with entered(context(states)):
        psnb.report(auc=AUC_STATE)
        with pytest.raises(ConfigurationError, match="Mean"):
            psnb.report(other=OTHER, loss=1.0, auc=Mean()([1.0]))
    assert loads(split_outcome(states.attach(b""))[1]) == ({}, {"auc": AUC_STATE})
    assert NUMBERS == []


def test_examples_are_a_number() -> None:
    with pytest.raises(ConfigurationError, match="examples"):
        psnb.report(examples=Mean()([1.0]))


def test_a_function_that_makes_a_per_worker_value_has_no_result_for_states() -> None:
    with entered(context(None)), pytest.raises(ConfigurationError, match="per-worker value"):
        psnb.report(auc=AUC_STATE)


def test_outside_of_closures_states_are_dropped() -> None:
    psnb.report(auc=AUC_STATE)
