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
from markupsafe import Markup

from psnb._src.monitor.branches import Cut, parts
from psnb._src.monitor.charts.value_range import shown_range
from psnb._src.monitor.history import VALIDATION
from psnb._src.monitor.html.tables import TEMPLATES
from psnb._src.monitor.protocol import (
    EpochMark,
    Metric,
    Number,
    RewindMark,
    ServerRow,
    Update,
    WorkerRow,
)
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
    metrics, epochs = update.get("metrics", []), update.get("epochs", [])
    rewinds = update.get("rewinds", [])
    steps = _steps(metrics, [*epochs, *rewinds])
    return TEMPLATES.get_template("summary.html").render(
        update=update,
        note=note,
        charts=[
            (several, chart(several, epochs, steps, rewinds))
            for several in _with_validation(metrics)
        ],
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
        *(_figure(row["closures_per_second"], ",.4g"), _figure(row["examples_per_second"], ",.4g")),
        *(_figure(row["busy"], ".0%"), _figure(row["cpu"], ".0%")),
        *(_memory(row["memory"], None, row["gpu_memory"]), row["last_error"]),
    )


def _server(row: ServerRow) -> tuple[str, ...]:
    return (
        *(row["name"], row["state"], str(row["shards"]), size_text(row["bytes"])),
        *(_figure(row["cpu"], ".0%"), _memory(row["memory"], row["memory_limit"])),
        *(_figure(row["pulls_per_second"], ",.4g"), _figure(row["pushes_per_second"], ",.4g")),
        # NaN means that there was no update.
        "" if row["staleness"] == "nan" else _figure(row["staleness"], ",.4g"),
    )


def _memory(used: int | None, limit: int | None, of_gpus: int | None = None) -> str:
    text = " of ".join(size_text(each) for each in (used, limit) if each is not None)
    return text if of_gpus is None else f"{text}, GPU {size_text(of_gpus)}"


def _figure(value: Number | None, form: str = ",") -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else format(value, form)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _steps(
    metrics: Sequence[Metric], marks: Sequence[EpochMark | RewindMark]
) -> tuple[float, float]:
    """Return the first and the last step of all charts."""
    steps = [np.frombuffer(base64.b64decode(each["steps"]), "<f8") for each in metrics]
    every = np.concatenate([*steps, _steps_of(marks)])
    return (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)


def _steps_of(marks: Sequence[EpochMark | RewindMark]) -> np.ndarray:
    return np.array([each["step"] for each in marks], float)


def chart(
    metrics: Sequence[Metric],
    epochs: Sequence[EpochMark] = (),
    along: tuple[float, float] = (0.0, 0.0),
    rewinds: Sequence[RewindMark] = (),
) -> dict[str, Any] | None:
    """Return a chart of whole series: values in pale, their average in strong colour.

    None if no value is finite. Other values leave gaps; one beyond the scale has a triangle at the
    edge.

    Parameters
    ----------
    metrics : sequence of Metric
        What is drawn.
    epochs : sequence of EpochMark
        Where epochs begin.
    along : tuple of float
        The first and the last step, of all charts.
    rewinds : sequence of RewindMark
        Where parameters went back.

    Returns
    -------
    dict or None
        Its ``title``; its ``paths``, each with its colour and its looks; its ``texts``, each with
        x, y and anchor.
    """
    lines = []
    for metric in metrics:
        packed = (metric[each] for each in ("steps", "values", "averages", "times"))
        line = np.array([np.frombuffer(base64.b64decode(each), "<f8") for each in packed])
        if line.shape[1] > MOST_POINTS:
            line = line[:, np.linspace(0, line.shape[1] - 1, MOST_POINTS).astype(int)]
        lines.append(line)
    begins = sorted(_steps_of([*epochs, *rewinds]).tolist())
    span = shown_range([(line[0], line[1], line[2]) for line in lines], begins)
    if span is None:
        return None
    (first, last), (low, high) = along, span

    def across(steps: np.ndarray) -> np.ndarray:
        return LEFT + (steps - first) / max(last - first, 1e-300) * (RIGHT - LEFT)

    def path(steps: np.ndarray, values: np.ndarray) -> str:
        # A series that never changes is a line in the middle.
        middle = np.where(np.isfinite(values), 0.5, np.nan)
        heights = np.clip((values - low) / (high - low), 0, 1) if high > low else middle
        heights[~np.isfinite(values)] = np.nan
        parts, pen = [], "M"
        for x, height in zip(across(steps).tolist(), heights.tolist(), strict=True):
            if math.isfinite(height):
                parts.append(f"{pen}{x:.1f},{BOTTOM - height * (BOTTOM - TOP):.1f}")
            pen = "L" if math.isfinite(height) else "M"
        # A point alone is a dot: it takes a line of no length.
        return "".join(parts) if len(parts) != 1 else f"{parts[0]}h0"

    places = {"begin": across(_steps_of(epochs)), "rewind": across(_steps_of(rewinds))}
    paths = [(f"M{x:.1f},{TOP}V{BOTTOM}", "#808080", look) for look in places for x in places[look]]
    cut_at = [Cut(each["step"], each["time"], 0.0, each["kept"]) for each in rewinds]
    for (steps, values, averages, times), colour in zip(lines, COLOURS, strict=False):
        for points, abandoned in parts(times, cut_at):
            branch = "abandoned-" if abandoned else ""
            paths += [
                (path(steps[points], each[points]), colour, branch + look)
                for each, look in ((values, "value"), (averages, "average"))
            ]
        beyond = _triangles(across(steps), values, low, high)
        paths += [(beyond, colour, "beyond")] if beyond else []
    titles = [_sentence(metric, line) for metric, line in zip(metrics, lines, strict=True)]
    texts = _axes(first, last, low, high) + _numbers(epochs, places["begin"])
    return {"title": "; ".join(filter(None, titles)), "paths": paths, "texts": texts}


