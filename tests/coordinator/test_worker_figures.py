"""What a worker has done."""

from __future__ import annotations

import pytest

from psnb._src.coordinator.scheduling.figures import WorkerFigures
from psnb._src.coordinator.scheduling.states import ConnectionState
from psnb._src.utils.phases import PhaseStatistics

READY = ConnectionState.READY


def test_closures_are_counted_by_how_they_ended() -> None:
    figures = WorkerFigures("w", "tcp://1", 0)
    figures.add([1.0, 2.0, 3.0], completed=1, failed=1)
    found = figures.snapshot(READY, in_flight=0, threads=1)
    assert (found.completed, found.failed, found.busy_seconds) == (1, 1, 6.0)


def test_a_worker_whose_closures_take_long_is_busy_before_the_first_has_ended() -> None:
    figures = WorkerFigures("w", "tcp://1", 0)
    assert figures.snapshot(READY, in_flight=5, threads=2).busy == 1.0
    assert figures.snapshot(READY, in_flight=1, threads=2).busy == 0.5
    assert figures.snapshot(READY, in_flight=0, threads=2).busy == 0.0


def test_an_activity_keeps_its_beginning_until_another_begins() -> None:
    figures = WorkerFigures("w", "tcp://w:1", 0)

    def told(state: ConnectionState = ConnectionState.READY) -> tuple[str, float | None]:
        found = figures.snapshot(state, 1, 1)
        return found.activity, found.running_since

    assert told() == ("", None)
    figures.note_activity("loading step", 3.0)
    activity, since = told()
    assert activity == "loading step"
    figures.note_activity("running step", 3.2)
    assert told() == ("running step", since)
    figures.note_activity("running step", 0.6)
    assert told()[1] is not None
    assert told()[1] != since
    assert told(ConnectionState.LOST) == ("", None)
    figures.add([0.1], 1, 0)
    assert told() == ("", None)


def test_what_its_process_takes_is_known_after_its_first_heartbeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures, now = WorkerFigures("w", "tcp://1", 0), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def told() -> tuple[int | None, int | None, float | None]:
        found = figures.snapshot(READY, 0, 1)
        return found.memory, found.gpu_memory, found.cpu

    assert told() == (None, None, None)
    figures.note_use(1 << 20, None, cpu_seconds=40.0)
    assert told() == (1 << 20, None, 0.0)  # what it took until now was not lately
    now[0] = 102.0
    figures.note_use(2 << 20, 1 << 30, cpu_seconds=43.0)
    assert told() == (2 << 20, 1 << 30, 1.5)


def test_examples_that_closures_report_are_counted_for_their_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures, now = WorkerFigures("w", "tcp://1", 0), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    figures.add_reports([(0.0, {"loss": 1.0})])
    assert figures.snapshot(READY, 0, 1).examples_per_second is None
    figures.add_reports([(0.0, {"examples": 32.0}), (0.1, {"examples": 64.0, "loss": 1.0})])
    now[0] = 102.0
    assert figures.snapshot(READY, 0, 1).examples_per_second == 48.0


def test_the_time_of_closures_is_added_phase_by_phase() -> None:
    figures = WorkerFigures("w", "tcp://1", 0)
    figures.add_phases([1.0, 2.0, 3.0, 0.0, 0.5])
    figures.add_phases([0.0, 2.0, 1.0, 0.25, 0.0])
    found = figures.snapshot(READY, in_flight=0, threads=1)
    assert found.phases == PhaseStatistics(1.0, 4.0, 4.0, 0.25, 0.5)
    lately = found.phases_lately
    assert lately.shares == pytest.approx(found.phases.shares)
