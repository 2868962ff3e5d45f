"""Merged metrics: what is read, what is drawn, and when."""

from __future__ import annotations

import logging
import math
import pickle

import numpy as np
import pytest

from psnb._src.metrics.groups import GroupAUC
from psnb._src.metrics.means import Mean
from psnb._src.metrics.metric import MetricState, MetricStates
from psnb._src.metrics.ranking import AUC
from psnb._src.monitor.history import MOST_METRICS, History
from psnb._src.monitor.metrics import MOST_ARRIVED, MergedMetrics
from psnb._src.monitor.statistics import MetricStatistics
from psnb._src.monitor.viewed import Records
from psnb._src.worker.reports import ReportedStates
from psnb.errors import ConfigurationError

MEAN = Mean()


class Broken(Mean):
    """A metric of a user's, whose value cannot be computed."""

    def evaluate(self, array: np.ndarray) -> float | str:
        raise ZeroDivisionError("of the user")


class Reported:
    """Merged metrics, what closures report to them, and their history."""

    def __init__(self) -> None:
        self.history = History()
        self.merged = MergedMetrics(self.history)

    def report(self, **states: MetricState) -> None:
        self.merged.add(pickle.dumps(({}, states)))

    def report_numbers(self, **values: float) -> None:
        """Report numbers in one closure, as `psnb.report` does."""
        reported = ReportedStates()
        reported.add_numbers(values)
        self.history.add(0.0, values)
        self.merged.add(reported.packed())

    def values(self, name: str) -> list[float]:
        values: list[float] = self.history.series(name)["value"].tolist()
        return values


@pytest.fixture
def reported() -> Reported:
    return Reported()


def test_readers_get_all_that_closures_reported(reported: Reported) -> None:
    reported.report(loss=MEAN([1.0, 2.0]))
    reported.report(loss=MEAN([6.0]), auc=AUC()([0, 1], [0.1, 0.2]))
    states = reported.merged.states()
    assert states.results() == {"loss": 3.0, "auc": 1.0}
    reported.report(loss=MEAN([7.0]))
    assert states["loss"] == MEAN([1.0, 2.0, 6.0])
    assert reported.merged.states().since(states).results() == {"loss": 7.0}


def test_points_are_the_merged_value_and_that_of_the_latest_examples(reported: Reported) -> None:
    reported.report(loss=MEAN([1.0]))
    reported.merged.draw(100.0)
    reported.report(loss=MEAN([3.0]))
    reported.merged.draw(101.0)
    assert reported.values("loss") == [1.0, 2.0]
    assert reported.values("batch_loss") == [1.0, 3.0]
    assert reported.history.series("loss")["time"].tolist() == [100.0, 101.0]
    assert reported.history.series("loss")["smoothed"].tolist() == [1.0, 2.0]


def test_values_count_from_a_rewind_on_and_what_came_before_is_drawn_before() -> None:
    records = Records.empty(pickle.loads)
    records.merged.add(pickle.dumps(({}, {"loss": MEAN([1.0])})))
    records.cut(0.0)
    records.merged.add(pickle.dumps(({}, {"loss": MEAN([3.0])})))
    series = records.history_until_now().series("loss")
    (back,) = records.history.rewinds()
    assert series["value"].tolist() == [1.0, 3.0]
    assert (series["time"] > back.time).tolist() == [False, True]


def test_the_value_of_the_latest_examples_is_charted_in_the_group_of_the_whole(
    reported: Reported,
) -> None:
    reported.report(**{"train/loss": MEAN([1.0])})
    reported.merged.draw(100.0)
    assert list(reported.history.metrics()) == ["train/loss", "train/batch_loss"]


def test_points_are_a_second_apart_unless_asked_for(reported: Reported) -> None:
    for step in range(10):
        reported.report(loss=MEAN([float(step)]))
        reported.merged.draw(100.0 + step / 8)
    assert reported.values("batch_loss") == [0.0, 4.5]
    reported.merged.draw(102.0, period=0.0)
    assert reported.values("batch_loss") == [0.0, 4.5, 9.0]


def test_what_closures_report_does_not_pile_up_until_someone_reads(reported: Reported) -> None:
    for step in range(10 * MOST_ARRIVED):
        reported.report(loss=MEAN([float(step)]))
        reported.merged.draw(100.0)
        assert len(reported.merged._arrived) < MOST_ARRIVED
    assert reported.merged.states()["loss"] == MEAN(range(10 * MOST_ARRIVED))


