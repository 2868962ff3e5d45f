"""Events and failures as tuples that a notebook shows as tables, and a terminal in lines. Pure."""

from __future__ import annotations

import time
from html import escape

from psnb._src.monitor.recorded import Event, Failure
from psnb._src.monitor.shown.html_table import MOST_ROWS, Markup, html_table


class Events(tuple[Event, ...]):
    """What happened, the oldest first; all that a tuple can."""

    __slots__ = ()

    def __repr__(self) -> str:
        lines = [f"{_clock(each.time)}  {each.kind.value}: {each.message}" for each in self]
        return "\n".join(lines) or "no events"

    def _repr_html_(self) -> str:
        rows = [
            (_clock(each.time), each.kind.value, each.worker, each.message)
            for each in self[-MOST_ROWS:]
        ]
        table = html_table("events", ("time", "event", "worker", "what happened"), rows)
        return _earlier(len(self), "events") + table if rows else "no events"


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
            (f"[{index}]", _clock(each.time), each.worker, each.closure, _unfolding(each))
            for index, each in enumerate(self[first:], first)
        ]
        table = html_table("failures", ("", "time", "worker", "closure", "error"), rows)
        return _earlier(len(self), "failures") + table if rows else "no failures"


def _earlier(count: int, what: str) -> str:
    return f"<div>the last {MOST_ROWS} of {count:,} {what}</div>" if count > MOST_ROWS else ""


def _unfolding(failure: Failure) -> Markup:
    return Markup(
        f"<details><summary>{escape(failure.error)}</summary>"
        f'<pre style="overflow-x:auto">{escape(failure.traceback)}</pre></details>'
    )


def _clock(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))
