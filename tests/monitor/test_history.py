"""The bounded history of reported metrics."""

import math
import threading

import numpy as np
import pytest

from psnb._src.monitor.history import MOST_EPOCHS, MOST_METRICS, MOST_REWINDS, SMOOTHING, History


def filled(count: int, capacity: int = 64) -> History:
    history = History(capacity)
    for step in range(1, count + 1):
        history.add(float(step), {"loss": float(step)})
    return history


def test_a_new_history_has_no_metrics() -> None:
    assert History().metrics() == {}


def test_metrics_hold_count_and_last_value() -> None:
    metric = filled(4).metrics()["loss"]
    assert (metric.count, metric.last) == (4, 4.0)


def test_metrics_keep_the_order_in_which_they_were_first_reported() -> None:
    history = History()
    history.add(0.0, {"z": 1.0, "a": 1.0})
    history.add(1.0, {"b": 1.0, "a": 1.0})
    assert list(history.metrics()) == ["z", "a", "b"]


def test_a_report_leaves_the_metrics_that_it_does_not_name_alone() -> None:
    history = filled(3)
    history.add(4.0, {"auc": 0.5})
    assert history.metrics()["loss"].count == 3


def test_metrics_beyond_the_most_are_dropped_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    history = History(capacity=4)
    for step in range(MOST_METRICS + 2):
        history.add(0.0, {f"of_row_{step}": 1.0, "loss": 1.0})
    assert len(history.metrics()) == MOST_METRICS
    assert history.metrics()["loss"].count == MOST_METRICS + 2
    assert [record.message.split(":")[0] for record in caplog.records] == [
        f"psnb.report(of_row_{MOST_METRICS - 1}=...)"
    ]


def test_the_smoothed_value_is_the_mean_of_the_first_values() -> None:
    assert filled(10).metrics()["loss"].smoothed == pytest.approx(5.5)


def test_the_smoothed_value_of_one_that_is_a_mean_already_is_the_value() -> None:
    history = History()
    for value in (0.5, math.nan, 0.75):
        history.add(0.0, {"auc": value}, averaged=False)
        assert history.metrics()["auc"].smoothed == pytest.approx(value, nan_ok=True)
    assert history.series("auc")["smoothed"].tolist()[-1] == 0.75


def test_the_smoothed_value_is_an_exponential_average_later() -> None:
    history = History()
    for step in range(200):
        history.add(float(step), {"loss": 1.0})
    history.add(200.0, {"loss": 2.0})
    assert history.metrics()["loss"].smoothed == pytest.approx(1.0 + SMOOTHING)


def test_a_nan_does_not_poison_the_smoothed_value() -> None:
    history = History()
    for value in (1.0, math.nan, 1.0):
        history.add(0.0, {"loss": value})
    metric = history.metrics()["loss"]
    assert (metric.smoothed, metric.last) == (1.0, 1.0)


def test_a_nan_is_the_last_value_when_it_came_last() -> None:
    history = History()
    history.add(0.0, {"loss": math.nan})
    assert math.isnan(history.metrics()["loss"].last)


