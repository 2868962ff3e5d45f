"""The line in the terminal."""

from __future__ import annotations

import io
import itertools
import re
import sys
from dataclasses import replace

import pytest

from psnb._src.monitor import progress_line
from psnb._src.monitor.progress_line import ProgressLine, WorkDone, describe, wanted
from psnb._src.monitor.statistics import TrainingProgress
from tests.monitor.viewed import WORKER, FakeViewed, reporting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_is_shown_in_a_terminal_only_by_default() -> None:
    assert wanted(None, False, Terminal())
    assert not wanted(None, False, io.StringIO())
    assert wanted(True, False, io.StringIO())
    assert not wanted(False, False, Terminal())


def test_a_process_without_stderr_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert not wanted(None, False)


def test_it_tells_state_work_and_metrics() -> None:
    viewed = reporting(0.25)
    viewed.set(state="running", eta=75.2, closures_per_second=1234.0)
    text = describe(viewed.statistics())
    figures = ("10 completed", "7 to do", "1,234/s", "1:15 left", "1 failed", "loss 0.25")
    for part in ("running", *figures):
        assert part in text


def test_it_tells_what_takes_the_workers_long_until_closures_end() -> None:
    viewed = FakeViewed(workers=(replace(WORKER, activity="compiling step"),))
    assert "compiling step" in describe(viewed.statistics())
    viewed.set(closures_per_second=3.0)
    assert "compiling" not in describe(viewed.statistics())


def test_of_an_epoch_it_tells_the_parts_that_are_done(
    notebook: list[tuple[dict[str, str], str, bool]],
) -> None:
    viewed = FakeViewed(state="running", eta=0.0)
    with ProgressLine(viewed, delay=0.0, epoch=lambda: WorkDone(6, 16, "parts of the epoch")):
        viewed.wait_for_looks(1)
    shown = notebook[-1][0]
    assert "6 of 16 parts of the epoch" in shown["text/plain"]
    assert 'value="6" max="16"' in shown["text/html"]
    assert not re.search("to do|left", shown["text/plain"])


def test_of_training_it_tells_the_time_left_of_all_epochs(
    notebook: list[tuple[dict[str, str], str, bool]],
) -> None:
    training = TrainingProgress(2, 3, 6, 16)
    viewed = FakeViewed(state="running", eta=3725.0, training=training)
    with ProgressLine(viewed, delay=0.0, epoch=lambda: WorkDone(6, 16, "batches", "epoch 2 of 3")):
        viewed.wait_for_looks(1)
    assert "62:05 left" in notebook[-1][0]["text/plain"]


def test_of_training_of_which_that_is_not_known_it_tells_no_time_left_of_the_epoch(
    notebook: list[tuple[dict[str, str], str, bool]],
) -> None:
    viewed = FakeViewed(state="paused", eta=None, training=TrainingProgress(2, 3, 6, 16))
    batches = itertools.count(6)
    with ProgressLine(
        viewed, delay=0.0, epoch=lambda: WorkDone(next(batches), 1000, "batches", "epoch 2 of 3")
    ):
        viewed.wait_for_looks(3)
    assert not [each for each, *_ in notebook if " left" in each["text/plain"]]


def test_of_an_epoch_it_tells_its_name_and_the_time_left() -> None:
    now = FakeViewed(state="running", examples_per_second=1234.0).statistics()
    shown = describe(now, WorkDone(30, 40, "batches", "epoch 2 of 3"), 65.0)
    for part in ("epoch 2 of 3", "30 of 40 batches", "1,234 examples/s", "1:05 left"):
        assert part in shown


def test_it_is_drawn_while_the_work_goes_on() -> None:
    viewed, terminal = FakeViewed(state="running"), Terminal()
    with ProgressLine(viewed, terminal, delay=0.0):
        viewed.wait_for_looks(3)
    assert "7 to do" in terminal.getvalue()


def test_what_ends_soon_shows_nothing() -> None:
    terminal = Terminal()
    with ProgressLine(FakeViewed(), terminal, delay=60.0):
        pass
    assert terminal.getvalue() == ""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, str], str, bool]]:
    """What is displayed in a process that is taken for a notebook's kernel."""
    shown: list[tuple[dict[str, str], str, bool]] = []

    def display(bundle: dict[str, str], *, raw: bool, display_id: str, update: bool) -> None:
        shown.append((bundle, display_id, update))

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(progress_line, "in_notebook", lambda: True)
    return shown


def test_in_a_notebook_it_is_one_output_that_changes_and_ends_with_the_last_state(
    notebook: list[tuple[dict[str, str], str, bool]],
) -> None:
    viewed = FakeViewed(state="running")
    with ProgressLine(viewed, delay=0.0):
        viewed.wait_for_looks(3)
        viewed.set(state="idle", queued=0, in_flight=0)
    assert len({identity for _, identity, _ in notebook}) == 1
    assert [update for _, _, update in notebook] == [False] + [True] * (len(notebook) - 1)
    assert notebook[0][0]["text/plain"].startswith("running")
    assert notebook[-1][0]["text/plain"].startswith("idle, 10 completed, 0 to do")
    assert "white-space:nowrap" in notebook[0][0]["text/html"]


@pytest.mark.usefixtures("notebook")
def test_a_live_dashboard_is_progress_enough() -> None:
    assert wanted(None, watched=False)
    assert not wanted(None, watched=True)
    assert wanted(True, watched=True)


def test_a_narrow_terminal_shows_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    viewed, terminal = FakeViewed(state="running"), Terminal()
    with ProgressLine(viewed, terminal, delay=0.0):
        viewed.wait_for_looks(3)
    assert "…" in terminal.getvalue()
    assert terminal.getvalue().count("\n") == 1  # at the end, before it is wiped out
