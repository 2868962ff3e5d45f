"""What a run of tests costs: its last lines name the files that took most, in CPU time."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import psutil
import pytest

SHOWN = int(os.environ.get("PSNB_COST_FILES", "12"))
"""Files named at the end of a run."""


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all that it has started, ended ones included.

    Not of those whose parent ended before them: what they took is counted nowhere.
    """
    own = psutil.Process()
    total = 0.0
    for each in (own, *own.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Cost:
    """A plugin of pytest; a process of pytest-xdist sends what it took to the one that collects."""

    def __init__(self) -> None:
        self._files: Counter[str] = Counter()
        self._file, self._since = "starting, collecting and ending", 0.0
        self._seconds = 0.0
        self._counts = True

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Leave counting to the processes that run tests, where there are others."""
        self._counts = not getattr(session.config.option, "numprocesses", None)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Count what the last file took when the next begins: each look reads all processes."""
        file = nodeid.partition("::")[0]
        if self._counts and file != self._file:
            self._look(file)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's time, with that of its fixtures."""
        self._seconds += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send what this process has taken, while those that it has started are there."""
        if self._counts:
            self._look("")
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu"] = dict(self._files)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a process of pytest-xdist has sent."""
        self._files.update(getattr(node, "workeroutput", {}).get("cpu", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the last lines of a run."""
        terminalreporter.section("cost")
        for file, seconds in self._files.most_common(SHOWN):
            terminalreporter.write_line(f"{seconds:7.1f} s  {file}")
        cpu = sum(self._files.values())
        terminalreporter.write_line(
            f"{self._seconds / 60:.1f} minutes of tests; {cpu / 60:.1f} minutes of CPU time in "
            f"{len(self._files)} files, that of all processes that they started included"
        )

    def _look(self, file: str) -> None:
        now = cpu_seconds()
        self._files[self._file] += now - self._since
        self._file, self._since = file, now
