"""What a run of tests costs: its last lines name the files that took longest, and all CPU time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psutil
import pytest

SHOWN = 12
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
    """A plugin of pytest; in a process of pytest-xdist it only tells the one that collects."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()
        self._cpu = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's time, with that of its fixtures, to that of its file."""
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that collects what this one has taken, while its own are there."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu"] = cpu_seconds()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a process of pytest-xdist has told."""
        self._cpu += getattr(node, "workeroutput", {}).get("cpu", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the last lines of a run."""
        terminalreporter.section("cost")
        for file, seconds in self._seconds.most_common(SHOWN):
            terminalreporter.write_line(f"{seconds:7.1f} s  {file}")
        if self._cpu:  # of others, which may live on for a moment
            own = psutil.Process().cpu_times()
            self._cpu += own.user + own.system
        else:
            self._cpu = cpu_seconds()
        minutes, files = sum(self._seconds.values()) / 60, len(self._seconds)
        terminalreporter.write_line(
            f"{minutes:.1f} minutes of tests in {files} files; {self._cpu / 60:.1f} minutes of CPU "
            f"time, that of all their processes included"
        )