def _triangles(places: np.ndarray, values: np.ndarray, low: float, high: float) -> str:
    """Return what stands at the edges for values beyond them."""
    return "".join(
        f"M{x - 3:.1f},{edge + depth}l3,{-depth}l3,{depth}z"
        for beyond, edge, depth in ((values > high, TOP, 4), (values < low, BOTTOM, -4))
        for x in places[beyond & np.isfinite(values)]
    )


def _sentence(metric: Metric, line: np.ndarray) -> str:
    """Return a chart's sentence for screen readers; empty if nothing is finite."""
    steps, values = line[:2, np.isfinite(line[1])]
    if not values.size:
        return ""
    least, most = values.argmin(), values.argmax()
    return (
        f"{metric['name']}: {values[-1]:.4g} at step {steps[-1]:,.0f}, from {values[0]:.4g}; "
        f"lowest {values[least]:.4g} at {steps[least]:,.0f}, "
        f"highest {values[most]:.4g} at {steps[most]:,.0f}"
    )


def _numbers(epochs: Sequence[EpochMark], places: np.ndarray) -> list[tuple[str, float, int, str]]:
    """Return the numbers of epochs at their begins, as many as there is room for."""
    texts: list[tuple[str, float, int, str]] = []
    free = -math.inf
    for each, x in zip(epochs, places.tolist(), strict=True):
        text = str(each["epoch"]) if texts else f"epoch {each['epoch']}"
        if x >= free and x + 6 * len(text) <= RIGHT:
            texts.append((text, round(x + 2, 1), TOP + 8, "start"))
            free = x + 6 * len(text) + 8
    return texts


def _axes(first: float, last: float, low: float, high: float) -> list[tuple[str, float, int, str]]:
    """Return the least and the greatest value and step, and what the steps are."""
    values = [(high, TOP), (low, BOTTOM)] if high > low else [(low, (TOP + BOTTOM) // 2)]
    texts: list[tuple[str, float, int, str]]
    texts = [(f"{value:.4g}", LEFT - 8, y + 4, "end") for value, y in values]
    below = BOTTOM + 18
    texts.append((f"{last:,.0f}", RIGHT + 3, below, "end"))
    if last > first:
        texts.append((f"{first:,.0f}", LEFT - 3, below, "start"))
    texts.append(("step", (LEFT + RIGHT) // 2, below, "middle"))
    return texts


_LOOKS = {
    "begin": 'fill="none" stroke-opacity="0.5"',
    "rewind": 'fill="none" stroke-opacity="0.8" stroke-dasharray="4"',
    "value": 'fill="none" stroke-opacity="0.45"',
    "average": 'fill="none" stroke-width="1.5"',
    "abandoned-value": 'fill="none" stroke-opacity="0.15"',
    "abandoned-average": 'fill="none" stroke-width="1.5" stroke-opacity="0.35"',
    "beyond": 'fill="currentColor" stroke-opacity="0"',
}

TEMPLATES.filters |= {
    "counted": counted,
    "duration": _duration,
    "figure": _figure,
    "moment": moment,
}
TEMPLATES.globals |= {
    "looks": {name: Markup(each) for name, each in _LOOKS.items()},
    "phases": PHASES,
    "tones": _TONES,
    "colours": COLOURS,
}
TEMPLATES.globals |= {"width": WIDTH, "height": HEIGHT}
TEMPLATES.globals |= {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
