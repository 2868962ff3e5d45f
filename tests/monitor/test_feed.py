"""The updates that one view gets."""

from __future__ import annotations

import base64
import json
import math
import pickle
from dataclasses import replace

import numpy as np

from psnb._src.metrics.slice_table import SliceRow, SliceTable
from psnb._src.monitor.events import EventKind
from psnb._src.monitor.feed import MOST_SLICES, MOST_TABLES, Feed
from psnb._src.monitor.jupyter_server import messages
from psnb._src.monitor.protocol import VERSION, HubPost, Metric, Update
from psnb._src.monitor.statistics import CheckpointStatistics
from psnb._src.monitor.viewed import OptimizerState
from psnb._src.utils.phases import PhaseStatistics
from psnb._src.utils.stages import Stages, StageStatistics
from tests.monitor.hub.updates import batch
from tests.monitor.viewed import SERVER, WORKER, FakeViewed, reporting


def told(feed: Feed, viewed: FakeViewed, now: float = 100.0, full: bool = False) -> Update:
    update = feed.next(viewed, now, full)
    assert update is not None
    assert json.loads(json.dumps(update, allow_nan=False)) == json.loads(json.dumps(update))
    return update


def unpacked(packed: str) -> list[float]:
    return np.frombuffer(base64.b64decode(packed), "<f8").tolist()


def values(metric: Metric) -> list[float]:
    return unpacked(metric["values"])


def test_the_first_update_has_every_part() -> None:
    update = told(Feed(), reporting(3.0))
    assert set(update) == set(Update.__annotations__)
    assert (update["full"], update["version"], update["sequence"]) == (True, VERSION, 0)


def test_nothing_is_sent_twice() -> None:
    feed, viewed = Feed(), reporting(3.0)
    viewed.set(state="running")
    told(feed, viewed)
    update = told(feed, viewed, 100.25)
    assert set(update) == {"type", "version", "coordinator", "sequence", "full", "summary"}
    assert update["sequence"] == 1


def test_an_idle_coordinator_is_sent_rarely() -> None:
    feed, viewed = Feed(), FakeViewed()
    told(feed, viewed)
    assert feed.next(viewed, 100.5) is None
    assert feed.next(viewed, 120.0) is not None


def test_new_points_are_appended() -> None:
    feed, viewed = Feed(), reporting(3.0, 2.0)
    told(feed, viewed)
    viewed.records.history.add(2.0, {"loss": 1.0})
    (metric,) = told(feed, viewed, 100.25)["metrics"]
    assert (metric["start"], values(metric), metric["count"]) == (2, [1.0], 3)


def test_a_series_that_was_thinned_out_is_sent_again() -> None:
    feed, viewed = Feed(), reporting(*range(9_999))
    told(feed, viewed)
    viewed.records.history.add(0.0, {"loss": 0.0})
    (metric,) = told(feed, viewed, 100.25)["metrics"]
    assert (metric["start"], len(values(metric))) == (0, 5_000)


def test_nan_and_infinities_travel() -> None:
    update = told(Feed(), reporting(1.0, math.inf, math.nan))
    (metric,) = update["metrics"]
    assert metric["last"] == "nan"
    assert values(metric)[:2] == [1.0, math.inf]
    assert math.isnan(values(metric)[2])


def test_only_workers_that_changed_are_sent() -> None:
    feed = Feed()
    bob = replace(WORKER, name="bob", index=1)
    viewed = FakeViewed(workers=(WORKER, bob))
    told(feed, viewed)
    viewed.set(workers=(WORKER, replace(bob, state="lost")))
    (row,) = told(feed, viewed, 100.25)["workers"]
    assert (row["name"], row["state"], row["host"]) == ("bob", "lost", "127.0.0.1")


def test_of_many_workers_figures_take_turns_but_losses_are_sent_at_once() -> None:
    feed = Feed()
    workers = [replace(WORKER, name=f"w{index}", index=index) for index in range(100)]
    viewed = FakeViewed(state="running", workers=tuple(workers))
    assert len(told(feed, viewed)["workers"]) == 100
    seen: set[int] = set()
    for tick in range(4):
        workers = [replace(w, completed=w.completed + 1) for w in workers]
        workers[tick] = replace(workers[tick], state="lost")
        viewed.set(workers=tuple(workers))
        rows = {row["index"]: row for row in told(feed, viewed, 101.0 + tick)["workers"]}
        assert rows[tick]["state"] == "lost"
        assert len(rows) <= 26
        seen |= set(rows)
    assert seen == set(range(100))


def test_failures_and_events_are_appended() -> None:
    feed, viewed = Feed(), FakeViewed()
    told(feed, viewed)
    viewed.records.failures.add("alice", "step #1", pickle.dumps(ValueError("no")))
    viewed.records.events.add(EventKind.WORKER_LOST, "alice was lost", "alice")
    update = told(feed, viewed, 100.25)
    assert [each["error"] for each in update["failures"]] == ["ValueError: no"]
    assert [each["kind"] for each in update["events"]] == ["worker lost"]
    viewed.records.failures.add("alice", "step #2", pickle.dumps(ValueError("again")))
    update = told(feed, viewed, 100.5)
    assert [each["number"] for each in update["failures"]] == [1]
    assert "events" not in update


def test_spans_that_grew_are_sent_again() -> None:
    feed, viewed = Feed(), FakeViewed()
    viewed.records.timeline.add(0, [0.01], 0, 1, 99.0)
    told(feed, viewed)
    viewed.records.timeline.add(0, [0.01], 0, 1, 99.02)
    (span,) = told(feed, viewed, 100.25)["timeline"]
    assert span["closures"] == 2


