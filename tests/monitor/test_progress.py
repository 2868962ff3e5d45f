"""The line in the terminal."""

from __future__ import annotations

import io
import sys

import pytest

from psnb._src.monitor.shown.progress import ProgressLine, describe, wanted
from tests.monitor.viewed import FakeViewed, reporting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_is_shown_in_a_terminal_only_unless_told() -> None:
    assert wanted(None, Terminal())
    assert not wanted(None, io.StringIO())
    assert wanted(True, io.StringIO())
    assert not wanted(False, Terminal())


def test_a_process_without_stderr_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert not wanted(None)


def test_it_tells_state_work_and_metrics() -> None:
    viewed = reporting(0.25)
    viewed.set(state="running", eta=75.2, closures_per_second=1234.0)
    text = describe(viewed.statistics())
    figures = ("10 completed", "7 to do", "1,234/s", "1:15 left", "1 failed", "loss 0.25")
    for part in ("running", *figures):
        assert part in text


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
