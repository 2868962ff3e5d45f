"""The live widget: what it sends, when, and how its thread ends. No browser and no kernel."""

import gc
import json
import logging
import math
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from psnb.monitor.history import History
from psnb.monitor.payload import MAX_POINTS, VERSION, Payload, Source, snapshot
from psnb.monitor.staleness import Staleness
from psnb.monitor.statistics import Statistics, WorkerStatistics
from psnb.monitor.widget import CoordinatorWidget, Publisher

DEADLINE = 10.0
NEVER = 1e6
"""An interval after which no test still runs: only `stop` wakes such a publisher."""

WORKER = WorkerStatistics("alice", "tcp://127.0.0.1:1", 0, "ready", 2, 10, 1, 3.5)
STATISTICS = Statistics(
    "idle", 7.0, 5, 2, 10, 1, 3, 4, (WORKER,), ("tcp://127.0.0.1:9",), {}, Staleness().statistics()
)


class FakeSource:
    """A coordinator's outside, with figures that tests set."""

    def __init__(self, **changes: Any) -> None:
        self.history = History()
        self.now = replace(STATISTICS, **changes)
        self.error: Exception | None = None
        self.asked = threading.Semaphore(0)  # Released at each look at the source.

    def statistics(self) -> Statistics:
        self.asked.release()
        if self.error is not None:
            raise self.error
        return replace(self.now, metrics=self.history.metrics())

    def set(self, **changes: Any) -> None:
        self.now = replace(self.now, **changes)

    def wait_for_looks(self, count: int) -> None:
        """Wait until the publisher has looked so many times more."""
        while self.asked.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self.asked.acquire(timeout=DEADLINE), "the publisher does not look"


def reporting(*values: float) -> FakeSource:
    source = FakeSource()
    for step, value in enumerate(values):
        source.history.add(float(step), {"loss": value})
    return source


def publisher_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "psnb-widget"]


def join_publishers() -> None:
    for thread in publisher_threads():
        thread.join(DEADLINE)
        assert not thread.is_alive()


Start = Callable[..., "queue.Queue[Payload]"]


@pytest.fixture
def publish() -> Iterator[Start]:
    """Start a publisher on a source and return the queue that it sends to."""
    started: list[Publisher] = []

    def start(source: Source, interval: float = 0.001) -> "queue.Queue[Payload]":
        sent: queue.Queue[Payload] = queue.Queue()
        started.append(Publisher(source, sent.put, interval))
        started[-1].start()
        return sent

    yield start
    for publisher in started:
        publisher.stop()


@pytest.fixture
def show() -> Iterator[Callable[..., CoordinatorWidget]]:
    """Make a widget that is closed after the test."""
    widgets: list[CoordinatorWidget] = []

    def make(source: Source, interval: float = NEVER) -> CoordinatorWidget:
        widgets.append(CoordinatorWidget(source, interval))
        return widgets[-1]

    yield make
    for widget in widgets:
        widget.close()


# --- the payload ---------------------------------------------------------------------------------


def test_a_snapshot_carries_the_version_of_its_schema() -> None:
    assert snapshot(FakeSource())["version"] == VERSION


def test_a_snapshot_carries_state_and_counters() -> None:
    expected = {
        "state": "idle",
        "elapsed": 7.0,
        "queued": 5,
        "in_flight": 2,
        "completed": 10,
        "failed": 1,
        "cancelled": 3,
        "retried": 4,
    }
    payload = snapshot(FakeSource())
    assert {name: value for name, value in payload.items() if name in expected} == expected


def test_a_snapshot_carries_each_worker() -> None:
    assert snapshot(FakeSource())["workers"] == [
        {
            "name": "alice",
            "address": "tcp://127.0.0.1:1",
            "index": 0,
            "state": "ready",
            "in_flight": 2,
            "completed": 10,
            "failed": 1,
            "busy_seconds": 3.5,
        }
    ]


def test_a_worker_that_is_named_by_a_number_gets_a_text_name() -> None:
    source = FakeSource(workers=(replace(WORKER, name=3),))  # type: ignore[arg-type]
    assert snapshot(source)["workers"][0]["name"] == "3"


def test_a_snapshot_carries_the_servers() -> None:
    assert snapshot(FakeSource())["servers"] == ["tcp://127.0.0.1:9"]


