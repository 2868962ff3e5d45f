"""The history of training."""

from __future__ import annotations

import json
import math

import pytest

import psnb
from psnb._src.training.history import loaded_rows, saved_rows
from psnb.errors import ConfigurationError
from psnb.metrics import SliceRow, SliceTable

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
    with pytest.raises(ConfigurationError, match="no column 'auc': did you mean 'val_auc'"):
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


def test_slices_travel_as_json_with_the_types_of_their_keys() -> None:
    rows = (SliceRow("DE", math.nan, 3), SliceRow(True, 0.5, 2), SliceRow(7, math.inf, 1))
    tables = {"auc": SliceTable(rows, SliceRow(None, 0.25, 9)), "loss": SliceTable(rows[:1])}
    text = json.dumps(saved_rows((psnb.EpochRow(1, {}, 5, 1, 1.0, tables),)), allow_nan=False)
    (row,) = loaded_rows(json.loads(text))
    assert row.slices == tables
    assert [type(key) for key in row.slices["auc"]] == [str, bool, int]


def test_rows_of_an_earlier_psnb_have_no_slices() -> None:
    saved = saved_rows(ROWS)
    for each in saved:
        del each["slices"]
    assert loaded_rows(saved) == ROWS


def test_a_history_has_the_slices_of_the_latest_epoch_with_the_metric() -> None:
    first, second = (SliceTable((SliceRow("DE", value, 1),)) for value in (0.5, 0.75))
    rows = (
        psnb.EpochRow(1, {}, None, 1, 1.0, {"auc": first, "loss": first}),
        psnb.EpochRow(2, {}, None, 1, 1.0, {"auc": second}),
    )
    assert psnb.TrainingHistory(rows).slices == {"auc": second, "loss": first}