def test_points_are_of_the_epoch_and_what_was_merged_is_of_all(reported: Reported) -> None:
    reported.report(loss=MEAN([1.0]))
    reported.merged.begin(100.0)
    assert reported.values("loss") == [1.0]  # the last point of what was before
    reported.report(loss=MEAN([3.0]))
    reported.merged.draw(101.0, period=0.0)
    assert reported.values("loss") == [1.0, 3.0]
    reported.report(loss=MEAN([5.0]))
    assert reported.merged.bring_up_to_date(reported.history.metrics())["loss"].last == 4.0
    assert reported.merged.states()["loss"] == MEAN([1.0, 3.0, 5.0])


def test_what_another_run_had_of_the_epoch_counts_in_its_points(reported: Reported) -> None:
    reported.report(loss=MEAN([1.0]))
    reported.merged.begin(100.0, MetricStates({"loss": MEAN([7.0]), "auc": AUC().empty()}))
    reported.report(loss=MEAN([3.0]))
    reported.merged.draw(101.0, period=0.0)
    assert reported.values("loss") == [1.0, 5.0]


def test_before_an_epoch_has_news_figures_are_those_of_the_last_one(reported: Reported) -> None:
    reported.report(loss=MEAN([1.0]))
    reported.merged.begin(100.0)
    assert reported.merged.bring_up_to_date(reported.history.metrics())["loss"].last == 1.0


def test_without_news_there_are_no_points(reported: Reported) -> None:
    reported.report(loss=MEAN([1.0]))
    for step in range(5):
        reported.merged.draw(100.0 + step)
    assert reported.values("loss") == [1.0]


def test_figures_are_up_to_date_between_points(reported: Reported) -> None:
    reported.history.add(0.0, {"other": 5.0})
    reported.report(loss=MEAN([1.0]))
    reported.merged.draw(100.0)
    reported.report(loss=MEAN([3.0]))
    figures = reported.merged.bring_up_to_date(reported.history.metrics())
    assert (figures["loss"].last, figures["loss"].smoothed) == (2.0, 2.0)
    assert figures["other"].last == 5.0
    assert list(figures) == ["other", "loss", "batch_loss"]


def test_numbers_are_weighted_by_the_examples_that_were_reported_with_them(
    reported: Reported,
) -> None:
    reported.report_numbers(loss=1.0, examples=6)
    reported.report_numbers(loss=3.0, examples=2, rate=0.5)
    reported.report_numbers(rate=1.5)
    found = reported.merged.bring_up_to_date(reported.history.metrics())
    assert found["loss"] == MetricStatistics(2, 3.0, 2.0, 12.0, 8.0)
    assert (found["examples"].total, found["examples"].weight) == (8.0, 2.0)
    assert (found["rate"].total, found["rate"].weight) == (2.5, 3.0)


def test_numbers_that_are_not_finite_are_counted_beside_the_total(reported: Reported) -> None:
    reported.report_numbers(loss=math.nan)
    reported.report_numbers(loss=2.0)
    loss = reported.merged.bring_up_to_date(reported.history.metrics())["loss"]
    assert (loss.total, loss.weight, loss.not_finite) == (2.0, 2.0, 1)


def test_a_name_that_comes_to_mean_another_metric_shows_the_new_one(reported: Reported) -> None:
    reported.report(auc=AUC()([0, 1], [0.1, 0.2]))
    before = reported.merged.states()
    exact = AUC(buckets=None)
    reported.report(auc=exact([0, 1], [5.0, -3.0]))
    now = reported.merged.states()
    assert now["auc"] == exact([0, 1], [5.0, -3.0])
    # A closure of the old one ends; the mark from before is still a part of it.
    reported.report(auc=AUC()([0], [0.9]))
    assert reported.merged.states().since(before)["auc"] == AUC()([0], [0.9])


def test_a_value_that_there_is_not_yet_is_drawn_as_nan(reported: Reported) -> None:
    reported.report(auc=AUC()([1], [0.9]))
    reported.merged.draw(100.0)
    assert math.isnan(reported.values("auc")[0])


def test_what_cannot_be_merged_is_left_out_and_reported_once(
    reported: Reported, caplog: pytest.LogCaptureFixture
) -> None:
    full = AUC()([1], [0.5], [2.0**31])
    for _ in range(11):
        full = full + full
    reported.report(auc=full)
    assert reported.merged.states()["auc"] == full
    for _ in range(3):
        reported.report(auc=AUC()([1], [0.5], [2.0**31]))
    reported.report(loss=MEAN([1.0]), auc=full)
    reported.merged.states()
    reported.report(auc=full)
    assert reported.merged.states()["auc"] == full
    assert reported.merged.states()["loss"].result() == 1.0
    assert [record.message for record in caplog.records if "2**43" in record.message] != []
    assert len(caplog.records) == 1


