"""Static HTML of a coordinator's state, for pages without scripts. Pure.

It is shown in saved notebooks, in the output of nbconvert and on code hosting pages. It needs no
script and no style sheet, and inherits its colours, so it is readable on light and dark pages.
"""

from __future__ import annotations

import base64
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from psnb._src.monitor.events import Event, Failure, Tone
from psnb._src.monitor.history import VALIDATION, Statistics
from psnb._src.monitor.protocol import (
    CheckpointRow,
    FailureRow,
    Metric,
    Number,
    Packed,
    ServerRow,
    Summary,
    Update,
    WorkerRow,
)
from psnb._src.utils.profiling import PHASES, PhaseStatistics
from psnb._src.utils.text import counted, size_text, text_table

# Tables in HTML that need no script and no style sheet, readable on light and dark pages. Pure.

MOST_ROWS = 50
"""Further rows are only counted, because the page is saved in the notebook."""

_LINE = "1px solid rgba(128,128,128,0.4)"
_STYLE = f"padding:2px 8px;text-align:left;vertical-align:top;border-bottom:{_LINE}"
_CELL = f'style="{_STYLE}"'
_SHORT = f'style="{_STYLE};white-space:nowrap"'  # else `worker-0` is broken at its hyphen
_SHORTEST_TEXT = 24


class Markup(str):
    """HTML as it is; any other text in a cell is escaped."""

    __slots__ = ()


def html_table(what: str, head: Iterable[str], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table; nothing if there are no rows.

    Parameters
    ----------
    what : str
        What the rows are, for those that are only counted.
    head : iterable of str
        The names of the columns.
    rows : sequence of tuple
        The cells.
    """
    if not rows:
        return ""
    cells = [f"<th {_CELL}>{escape(cell)}</th>" for cell in head]
    body = ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows[:MOST_ROWS]]
    return (
        '<table style="border-collapse:collapse;margin-top:8px">'
        f"<thead><tr>{''.join(cells)}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        + left_out(len(rows), what)
    )


def left_out(count: int, what: str) -> str:
    """Return the line that says how many of ``count`` rows are not shown."""
    more = count - MOST_ROWS
    return f"<div>and {more:,} {what} more</div>" if more > 0 else ""


def _cell(cell: str) -> str:
    if isinstance(cell, Markup):
        return f"<td {_CELL}>{cell}</td>"
    return f"<td {_SHORT if len(cell) < _SHORTEST_TEXT else _CELL}>{escape(cell)}</td>"


# Records as tuples that a notebook shows as tables, and a terminal in lines. Pure.


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


class WorkerPhases(NamedTuple):
    """What the time of a worker's closures went to."""

    worker: str
    phases: PhaseStatistics


class Phases(tuple[WorkerPhases, ...]):
    """What the time of closures went to, by worker; all that a tuple can."""

    __slots__ = ()

    @classmethod
    def of(cls, statistics: Statistics) -> Phases:
        """Return those of a coordinator's workers."""
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


def _earlier(count: int, what: str) -> str:
    return f"<div>the last {MOST_ROWS} of {count:,} {what}</div>" if count > MOST_ROWS else ""


def _unfolding(failure: Failure) -> Markup:
    return Markup(
        f"<details><summary>{escape(failure.error)}</summary>"
        f'<pre style="overflow-x:auto">{escape(failure.traceback)}</pre></details>'
    )


def _clock(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))


# A metric's chart as inline SVG, for the static summary. Pure.

WIDTH, HEIGHT = 300, 98
"""Size in CSS pixels."""

