"""Static HTML of a coordinator's state, for pages without scripts. Pure.

It is shown in saved notebooks, in the output of nbconvert and on code hosting pages. It needs no
script and no style sheet, and inherits its colours, so it is readable on light and dark pages.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from psnb._src.monitor.history import VALIDATION
from psnb._src.monitor.html.tables import TEMPLATES
from psnb._src.monitor.protocol import Metric, Number, ServerRow, Update, WorkerRow
from psnb._src.monitor.states import Tone
from psnb._src.utils.phases import PHASES
from psnb._src.utils.text import counted, size_text

MOST_FAILURES = 10
"""The number of failures shown; the latest ones."""

WIDTH, HEIGHT = 300, 98
"""Size of a chart in CSS pixels."""

LEFT, RIGHT, TOP, BOTTOM = 52, 294, 6, 74
"""Where its lines are."""

COLOURS = ("#3b82c4", "#c2761c")
"""Of the metric, and of its validation."""

MOST_POINTS = (RIGHT - LEFT) // 2
"""Points drawn of one series: enough for the eye, and small, because the notebook keeps the
page."""

_TONES: dict[Tone, str] = {
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
    return TEMPLATES.get_template("summary.html").render(
        update=update,
        note=note,
        charts=_with_validation(update.get("metrics", [])),
        workers=[_worker(row) for row in update.get("workers", [])],
        servers=[_server(row) for row in update.get("servers", [])],
        failures=update.get("failures", [])[-MOST_FAILURES:],
    )


def moment(seconds: float) -> str:
    """Return a time (seconds since the epoch) with its zone: it may be read in another one."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))


def _with_validation(metrics: Sequence[Metric]) -> list[list[Metric]]:
    """Return what is in each chart: a metric, and what validation gave of it."""
    found = {metric["name"]: [metric] for metric in metrics}
    for name in list(found):
        if VALIDATION + name in found and name in found:
            found[name] += found.pop(VALIDATION + name)
    return list(found.values())


def _worker(row: WorkerRow) -> tuple[str, ...]:
    return (
        *(row["name"], row["host"], row["state"]),
        *(_figure(row["in_flight"], ""), _figure(row["completed"]), _figure(row["failed"])),
        *(_figure(row["closures_per_second"], ",.4g"), _figure(row["busy"], ".0%")),
        *("" if row["memory"] is None else size_text(row["memory"]), row["last_error"]),
    )


def _server(row: ServerRow) -> tuple[str, ...]:
    return (
        *(row["name"], row["state"], str(row["shards"]), size_text(row["bytes"])),
        _memory(row["memory"], row["memory_limit"]),
        *(_figure(row["pulls_per_second"], ",.4g"), _figure(row["pushes_per_second"], ",.4g")),
        # NaN means that there was no update.
        "" if row["staleness"] == "nan" else _figure(row["staleness"], ",.4g"),
    )


def _memory(used: int | None, limit: int | None) -> str:
    texts = [size_text(each) for each in (used, limit) if each is not None]
    return " of ".join(texts)


def _figure(value: Number, form: str = ",") -> str:
    return value if isinstance(value, str) else format(value, form)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def chart(metrics: Sequence[Metric]) -> dict[str, Any] | None:
    """Return a chart of whole series: values in pale, their average in strong colour.

    None if no value is finite. Other values leave gaps.

    Returns
    -------
    dict or None
        Its ``title``; its ``paths``, each with its colour, and whether it is of averages; its
        ``texts``, each with x, y and anchor.
    """
    lines = []
    for metric in metrics:
        packed = metric["steps"], metric["values"], metric["averages"]
        line = np.array([np.frombuffer(base64.b64decode(each), "<f8") for each in packed])
        if line.shape[1] > MOST_POINTS:
            line = line[:, np.linspace(0, line.shape[1] - 1, MOST_POINTS).astype(int)]
        lines.append(line)
    finite = [values[np.isfinite(values)] for _, values, _ in lines]
    every, along = np.concatenate(finite), np.concatenate([steps for steps, *_ in lines])
    if not every.size:
        return None
    first, last, low, high = along.min(), along.max(), float(every.min()), float(every.max())

    def path(steps: np.ndarray, values: np.ndarray) -> str:
        x = LEFT + (steps - first) / max(last - first, 1e-300) * (RIGHT - LEFT)
        # A series that never changes is a line in the middle.
        middle = np.where(np.isfinite(values), 0.5, np.nan)
        heights = (values - low) / (high - low) if high > low else middle
        parts, pen = [], "M"
        for across, height in zip(x.tolist(), heights.tolist(), strict=True):
            if math.isfinite(height):
                parts.append(f"{pen}{across:.1f},{BOTTOM - height * (BOTTOM - TOP):.1f}")
            pen = "L" if math.isfinite(height) else "M"
        # A point alone is a dot: it takes a line of no length.
        return "".join(parts) if len(parts) != 1 else f"{parts[0]}h0"

    titles = [
        f"{metric['name']}: {found.min():.4g} to {found.max():.4g}"
        for metric, found in zip(metrics, finite, strict=True)
        if found.size
    ]
    paths = [
        (path(steps, each), colour, each is averages)
        for (steps, values, averages), colour in zip(lines, COLOURS, strict=False)
        for each in (values, averages)
    ]
    return {"title": "; ".join(titles), "paths": paths, "texts": _axes(first, last, low, high)}


def _axes(first: float, last: float, low: float, high: float) -> list[tuple[str, int, int, str]]:
    """Return the least and the greatest value and step, and what the steps are."""
    values = [(high, TOP), (low, BOTTOM)] if high > low else [(low, (TOP + BOTTOM) // 2)]
    texts = [(f"{value:.4g}", LEFT - 8, y + 4, "end") for value, y in values]
    below = BOTTOM + 18
    texts.append((f"{last:,.0f}", RIGHT + 3, below, "end"))
    if last > first:
        texts.append((f"{first:,.0f}", LEFT - 3, below, "start"))
    texts.append(("values so far", (LEFT + RIGHT) // 2, below, "middle"))
    return texts


TEMPLATES.filters |= {
    "counted": counted,
    "duration": _duration,
    "figure": _figure,
    "moment": moment,
}
TEMPLATES.globals |= {"chart": chart, "phases": PHASES, "tones": _TONES, "colours": COLOURS}
TEMPLATES.globals |= {"width": WIDTH, "height": HEIGHT}
TEMPLATES.globals |= {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
