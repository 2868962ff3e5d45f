"""The lines that a trainer prints."""

from __future__ import annotations

from typing import Any

import pytest

from psnb._src.training.epoch_progress import FetchLines
from psnb.errors import ConfigurationError


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
        match=r"psnb\.report\(lossy=\.\.\.\): there is no metric 'lossy': did you mean 'loss'\?",
    ):
        lines.line(1, 200, {"loss": 0.5, "auc": 0.5})


def test_a_name_is_checked_once_also_before_a_line_is_due() -> None:
    lines = FetchLines(["lossy"], 100)
    lines.check({})  # as of an epoch without batches
    with pytest.raises(ConfigurationError, match="no metric 'lossy'"):
        lines.check({"loss": 0.5})
    assert lines.line(1, 100, {"loss": 0.5}) == "epoch 1 batch 100: lossy -"


def test_what_validation_gave_has_a_line_where_lines_are_wanted() -> None:
    found = {"auc": 0.78125, "loss": 0.5}
    assert FetchLines(["loss"], 100).validation(2, found) == (
        "epoch 2: val_auc 0.7812 val_loss 0.5000"
    )
    assert not FetchLines([], 100).validation(2, found)


def test_a_metric_of_validation_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="'val_auc', a metric of validation"):
        FetchLines(["loss", "val_auc"], 100)


@pytest.mark.parametrize("names", [3, [3], None])
def test_what_is_no_name_of_a_metric_is_refused(names: Any) -> None:
    with pytest.raises(ConfigurationError, match="fetch takes names of metrics"):
        FetchLines(names, 100)


def test_a_step_that_reports_nothing_all_epoch_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"psnb\.report\(loss=.*; there are none"):
        FetchLines(["loss"], 100).check({}, over=True)
    FetchLines([], 100).check({}, over=True)  # where no lines are wanted, it may