def test_a_metric_of_the_users_that_raises_ends_nothing(
    reported: Reported, caplog: pytest.LogCaptureFixture
) -> None:
    reported.report(broken=Broken()([1.0]), loss=MEAN([1.0]))
    reported.merged.draw(100.0)
    figures = reported.merged.bring_up_to_date(reported.history.metrics())
    assert list(figures) == ["loss", "batch_loss"]
    assert [record.message for record in caplog.records] == [
        "broken: Broken() has no value: ZeroDivisionError('of the user')"
    ]


def test_a_handler_of_the_log_may_ask_for_metrics(reported: Reported) -> None:
    class Asking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            asked.append(len(reported.merged.states()))

    asked: list[int] = []
    handler = Asking()
    logging.getLogger("psnb").addHandler(handler)
    try:
        reported.merged.add(b"no pickle")
        reported.report(loss=MEAN([1.0]))
        reported.merged.states()
    finally:
        logging.getLogger("psnb").removeHandler(handler)
    assert asked == [1]


def test_metrics_beyond_the_most_are_dropped_and_reported_once(
    reported: Reported, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(MOST_METRICS + 3):
        reported.report(**{f"of_row_{step}": MEAN([1.0])})
    reported.report(of_row_0=MEAN([3.0]))
    states = reported.merged.states()
    assert len(states) == MOST_METRICS
    assert states["of_row_0"].result() == 2.0
    assert len(caplog.records) == 1


def test_slices_are_those_of_the_epoch_so_far(reported: Reported) -> None:
    reported.report(loss=MEAN([9.0], by=["before"]))
    reported.merged.begin(100.0)
    reported.report(loss=MEAN([1.0, 3.0], by=["DE", "FR"]), other=MEAN([1.0]))
    reported.report(loss=MEAN([5.0], by=["DE"]))
    reported.merged.draw(101.0)
    (name,) = reported.history.slices()
    table = reported.history.slices()[name]
    assert [*table.values()] == [("DE", 3.0, 2), ("FR", 3.0, 1)]
    assert reported.values("loss")[-1] == 3.0


def test_the_value_of_a_sample_of_groups_is_warned_of_once(
    reported: Reported, caplog: pytest.LogCaptureFixture
) -> None:
    few = GroupAUC(4)
    for _ in range(3):
        reported.report(auc=few([0, 1] * 4, [0.1, 0.2] * 4, groups=[1, 1, 2, 2, 3, 3, 4, 4]))
        reported.merged.draw(100.0, period=0.0)
    (warning,) = caplog.messages
    assert "auc: of 50.0% of the examples" in warning


def test_large_states_are_not_computed_again_all_the_time(
    reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))  # so each look at it is a second later: a state takes one
    monkeypatch.setattr("psnb._src.monitor.metrics.monotonic", lambda: float(next(clock)))
    reported.report(loss=MEAN([1.0]))
    reported.merged.draw(100.0)

    def read() -> float:
        return reported.merged.bring_up_to_date(reported.history.metrics())["loss"].last

    assert read() == 1.0
    reported.report(loss=MEAN([3.0]))
    assert read() == 1.0
    reported.merged.draw(101.5)
    assert reported.values("loss") == [1.0]
    found = [read() for _ in range(30)]
    assert found[0] == 1.0
    assert found[-1] == 2.0
    reported.merged.draw(130.0)
    assert reported.values("loss") == [1.0, 2.0]


def test_two_metrics_by_one_name_in_an_epoch_are_told(
    reported: Reported, caplog: pytest.LogCaptureFixture
) -> None:
    auc = AUC()
    reported.report(auc=auc([0, 1], [0.1, 0.2]))
    reported.merged.begin(0.0)
    reported.report(auc=auc([0, 1], [0.1, 0.2], by=["a", "b"]))  # a changed cell may
    reported.merged.states()
    assert not caplog.messages
    reported.report(auc=auc([0, 1], [0.1, 0.2]))
    reported.merged.states()
    (warning,) = caplog.messages
    assert "its value is of some examples only; give each a name of its own" in warning


def test_numbers_by_the_name_of_a_metric_are_told(
    reported: Reported, caplog: pytest.LogCaptureFixture
) -> None:
    reported.report(loss=MEAN([1.0]))
    reported.merged.states()
    reported.report_numbers(loss=2.0)
    reported.merged.states()
    (warning,) = caplog.messages
    assert "psnb.report(loss=...): numbers are left out" in warning
    assert "give them another name" in warning


@pytest.mark.parametrize("first", ["number", "state"])
def test_one_closure_cannot_report_a_number_and_a_metric_by_one_name(first: str) -> None:
    states = ReportedStates()
    adds = [lambda: states.add_numbers({"auc": 0.5}), lambda: states.add({"auc": MEAN([0.5])})]
    one, other = adds if first == "number" else adds[::-1]
    one()
    with pytest.raises(ConfigurationError, match="numbers or states of a metric, not both"):
        other()