def test_a_snapshot_carries_each_metric_with_its_series() -> None:
    assert snapshot(reporting(1.0, 3.0))["metrics"] == [
        {
            "name": "loss",
            "count": 2,
            "last": 3.0,
            "smoothed": 2.0,
            "steps": [1, 2],
            "values": [1.0, 3.0],
            "averages": [1.0, 2.0],
        }
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_a_last_value_that_json_does_not_know_is_sent_as_text(value: float, text: str) -> None:
    assert snapshot(reporting(1.0, value))["metrics"][0]["last"] == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_point_that_json_does_not_know_is_a_gap(value: float) -> None:
    assert snapshot(reporting(1.0, value, 2.0))["metrics"][0]["values"] == [1.0, None, 2.0]


@pytest.mark.parametrize("values", [(math.nan,), (math.inf, -math.inf), (1e308, -1e308), (0.0,)])
def test_a_snapshot_of_odd_values_is_strict_json(values: tuple[float, ...]) -> None:
    payload = snapshot(reporting(*values))
    assert json.loads(json.dumps(payload, allow_nan=False)) == payload


@pytest.mark.parametrize("count", [0, 1, 2, MAX_POINTS - 1, MAX_POINTS, MAX_POINTS + 1, 1999])
def test_a_series_is_sent_with_at_most_the_points_of_a_chart(count: int) -> None:
    source = reporting(*range(count))
    for metric in snapshot(source)["metrics"]:
        assert len(metric["steps"]) == len(metric["values"]) == len(metric["averages"])
        assert min(count, MAX_POINTS // 2) <= len(metric["steps"]) <= MAX_POINTS


@pytest.mark.parametrize("count", [1, MAX_POINTS, MAX_POINTS + 1, 1999])
def test_a_thinned_out_series_keeps_its_first_and_last_point(count: int) -> None:
    steps = snapshot(reporting(*range(count)))["metrics"][0]["steps"]
    assert (steps[0], steps[-1]) == (1, count)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_points_are_rounded_to_less_than_can_be_seen(scale: float) -> None:
    values = [scale * (1e3 + step / 7) for step in range(50)]
    span = max(values) - min(values)
    sent = snapshot(reporting(*values))["metrics"][0]["values"]
    assert sent == pytest.approx(values, rel=0, abs=span / 1e4)


def test_a_metric_without_new_values_is_not_made_again() -> None:
    source = reporting(1.0, 2.0)
    before = snapshot(source)
    assert snapshot(source, before)["metrics"][0] is before["metrics"][0]


def test_a_metric_with_new_values_is_made_again() -> None:
    source = reporting(1.0, 2.0)
    before = snapshot(source)
    source.history.add(2.0, {"loss": 3.0})
    assert snapshot(source, before) == snapshot(source)


# --- what is sent, and when ----------------------------------------------------------------------


def test_a_change_is_sent(publish: Start) -> None:
    source = FakeSource()
    sent = publish(source)
    source.set(completed=11)
    assert sent.get(timeout=DEADLINE)["completed"] == 11


def test_nothing_is_sent_while_only_the_clock_of_an_idle_coordinator_moves(publish: Start) -> None:
    source = FakeSource()
    sent = publish(source)
    source.set(elapsed=8.0)
    source.wait_for_looks(3)
    assert sent.empty()


def test_the_clock_of_a_running_coordinator_is_sent(publish: Start) -> None:
    source = FakeSource(state="running")
    sent = publish(source)
    source.set(elapsed=8.0)
    assert sent.get(timeout=DEADLINE)["elapsed"] == 8.0


def test_a_new_value_of_a_metric_is_sent(publish: Start) -> None:
    source = reporting(1.0)
    sent = publish(source)
    source.history.add(1.0, {"loss": 2.0})
    assert sent.get(timeout=DEADLINE)["metrics"][0]["values"] == [1.0, 2.0]


def test_a_closed_coordinator_is_sent_last_and_ends_the_thread(publish: Start) -> None:
    source = FakeSource(state="running")
    sent = publish(source)
    source.set(state="closed")
    join_publishers()
    assert (sent.queue[-1]["state"], sent.queue[-1]["notice"]) == ("closed", "")


def test_a_source_that_is_gone_ends_the_thread_and_the_page_is_told(publish: Start) -> None:
    source = FakeSource(state="running")
    sent = publish(source)
    alive = weakref.ref(source)
    del source
    join_publishers()
    gc.collect()
    assert alive() is None
    assert (sent.queue[-1]["state"], sent.queue[-1]["notice"]) == (
        "closed",
        "The coordinator is gone.",
    )


def test_a_source_without_weak_references_is_published_too(publish: Start) -> None:
    class Slotted:
        __slots__ = ("history", "now")

        def __init__(self) -> None:
            self.history, self.now = History(), STATISTICS

        def statistics(self) -> Statistics:
            return self.now

    source = Slotted()
    sent = publish(source)
    source.now = replace(STATISTICS, completed=11)
    assert sent.get(timeout=DEADLINE)["completed"] == 11


def test_an_error_of_the_source_ends_the_thread_and_is_logged_once(
    publish: Start, caplog: pytest.LogCaptureFixture
) -> None:
    source = FakeSource(state="running")
    with caplog.at_level(logging.ERROR, "psnb"):
        publish(source)
        source.error = RuntimeError("broken")
        join_publishers()
    assert [(record.name, record.levelname) for record in caplog.records] == [("psnb", "ERROR")]
    assert "broken" in caplog.text


def test_the_page_is_told_of_an_error_of_the_source(publish: Start) -> None:
    source = FakeSource(state="running")
    sent = publish(source)
    source.error = RuntimeError("broken")
    join_publishers()
    assert (sent.queue[-1]["state"], sent.queue[-1]["notice"]) == (
        "unknown",
        "No longer updated: RuntimeError: broken",
    )


def test_a_page_that_cannot_be_reached_ends_the_thread_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(payload: Payload) -> None:
        raise OSError("the comm is gone")

    source = FakeSource()
    publisher = Publisher(source, fail, 0.001)
    with caplog.at_level(logging.ERROR, "psnb"):
        publisher.start()
        source.set(completed=11)
        join_publishers()
    assert len(caplog.records) == 1


def test_stop_sends_one_last_snapshot_before_it_returns(publish: Start) -> None:
    source = FakeSource()
    sent: list[Payload] = []
    publisher = Publisher(source, sent.append, NEVER)
    publisher.start()
    source.set(completed=11)
    publisher.stop()
    assert [payload["completed"] for payload in sent] == [11]
    assert not publisher.alive


def test_a_page_that_is_stopped_before_its_coordinator_says_so() -> None:
    source = FakeSource(state="running")
    sent: list[Payload] = []
    publisher = Publisher(source, sent.append, NEVER)
    publisher.start()
    publisher.stop()
    assert sent[-1]["notice"] == "No longer updated."


def test_stop_may_be_called_twice() -> None:
    source = FakeSource()
    sent: list[Payload] = []
    publisher = Publisher(source, sent.append, NEVER)
    publisher.start()
    publisher.stop()
    publisher.stop()
    assert len(sent) == 1


def test_stop_before_start_does_nothing() -> None:
    Publisher(FakeSource(), lambda payload: None).stop()


def test_stop_from_the_publishers_own_thread_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource()
    publisher = Publisher(source, lambda payload: publisher.stop(), 0.001)
    publisher.start()
    source.set(completed=11)
    join_publishers()
    assert not publisher.alive
    assert not caplog.records


# --- the widget ----------------------------------------------------------------------------------


def test_a_new_widget_shows_the_source_at_once(show: Callable[..., CoordinatorWidget]) -> None:
    source = FakeSource()
    assert show(source).snapshot == snapshot(source)


def test_a_widget_has_one_daemon_thread(show: Callable[..., CoordinatorWidget]) -> None:
    source = FakeSource()
    show(source)
    assert [thread.daemon for thread in publisher_threads()] == [True]


def test_a_stopped_widget_keeps_the_final_figures(show: Callable[..., CoordinatorWidget]) -> None:
    source = FakeSource()
    widget = show(source)
    source.set(completed=11)
    widget.stop()
    assert (widget.snapshot["completed"], widget.live) == (11, False)


def test_an_update_sets_the_one_trait_once(show: Callable[..., CoordinatorWidget]) -> None:
    source = FakeSource()
    widget = show(source)
    changed: list[str] = []
    widget.observe(lambda change: changed.append(change["name"]))
    source.set(completed=11, queued=4)
    widget.stop()
    assert changed == ["snapshot"]


def test_closing_a_widget_ends_its_thread(show: Callable[..., CoordinatorWidget]) -> None:
    source = FakeSource()
    show(source).close()
    assert publisher_threads() == []


def test_the_page_gets_the_snapshot_as_json_text(show: Callable[..., CoordinatorWidget]) -> None:
    source = reporting(1.0, math.nan)
    assert json.loads(show(source).get_state("snapshot")["snapshot"]) == snapshot(source)


def test_a_page_without_widgets_gets_a_line_of_text(
    show: Callable[..., CoordinatorWidget],
) -> None:
    source = FakeSource()
    assert repr(show(source)) == "<psnb coordinator, idle: 10 completed, 1 failed, 1 workers>"


def test_a_widget_of_a_broken_source_raises_where_it_is_made() -> None:
    source = FakeSource()
    source.error = RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        CoordinatorWidget(source)


def test_the_page_never_takes_names_for_markup(show: Callable[..., CoordinatorWidget]) -> None:
    source = FakeSource()
    script = str(show(source).get_state("_esm")["_esm"])
    assert "export default" in script
    assert not [word for word in ("innerHTML", "outerHTML", "insertAdjacentHTML") if word in script]