COLOURS = ("#3b82c4", "#c2761c")
"""Of the metric, and of its validation."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 294, 6, 74

MOST_POINTS = (_RIGHT - _LEFT) // 2
"""Points drawn of one series: enough for the eye, and small, because the notebook keeps the
page."""


def sparkline(metrics: Sequence[Metric]) -> str:
    """Return a chart of metrics' whole series: values in pale, their average in strong colour.

    Values that are not finite leave gaps; series without finite values give an empty string.
    """
    lines = [_thinned(metric) for metric in metrics]
    finite = [line.values[np.isfinite(line.values)] for line in lines]
    every = np.concatenate(finite)
    if not len(every):
        return ""
    places = np.concatenate([line.steps for line in lines])
    box = _Box(places.min(), places.max(), every.min(), every.max())
    titles = [
        f"{metric['name']}: {found.min():.4g} to {found.max():.4g}"
        for metric, found in zip(metrics, finite, strict=True)
        if len(found)
    ]
    drawn = [
        f'<path d="{box.path(line.steps, values)}" fill="none" stroke="{colour}" '
        f'stroke-linecap="round" {style}></path>'
        for line, colour in zip(lines, COLOURS, strict=False)
        for values, style in (
            (line.values, 'stroke-opacity="0.45"'),
            (line.averages, 'stroke-width="1.5"'),
        )
    ]
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'style="max-width:100%">'
        f"<title>{escape('; '.join(titles))}</title>"
        f'<rect x="{_LEFT - 3.5}" y="{_TOP - 3.5}" width="{_RIGHT - _LEFT + 7}" '
        f'height="{_BOTTOM - _TOP + 7}" fill="none" stroke="#808080" stroke-opacity="0.4"></rect>'
        + box.axes()
        + "".join(drawn)
        + "</svg>"
    )


def unpack(packed: Packed) -> np.ndarray:
    """Return the numbers of a `Packed` series; float64, shape ``(points,)``."""
    return np.frombuffer(base64.b64decode(packed), "<f8")


class _Line(NamedTuple):
    steps: np.ndarray
    values: np.ndarray
    averages: np.ndarray


def _thinned(metric: Metric) -> _Line:
    line = _Line(unpack(metric["steps"]), unpack(metric["values"]), unpack(metric["averages"]))
    if len(line.steps) <= MOST_POINTS:
        return line
    chosen = np.linspace(0, len(line.steps) - 1, MOST_POINTS).astype(int)
    return _Line(*(each[chosen] for each in line))


class _Box:
    """Converts steps and values to the chart's pixels."""

    def __init__(self, first: float, last: float, low: float, high: float) -> None:
        self._first, self._last, self._low, self._high = first, last, float(low), float(high)
        self._across, self._up = max(last - first, 1e-300), self._high - self._low

    def path(self, steps: np.ndarray, values: np.ndarray) -> str:
        x = _LEFT + (steps - self._first) / self._across * (_RIGHT - _LEFT)
        # A series that never changes is a line in the middle.
        share = (
            (values - self._low) / self._up
            if self._up
            else np.where(np.isfinite(values), 0.5, np.nan)
        )
        y = _BOTTOM - share * (_BOTTOM - _TOP)
        parts, pen = [], "M"
        for across, down in zip(x.tolist(), y.tolist(), strict=True):
            if np.isfinite(down):
                parts.append(f"{pen}{across:.1f},{down:.1f}")
                pen = "L"
            else:
                pen = "M"
        # A point alone is a dot: it takes a line of no length.
        return "".join(parts) if len(parts) != 1 else f"{parts[0]}h0"

    def axes(self) -> str:
        """Return the least and the greatest value and step, and what the steps are."""
        values = [(self._high, _TOP + 4), (self._low, _BOTTOM + 4)]
        if not self._up:
            values = [(self._low, (_TOP + _BOTTOM) // 2 + 4)]
        texts = [_text(f"{value:.4g}", _LEFT - 8, y, "end") for value, y in values]
        below = _BOTTOM + 18
        texts += [_text(f"{self._last:,.0f}", _RIGHT + 3, below, "end")]
        if self._last > self._first:
            texts += [_text(f"{self._first:,.0f}", _LEFT - 3, below, "start")]
        texts += [_text("values so far", (_LEFT + _RIGHT) // 2, below, "middle")]
        return "".join(texts)


def _text(text: str, x: int, y: int, anchor: str) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="10" fill="currentColor" '
        f'fill-opacity="0.75">{escape(text)}</text>'
    )


MOST_FAILURES = 10
"""The number of failures shown; the latest ones."""

_COLOURS: dict[Tone, str] = {
    "good": "#2e9d4e",
    "busy": "#2f81d0",
    "waiting": "#c98a00",
    "bad": "#d03a3a",
    "quiet": "#808080",
}


def render(update: Update, note: str = "") -> str:
    """Return an HTML fragment that shows a coordinator as it was.

    Parameters
    ----------
    update : Update
        A full one.
    note : str
        A line of text for the top.

    Returns
    -------
    str
        One ``div``. Every name in it is escaped.
    """
    summary = update["summary"]
    parts = [
        _header(update),
        *(_paragraph(text) for text in (note, update.get("notice", "")) if text),
        _counters(summary),
        _phases(summary, update.get("starved", "")),
        _checkpoint(update["checkpoint"]) if "checkpoint" in update else "",
        _metrics(update.get("metrics", [])),
        _workers(update.get("workers", [])),
        _servers(update.get("servers", [])),
        _failures(update.get("failures", [])),
    ]
    return (
        '<div class="psnb-summary" style="font-size:13px;line-height:1.5;overflow-x:auto">'
        + "".join(parts)
        + "</div>"
    )


def moment(seconds: float) -> str:
    """Return a time (seconds since the epoch) with its zone: it may be read in another one."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))


def _header(update: Update) -> str:
    summary = update["summary"]
    name = update["identity"]["name"] if "identity" in update else ""
    state, colour = summary["state"], _COLOURS[summary["tone"]]
    return (
        f"<div><strong>psnb {escape(name)}</strong> "
        f'<strong style="color:{colour}" title="{escape(summary["meaning"])}">{escape(state)}'
        "</strong> "
        f"after {_seconds(summary['elapsed'])}, as of {moment(summary['time'])}"
        f"{_training(summary)}</div>"
    )


def _training(summary: Summary) -> str:
    training, left = summary["training"], summary["eta"]
    parts = []
    if training is not None:
        if training["epoch"] is not None:
            parts.append(f"epoch {_of(training['epoch'], training['epochs'])}")
        parts.append(f"batch {_of(training['batch'], training['batches'])}")
    if isinstance(left, float | int):
        parts.append(f"{_seconds(left)} left")
    return f"<div>{' · '.join(parts)}</div>" if parts else ""


def _of(count: int, of: int | None) -> str:
    return f"{count:,}" if of is None else f"{count:,} of {of:,}"


def _paragraph(text: str) -> str:
    return f'<div style="font-style:italic">{escape(text)}</div>'


def _counters(summary: Summary) -> str:
    figures = {
        "completed": f"{summary['completed']:,}",
        "failed": f"{summary['failed']:,}",
        "retried": f"{summary['retried']:,}",
        "cancelled": f"{summary['cancelled']:,}",
        "queued": f"{summary['queued']:,}",
        "in flight": f"{summary['in_flight']:,}",
    }
    if summary["workers_lost"]:
        figures["workers lost"] = f"{summary['workers_lost']:,}"
    if summary["servers_lost"]:
        figures["servers lost"] = f"{summary['servers_lost']:,}"
    if summary["examples"] is not None:
        examples = summary["examples"]
        figures["examples"] = examples if isinstance(examples, str) else f"{examples:,.0f}"
    if summary["examples_per_second"]:
        figures["examples/s"] = _number(summary["examples_per_second"])
    if summary["closures_per_second"]:
        figures["closures/s"] = _number(summary["closures_per_second"])
    return "<div>" + " · ".join(f"{label} {value}" for label, value in figures.items()) + "</div>"


def _phases(summary: Summary, starved: str) -> str:
    if not any(summary["phases"]):
        return ""
    figures = [
        f"{phase} {share:.0%}" for phase, share in zip(PHASES, summary["phases"], strict=True)
    ]
    text = f"time of closures: {' · '.join(figures)}"
    return f"<div>{text}{escape(f'; {starved}' if starved else '')}</div>"


def _checkpoint(checkpoint: CheckpointRow) -> str:
    if checkpoint["state"] == "none":
        return ""
    detail = checkpoint["path"] or checkpoint["error"]
    return f"<div>checkpoint {escape(checkpoint['state'])} {escape(detail)}</div>"


def _metrics(metrics: list[Metric]) -> str:
    """Return the charts; validation is in that of its metric."""
    by_name = {metric["name"]: metric for metric in metrics}
    beside = {name: by_name.get(VALIDATION + name) for name in by_name}
    within = {VALIDATION + name for name, found in beside.items() if found is not None}
    alone = [metric for metric in metrics if metric["name"] not in within]
    charts = []
    for metric in alone[:MOST_ROWS]:
        validation = beside[metric["name"]]
        lines = [metric] if validation is None else [metric, validation]
        style = f"display:inline-block;vertical-align:bottom;width:{WIDTH}px;max-width:100%"
        figures = "".join(map(_figures, lines, COLOURS))
        charts.append(f'<div style="{style};margin:6px 16px 0 0">{figures}{sparkline(lines)}</div>')
    return "<div>" + "".join(charts) + "</div>" + left_out(len(alone), "metrics") if charts else ""


def _figures(metric: Metric, colour: str) -> str:
    last, average = metric["last"], metric["smoothed"]
    # Of a value that is of all examples so far, there is none.
    figures = [] if last == average else [f"avg {_number(average)}"]
    figures.append(counted(metric["count"], "value"))
    return (
        '<div style="overflow:hidden;text-overflow:ellipsis;white-space:nowrap">'
        f'<span style="color:{colour}">■</span> {escape(metric["name"])} '
        f"<strong>{_number(last)}</strong> ({', '.join(figures)})</div>"
    )


def _workers(workers: list[WorkerRow]) -> str:
    return html_table(
        "workers",
        (
            *("worker", "host", "state", "in flight", "completed", "failed"),
            *("closures/s", "busy", "memory", "last error"),
        ),
        [
            (
                *(row["name"], row["host"], row["state"]),
                *(str(row["in_flight"]), f"{row['completed']:,}", f"{row['failed']:,}"),
                *(_number(row["closures_per_second"]), _share(row["busy"])),
                *(_bytes(row["memory"]), row["last_error"]),
            )
            for row in workers
        ],
    )


def _servers(servers: list[ServerRow]) -> str:
    return html_table(
        "servers",
        ("server", "state", "shards", "parameters", "pulls/s", "pushes/s", "staleness"),
        [
            (
                *(row["name"], row["state"], str(row["shards"]), _bytes(row["bytes"])),
                *(_number(row["pulls_per_second"]), _number(row["pushes_per_second"])),
                # NaN means that there was no update.
                "" if row["staleness"] == "nan" else _number(row["staleness"]),
            )
            for row in servers
        ],
    )


def _failures(failures: list[FailureRow]) -> str:
    shown = [
        f"<details><summary>{escape(row['error'])}: {escape(row['closure'])} on "
        f"{escape(row['worker'])}</summary>"
        f'<pre style="overflow-x:auto">{escape(row["traceback"])}</pre></details>'
        for row in failures[-MOST_FAILURES:]
    ]
    many = "failure" if len(shown) == 1 else f"{len(shown)} failures"
    head = f'<div style="margin-top:8px"><strong>The last {many}</strong></div>'
    return head + "".join(shown) if shown else ""


def _number(value: Number | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:,.4g}"


def _share(value: Number) -> str:
    return value if isinstance(value, str) else f"{value:.0%}"


def _bytes(count: int | None) -> str:
    return "" if count is None else size_text(count)


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# SavedSummaries: what a notebook shows of a coordinator when it is opened without its kernel.
#
# A notebook is saved at any moment, and a widget's output is nothing without its kernel. So each
# live widget has a second output: a static summary, which the page hides while the widget lives,
# and which is replaced while the coordinator works. Each is written by the thread that shows it
# first, then by the `Publisher`'s and, when a cell ends, by the one that runs cells; it is emptied
# by the thread that closes the coordinator.

INTERVAL = 10.0
"""Seconds between two summaries while a coordinator works: each is saved with the notebook."""

KEPT = 10
"""How many outputs are replaced: a cell that runs again makes another one, and the page has dropped
the old one. One that is too many is emptied."""

_EMPTY = {"text/html": "", "text/plain": ""}

_MOVING = ("time", "elapsed", "eta")


class SavedSummaries:
    """The static summaries beside the widgets of one coordinator. Thread-safe."""

    def __init__(self) -> None:
        # So that nothing is written after the end; it is not held across a network call.
        self._lock = threading.Lock()
        self._outputs: deque[str] = deque(maxlen=KEPT)
        self._written: Summary | None = None

    def show(self, update: Update, output: str) -> None:
        """Display a summary in an output of this id; in a notebook only."""
        from IPython.display import display

        with self._lock:
            if len(self._outputs) == KEPT:
                _replace_one(self._outputs[0], _EMPTY)
            self._outputs.append(output)
            self._written = update["summary"]
            display(_bundle(update), raw=True, display_id=output)

    def due(self, summary: Summary) -> bool:
        """Return whether a coordinator's figures differ so that the outputs are to be replaced."""
        written = self._written
        if written is None or not self.changed(summary):
            return False
        return summary["state"] != written["state"] or summary["time"] - written["time"] >= INTERVAL

    def changed(self, summary: Summary) -> bool:
        """Return whether a coordinator's figures differ from those that the outputs have."""
        written = self._written
        return written is not None and _saved_figures(summary) != _saved_figures(written)

    def write(self, update: Update) -> None:
        """Replace the outputs by the summary of a full update, unless theirs is a later one."""
        with self._lock:
            if self._written is None or update["summary"]["time"] < self._written["time"]:
                return
            self._written = update["summary"]
            self._replace(_bundle(update))

    def end(self) -> None:
        """Empty the outputs: another one has the final summary. Idempotent."""
        with self._lock:
            self._replace(_EMPTY)
            self._outputs.clear()
            self._written = None

    def _replace(self, bundle: dict[str, Any]) -> None:
        for output in self._outputs:
            _replace_one(output, bundle)


def _replace_one(output: str, bundle: dict[str, Any]) -> None:
    from IPython.display import update_display

    update_display(bundle, raw=True, display_id=output)


def _bundle(update: Update) -> dict[str, Any]:
    html = f'<div class="psnb-static">{render(update, _note(update["summary"]))}</div>'
    return {"text/html": html, "text/plain": ""}


def _note(summary: Summary) -> str:
    # A reader may have the kernel or not, and this text cannot know: it must hold for both.
    return (
        f"Saved at {moment(summary['time'])}, and not live: it was “{summary['state']}” then. "
        "If the kernel still runs, the panel “psnb” shows how it is now, also while a cell runs; "
        "if the kernel was restarted or shut down, it has ended. "
        "Run the cell again for a live view."
    )


def _saved_figures(summary: Summary) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name not in _MOVING}
