"""When which worker ran closures."""

from __future__ import annotations

from psnb._src.monitor.counters import MINUTE, Timeline


def test_a_long_closure_is_a_span_of_its_own() -> None:
    timeline = Timeline()
    timeline.add(0, [1.5], 0, 1, 100.0)
    timeline.add(0, [1.0], 1, 1, 101.0)
    spans = sorted(timeline.since(0.0), key=lambda span: span["start"])
    assert [(s["start"], s["end"], s["failed"]) for s in spans] == [
        (98.5, 100.0, 0),
        (100.0, 101.0, 1),
    ]


def test_short_closures_that_follow_each_other_are_one_span() -> None:
    timeline = Timeline()
    for step in range(5):
        timeline.add(0, [0.01], step == 2, 1, 100 + step * 0.02)
    (span,) = timeline.since(0.0)
    assert (span["closures"], span["failed"]) == (5, 1)


def test_a_pause_that_can_be_seen_divides_them() -> None:
    timeline = Timeline()
    timeline.add(0, [0.01], 0, 1, 100.0)
    timeline.add(0, [0.01], 0, 1, 100.5)
    assert len(timeline.since(0.0)) == 2


def test_closures_side_by_side_take_the_time_of_the_longest() -> None:
    timeline = Timeline()
    timeline.add(0, [1.0, 1.0, 0.5], 0, 3, 100.0)
    (span,) = timeline.since(0.0)
    assert span["start"] == 99.0


def test_only_what_has_ended_or_grown_since_is_sent() -> None:
    timeline = Timeline()
    timeline.add(0, [0.2], 0, 1, 100.0)
    timeline.add(1, [0.01], 0, 1, 100.2)
    timeline.add(1, [0.01], 0, 1, 100.22)
    (span,) = timeline.since(100.2)
    assert (span["worker"], span["closures"]) == (1, 2)


def test_workers_have_spans_of_their_own_and_a_minute_is_kept() -> None:
    timeline = Timeline()
    timeline.add(0, [0.2], 0, 1, 100.0)
    timeline.add(0, [0.2], 0, 1, 100.0 + MINUTE + 1)
    timeline.add(1, [0.2], 0, 1, 101.0)
    assert {(s["worker"], s["end"]) for s in timeline.since(0.0)} == {(0, 161.0), (1, 101.0)}
