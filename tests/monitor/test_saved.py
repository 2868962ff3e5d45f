"""When the static summaries that a saved notebook keeps are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from psnb._src.monitor.display import INTERVAL, KEPT, SavedSummaries
from psnb._src.monitor.html.summary import moment
from tests.monitor.notebook_outputs import notebook_outputs
from tests.monitor.updates import full_update

START = 1_700_000_000.0


@pytest.fixture
def outputs() -> Iterator[list[dict[str, Any]]]:
    yield from notebook_outputs()


@pytest.fixture
def saved(outputs: list[dict[str, Any]]) -> SavedSummaries:
    saved = SavedSummaries()
    saved.show(full_update(), "an-output")
    return saved


def due(saved: SavedSummaries, **summary: Any) -> bool:
    return saved.due(full_update(summary=summary)["summary"])


def test_a_summary_says_of_when_it_is_and_what_that_means_with_and_without_its_kernel(
    saved: SavedSummaries, outputs: list[dict[str, Any]]
) -> None:
    (shown,) = outputs
    text = shown["data"]["text/html"]
    assert f"Saved at {moment(START)}, and not live: it was “running” then." in text
    assert "If the kernel still runs, the panel “psnb” shows how it is now" in text
    assert "if the kernel was restarted or shut down, it has ended" in text
    assert shown["transient"] == {"display_id": "an-output"}


def test_it_is_due_some_seconds_after_figures_have_changed(saved: SavedSummaries) -> None:
    assert not due(saved, completed=12346, time=START + INTERVAL - 1)
    assert due(saved, completed=12346, time=START + INTERVAL)


def test_it_is_due_at_once_when_the_state_has_changed(saved: SavedSummaries) -> None:
    assert due(saved, state="idle", time=START + 0.25)


def test_it_is_not_due_while_only_time_passes(saved: SavedSummaries) -> None:
    assert not due(saved, time=START + 100 * INTERVAL, elapsed=5000.0, eta=3.0)


def test_a_new_summary_replaces_the_old_one(
    saved: SavedSummaries, outputs: list[dict[str, Any]]
) -> None:
    saved.write(full_update(summary={"completed": 54321, "time": START + 60}))
    replaced = outputs[-1]
    assert replaced["update"]
    assert replaced["transient"] == {"display_id": "an-output"}
    assert "54,321" in replaced["data"]["text/html"]
    assert not due(saved, completed=54322, time=START + 61)


def test_an_older_summary_does_not_replace_a_newer_one(
    saved: SavedSummaries, outputs: list[dict[str, Any]]
) -> None:
    saved.write(full_update(summary={"completed": 54321, "time": START + 60}))
    count = len(outputs)
    saved.write(full_update(summary={"completed": 54320, "time": START + 59}))
    assert len(outputs) == count


def test_at_the_end_it_is_emptied_and_nothing_is_written_any_more(
    saved: SavedSummaries, outputs: list[dict[str, Any]]
) -> None:
    saved.end()
    assert outputs[-1]["data"]["text/html"] == ""
    count = len(outputs)
    saved.write(full_update())
    saved.end()
    assert len(outputs) == count
    assert not due(saved, state="idle")


def test_of_a_cell_that_runs_again_and_again_the_newest_outputs_are_replaced(
    saved: SavedSummaries, outputs: list[dict[str, Any]]
) -> None:
    for number in range(KEPT):
        saved.show(full_update(), f"output-{number}")
    emptied = [each for each in outputs if each["data"]["text/html"] == ""]
    assert [each["transient"]["display_id"] for each in emptied] == ["an-output"]
    before = len(outputs)
    saved.write(full_update())
    written = [each["transient"]["display_id"] for each in outputs[before:]]
    assert written == [f"output-{number}" for number in range(KEPT)]