def test_a_series_has_one_point_for_each_value_while_it_is_short() -> None:
    series = filled(5).series("loss")
    assert series["step"].tolist() == [1, 2, 3, 4, 5]
    assert series["time"].tolist() == series["value"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert series["smoothed"].tolist() == [1.0, 1.5, 2.0, 2.5, 3.0]


def test_a_series_has_the_documented_types() -> None:
    series = filled(5).series("loss")
    assert {name: array.dtype for name, array in series.items()} == {
        "step": np.int64,
        "time": np.float64,
        "value": np.float64,
        "smoothed": np.float64,
        "examples": np.float64,
    }


@pytest.mark.parametrize("count", [63, 64, 65, 1000, 5000])
def test_a_series_stays_below_its_capacity(count: int) -> None:
    assert len(filled(count).series("loss")["step"]) < 64


def test_a_long_series_keeps_at_least_half_of_its_capacity() -> None:
    assert len(filled(5000).series("loss")["step"]) >= 32


def test_a_long_series_is_evenly_spaced_and_spans_the_whole_run() -> None:
    steps = filled(5000).series("loss")["step"]
    stride = steps[1] - steps[0]
    assert set(np.diff(steps)) == {stride}
    assert steps[0] <= stride
    assert steps[-1] > 5000 - stride


def test_figures_stay_exact_when_the_series_is_thinned_out() -> None:
    metric = filled(5000).metrics()["loss"]
    assert (metric.count, metric.last) == (5000, 5000.0)


def test_a_series_taken_earlier_does_not_change() -> None:
    history = filled(63)
    series = history.series("loss")
    before = series["step"].copy()
    history.add(64.0, {"loss": 0.0})
    assert np.array_equal(series["step"], before)


@pytest.mark.parametrize("capacity", [8, 64, 10_000])
def test_reports_that_come_together_are_kept_as_if_one_by_one(capacity: int) -> None:
    values = [math.nan if number % 7 == 3 else math.sin(number) for number in range(200)]
    reports = [(float(number), {"loss": value}) for number, value in enumerate(values)]
    alone, together = History(capacity), History(capacity)
    for when, report in reports:
        alone.add(when, report)
    for start in range(0, 200, 23):
        together.add_all(reports[start : start + 23])
    assert together.metrics() == alone.metrics()
    for name, column in alone.series("loss").items():
        np.testing.assert_array_equal(together.series("loss")[name], column)


def test_an_unknown_series_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        filled(1).series("accuracy")


def test_no_report_is_lost_between_threads() -> None:
    history = History(64)
    together = threading.Barrier(4)

    def report() -> None:
        together.wait()
        for step in range(500):
            history.add(float(step), {"loss": 1.0})

    threads = [threading.Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert history.metrics()["loss"].count == 2000


def test_all_metrics_share_the_steps_of_the_one_that_is_reported_most_often() -> None:
    history = History()
    history.add_all(
        [(float(n), {"loss": 1.0, **({"rare": 2.0} if n % 3 == 2 else {})}) for n in range(6)]
    )
    history.add(6.0, {"auc": 0.5}, averaged=False)
    history.add(7.0, {"loss": 1.0, "examples": 32.0})
    history.add(7.0, {"rate": 0.1})  # of the same closure
    steps = {name: history.series(name)["step"].tolist() for name in history.metrics()}
    assert steps == {
        "loss": [1, 2, 3, 4, 5, 6, 7],
        "rare": [3, 6],
        "auc": [6],
        "rate": [7],
        "examples": [7],
    }


def test_epochs_begin_at_steps_and_are_numbered() -> None:
    history = filled(3)
    history.begin_epoch(4.0, 7)
    history.add(5.0, {"loss": 1.0})
    history.begin_epoch(6.0, None)
    assert history.epochs() == ((7, 3, 4.0), (8, 4, 6.0))


def test_of_very_many_epochs_some_are_kept_from_first_to_last() -> None:
    history = History()
    for number in range(1, 2 * MOST_EPOCHS + 2):
        history.begin_epoch(float(number), number)
    kept = [each.epoch for each in history.epochs()]
    assert MOST_EPOCHS / 2 <= len(kept) <= MOST_EPOCHS
    assert (kept[0], kept[-1]) == (1, 2 * MOST_EPOCHS + 1)


def test_validation_stands_at_the_step_of_training() -> None:
    history = History()
    for _ in range(5):
        history.add(0.0, {"train/auc": 0.5})
    history.add_validation(7.0, {"train/auc": 0.75, "other": 1.0})
    history.add(8.0, {"train/auc": 0.5})
    history.add_validation(9.0, {"train/auc": 0.8})
    found = history.series("val_train/auc")
    assert found["step"].tolist() == [5, 6]
    assert found["value"].tolist() == found["smoothed"].tolist() == [0.75, 0.8]
    assert found["time"].tolist() == [7.0, 9.0]
    assert history.series("val_other")["step"].tolist() == [5]  # nobody reported it


def test_what_says_nothing_of_the_model_comes_last() -> None:
    history = History()
    history.add(0.0, {"examples": 1.0, "programs": 1.0, "loss": 0.5})
    history.add_validation(0.0, {"loss": 0.25})
    assert list(history.metrics()) == ["loss", "val_loss", "examples", "programs"]


def test_averages_begin_anew_after_a_cut() -> None:
    history = filled(4)
    history.cut(4.5, 2.0)
    history.add(5.0, {"loss": 100.0})
    history.add(6.0, {"loss": 100.0})
    assert history.series("loss")["smoothed"][-2:].tolist() == [100.0, 100.0]
    assert history.metrics()["loss"].count == 6
    assert history.rewinds() == ((4, 4.5, 0.0, 2.0),)


def test_a_moment_divides_points_also_if_the_clocks_of_workers_differ() -> None:
    history = History()
    history.add(100.0, {"loss": 1.0, "examples": 8.0})
    moment = history.moment(50.0)
    history.add(10.0, {"loss": 1.0})
    history.add_validation(20.0, {"loss": 1.0})
    history.cut(30.0, moment)
    history.add(5.0, {"loss": 1.0})
    ((step, back, examples, to),) = history.rewinds()
    assert (step, examples, to) == (2, 8.0, moment)
    first, second, third = history.series("loss")["time"].tolist()
    (validated,) = history.series("val_loss")["time"].tolist()
    assert first <= moment < second <= validated <= back < third


def test_of_very_many_rewinds_the_newest_are_kept_and_epochs_do_not_push_them_out() -> None:
    history = filled(3)
    for number in range(MOST_REWINDS + 1):
        history.cut(10.0 + number, 2.0)
    for number in range(2 * MOST_EPOCHS):
        history.begin_epoch(1000.0 + number, None)
    kept = [each.time for each in history.rewinds()]
    assert kept == [11.0 + number for number in range(MOST_REWINDS)]
