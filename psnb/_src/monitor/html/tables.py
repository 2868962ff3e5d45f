"""Tables in HTML, and records as tuples that a notebook shows as such, a terminal in lines. Pure.

They need no script and no style sheet, and are readable on light and dark pages.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from psnb._src.monitor.events import Event
from psnb._src.monitor.failures import Failure
from psnb._src.monitor.statistics import Statistics
from psnb._src.monitor.worker_output import OutputLine
from psnb._src.utils.phases import PHASES, PhaseStatistics
from psnb._src.utils.text import text_table

MOST_ROWS = 50
"""Further rows are only counted, because the page is saved in the notebook."""

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals["most_rows"] = MOST_ROWS


def html_table(what: str, head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table; nothing if there are no rows.

    Parameters
    ----------
    what : str
        What the rows are, to name the ones that are only counted.
    head : sequence of str
        The names of the columns.
    rows : sequence of tuple
        The cells; all but `markupsafe.Markup` in them is escaped.
    """
    macros: Any = TEMPLATES.get_template("tables.html").module
    return str(macros.table(what, head, rows)).strip()


class Events(tuple[Event, ...]):
    """What happened, the oldest first; all that a tuple can."""

    __slots__ = ()

    def __repr__(self) -> str:
        lines = (f"{_clock(each.time)}  {each.kind.value}: {each.message}" for each in self)
        return "\n".join(lines) or "no events"

    def _repr_html_(self) -> str:
        rows = [
            (_clock(each.time), each.kind.value, each.worker, each.message)
            for each in self[-MOST_ROWS:]
        ]
        return _latest("events", ("time", "event", "worker", "what happened"), rows, len(self))


class Failures(tuple[Failure, ...]):
    """The closures that raised, the oldest first; all that a tuple can."""

    __slots__ = ()

    def __repr__(self) -> str:
        lines = [
            f"[{index}] {_clock(each.time)}  {each.closure} on {each.worker}: {each.error}"
            for index, each in enumerate(self)
        ]
        return "\n".join(lines) or "no failures"

    def _repr_html_(self) -> str:
        first = max(0, len(self) - MOST_ROWS)
        rows = [
            (f"[{index}]", _clock(each.time), each.worker, each.closure, _UNFOLDING.format(each))
            for index, each in enumerate(self[first:], first)
        ]
        return _latest("failures", ("", "time", "worker", "closure", "error"), rows, len(self))


class Output(tuple[OutputLine, ...]):
    """What closures have written on a worker, the oldest line first; all that a tuple can."""

    left_out: int
    """Lines before them that are not kept."""

    def __new__(cls, lines: Sequence[OutputLine], left_out: int = 0) -> Output:
        """Return the lines."""
        self = super().__new__(cls, lines)
        self.left_out = left_out
        return self

    def __repr__(self) -> str:
        lines = [f"{_clock(each.time)}  {each.closure}: {each.text}" for each in self]
        if self.left_out:
            lines.insert(0, f"... {self.left_out:,} lines before these are not kept")
        return "\n".join(lines) or "nothing was printed"


class WorkerPhases(NamedTuple):
    """What the time of a worker's closures went to."""

    worker: str
    phases: PhaseStatistics


class Phases(tuple[WorkerPhases, ...]):
    """What the time of closures went to, by worker; all that a tuple can."""

    __slots__ = ()

    @classmethod
    def of(cls, statistics: Statistics) -> Phases:
        """Return the rows of a coordinator's workers."""
        return cls(WorkerPhases(str(each.name), each.phases) for each in statistics.workers)

    @property
    def total(self) -> PhaseStatistics:
        """The sum over all workers."""
        return PhaseStatistics.sum(each.phases for each in self)

    def __repr__(self) -> str:
        return text_table(("worker", *PHASES, "in all"), self._cells()) if self else "no workers"

    def _repr_html_(self) -> str:
        return html_table("workers", ("worker", *PHASES, "in all"), self._cells()) or "no workers"

    def _cells(self) -> list[tuple[str, ...]]:
        rows = [*self, WorkerPhases("all", self.total)] if len(self) > 1 else [*self]
        return [
            (
                name,
                *(
                    f"{seconds:,.3f} s {share:4.0%}"
                    for seconds, share in zip(phases.seconds, phases.shares.values(), strict=True)
                ),
                f"{phases.total:,.3f} s",
            )
            for name, phases in rows
        ]


_UNFOLDING = Markup(
    "<details><summary>{0.error}</summary>"
    '<pre style="overflow-x:auto">{0.traceback}</pre></details>'
)


def _latest(what: str, head: Sequence[str], rows: Sequence[tuple[str, ...]], count: int) -> str:
    above = f"<div>the last {MOST_ROWS} of {count:,} {what}</div>" if count > MOST_ROWS else ""
    return above + html_table(what, head, rows) if rows else f"no {what}"


def _clock(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))
