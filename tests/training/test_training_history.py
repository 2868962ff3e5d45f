"""The history of training, and its printed lines."""

from __future__ import annotations

import json
import math

import pytest

import psnb
from psnb._src.training.fetch_lines import FetchLines
from psnb._src.training.history import loaded_rows, saved_rows
from psnb.errors import ConfigurationError

ROWS = (
    psnb.EpochRow(1, {"loss": 0.5}, 1000, 10, 2.0),
    psnb.EpochRow(2, {"loss": 0.25, "val_auc": 0.75}, None, 10, 1.0),
)


def test_a_history_gives_columns_by_name() -> None:
    history = psnb.TrainingHistory(ROWS)
    assert history["loss"] == [0.5, 0.25]
    assert math.isnan(history["val_auc"][0])
    assert history["val_auc"][1] == 0.75
    assert history["examples"] == [1000, None]
    with pytest.raises(ConfigurationError, match=r"no 'auc'; it has .*seconds, loss, val_auc"):
        history["auc"]


def test_a_history_shows_a_table_and_why_it_ended() -> None:
    shown = repr(psnb.TrainingHistory(ROWS, "interrupted")).splitlines()
    assert shown[0].split() == ["epoch", "batches", "examples", "seconds", "loss", "val_auc"]
    assert shown[1].split() == ["1", "10", "1,000", "2.0", "0.5000", "-"]
    assert shown[-1] == "stopped: interrupted"
    page = psnb.TrainingHistory(ROWS, "<b>")._repr_html_()
    assert "0.5000" in page
    assert "&lt;b&gt;" in page


def test_rows_travel_as_json() -> None:
    assert loaded_rows(json.loads(json.dumps(saved_rows(ROWS)))) == ROWS


def test_a_metric_that_is_no_finite_number_travels_as_json_too() -> None:
    values = {"auc": math.nan, "loss": math.inf, "val_loss": -math.inf}
    text = json.dumps(saved_rows((psnb.EpochRow(1, values, None, 10, 1.0),)), allow_nan=False)
    (row,) = loaded_rows(json.loads(text))
    assert math.isnan(row.metrics["auc"])
    assert (row.metrics["loss"], row.metrics["val_loss"]) == (math.inf, -math.inf)


def test_a_line_is_due_once_a_period() -> None:
    lines = FetchLines(["loss"], 100)
    assert [batch for batch in (99, 100, 150, 205, 207, 310) if lines.due(batch)] == [100, 205, 310]
    lines.begin()
    assert lines.due(100)
    assert not FetchLines([], 1).due(1)


def test_a_line_reads_as_paddles() -> None:
    lines = FetchLines(["loss", "auc", "batch_auc"], 100)
    values = {"loss": 0.43123, "auc": 0.7812, "batch_auc": 0.7901}
    expected = "epoch 1 batch 400: loss 0.4312 auc 0.7812 batch_auc 0.7901"
    assert lines.line(1, 400, values) == expected
    assert lines.line(1, 500, {"auc": 0.5}) == "epoch 1 batch 500: loss - auc 0.5000 batch_auc -"


def test_a_name_that_is_not_reported_is_refused_with_names_that_are() -> None:
    lines = FetchLines(["loss", "lossy"], 100)
    assert lines.line(1, 100, {}) == "epoch 1 batch 100: loss - lossy -"
    with pytest.raises(
        ConfigurationError,
        match=r"'lossy', which the step does not report: it reports 'auc', 'loss'\. Did you mean "
        r"'loss'\? psnb\.report\(lossy=\.\.\.\) in the step adds it",
    ):
        lines.line(1, 200, {"loss": 0.5, "auc": 0.5})


def test_a_name_is_checked_once_also_before_a_line_is_due() -> None:
    lines = FetchLines(["lossy"], 100)
    lines.check({})
    with pytest.raises(ConfigurationError, match="'lossy', which the step does not report"):
        lines.check({"loss": 0.5})
    assert lines.line(1, 100, {"loss": 0.5}) == "epoch 1 batch 100: lossy -"
