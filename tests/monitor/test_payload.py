"""The snapshot that the page gets: strict JSON, and no more than a chart shows."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from psnb.monitor.payload import MAX_POINTS, VERSION, snapshot
from tests.monitor.sources import WORKER, FakeSource, reporting


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