def test_whole_parts_are_sent_when_they_change() -> None:
    feed, viewed = Feed(), FakeViewed()
    told(feed, viewed)
    viewed.rates = {"users": OptimizerState("Adagrad", 0.1, "Warmup(0.5, 5)")}
    viewed.set(checkpoint=CheckpointStatistics("saved", "here", 1.0))
    viewed.records.history.begin_epoch(100.0, 3)
    update = told(feed, viewed, 100.25)
    viewed.records.history.cut(101.0, 100.0)
    assert update["epochs"] == [{"epoch": 3, "step": 0, "time": 100.0}]
    assert told(feed, viewed, 101.5)["rewinds"] == [{"step": 0, "time": 101.0, "kept": 100.0}]
    row = update["optimizers"][0]
    assert (row["learning_rate"], row["schedule"]) == (0.1, "Warmup(0.5, 5)")
    assert update["checkpoint"]["path"] == "here"
    assert "servers" not in update


def test_a_hello_gets_everything_again() -> None:
    feed, viewed = Feed(), reporting(3.0, 2.0)
    viewed.records.failures.add("alice", "step #1", pickle.dumps(ValueError("no")))
    first = told(feed, viewed)
    again = told(feed, viewed, 100.25, full=True)
    assert again["full"]
    for part in ("metrics", "failures", "workers", "servers", "optimizers", "controls"):
        assert again[part] == first[part]  # type: ignore[literal-required]


def test_the_depth_of_the_queue_goes_back_a_minute() -> None:
    feed, viewed = Feed(), FakeViewed()
    for second in range(100):
        viewed.set(queued=second)
        feed.next(viewed, float(second))
    depth = told(feed, viewed, 99.5, full=True)["depth"]
    assert [list(each[:2]) for each in (depth[0], depth[-1])] == [[40.0, 40], [99.5, 99]]


def test_no_figure_and_no_text_makes_an_update_that_the_hub_refuses() -> None:
    bad = (math.nan, math.inf, -math.inf)
    viewed = FakeViewed(
        closures_per_second=math.inf,
        eta=math.nan,
        examples=math.inf,
        examples_per_second=math.nan,
        workers=tuple(
            replace(WORKER, index=at, name="caf\udce9", closures_per_second=value, busy=value)
            for at, value in enumerate(bad)
        ),
        servers=tuple(
            replace(SERVER, pulls_per_second=value, pushes_per_second=value, staleness=value)
            for value in bad
        ),
    )
    viewed.rates = {
        "users": OptimizerState("Adagrad", math.nan),
        "caf\udce9": OptimizerState("Adam", 0.1, "x" * 100_000),
    }
    for value in (*bad, 1e308, 1e308):
        viewed.records.history.add(1.0, {"loss": value, "caf\udce9": value})
    feed = Feed()
    for now in (1.0, 100.0):
        update = feed.next(viewed, now)
        assert update is not None
        body = json.dumps(batch(update), allow_nan=False).encode()
        assert messages.read(body, HubPost)["updates"][0]["summary"]["examples"] == "inf"
    assert "optimizers" not in update  # NaN is no news the second time


def starving(share: float) -> FakeViewed:
    """Return a coordinator whose worker reads for that share of its time."""
    read = PhaseStatistics(read=share, compute=1 - share)
    stages = {"range>map": Stages([StageStatistics("map(parse)", 3, 1.0)])}
    worker = replace(WORKER, phases_lately=read, stages=stages)
    viewed = FakeViewed()
    viewed.set(workers=(worker,), state="running")
    return viewed


def test_the_phases_of_each_worker_and_of_all_are_sent_as_shares() -> None:
    update = told(Feed(), starving(0.25))
    assert update["workers"][0]["phases"] == [0.25, 0.0, 0.75, 0.0, 0.0]
    assert update["summary"]["phases"] == [0.25, 0.0, 0.75, 0.0, 0.0]


def test_the_sentence_for_what_workers_wait_stays_for_some_seconds_and_ends_at_once() -> None:
    feed, viewed = Feed(), starving(0.4)
    assert told(feed, viewed)["starved"] == "workers wait 40% of their time for map(parse)"
    viewed.set(workers=starving(0.41).now.workers)
    assert "starved" not in told(feed, viewed, 101.0)
    assert told(feed, viewed, 106.0)["starved"].startswith("workers wait 41%")
    viewed.set(workers=starving(0.1).now.workers)
    assert told(feed, viewed, 106.25)["starved"] == ""


def test_the_worst_slices_are_sent_when_they_change_and_their_number_is_bounded() -> None:
    viewed, feed = FakeViewed(), Feed()
    first = feed.next(viewed, 1.0)
    assert first is not None
    assert first["slices"] == []
    rows = [SliceRow(number, number / 100, 7) for number in range(60)]
    rows[0] = SliceRow("a\u202eb", math.nan, 7)
    table = SliceTable(tuple(rows), SliceRow(None, 0.5, 9))
    viewed.records.history.set_slices("auc", table)
    update = feed.next(viewed, 2.0)
    assert update is not None
    (sent,) = update["slices"]
    assert (sent["metric"], sent["count"]) == ("auc", 60)
    assert len(sent["rows"]) == MOST_SLICES
    assert sent["rows"][0] == {"slice": "a\\u202eb", "value": "nan", "examples": 7}
    assert sent["others"] == {"slice": "", "value": 0.5, "examples": 9}
    viewed.records.history.set_slices("auc", table)
    assert "slices" not in (feed.next(viewed, 30.0) or {})
    for number in range(100):
        viewed.records.history.set_slices(f"auc {number}", table)
    later = feed.next(viewed, 31.0)
    assert later is not None
    assert len(later["slices"]) == MOST_TABLES
