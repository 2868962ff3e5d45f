"""A metric's chart for the static summary: the values of an inline SVG. Pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from psnb._src.monitor.protocol import Metric, Packed

WIDTH, HEIGHT = 300, 98
"""Size in CSS pixels."""

LEFT, RIGHT, TOP, BOTTOM = 52, 294, 6, 74
"""Where the lines are."""

COLOURS = ("#3b82c4", "#c2761c")
"""Of the metric, and of its validation."""

MOST_POINTS = (RIGHT - LEFT) // 2
"""Points drawn of one series: enough for the eye, and small, because the notebook keeps the
page."""


class Chart(NamedTuple):
    """Metrics' whole series: values in pale, their average in strong colour."""

    title: str
    paths: list[tuple[str, str, bool]]  # with colour, and whether it is of averages
    texts: list[tuple[str, int, int, str]]  # with x, y and anchor


def chart(metrics: Sequence[Metric]) -> Chart | None:
    """Return a chart; None if no value is finite. Other values leave gaps."""
    lines = [_thinned(metric) for metric in metrics]
    finite = [values[np.isfinite(values)] for _, values, _ in lines]
    every, along = np.concatenate(finite), np.concatenate([steps for steps, *_ in lines])
    if not every.size:
        return None
    first, last, low, high = along.min(), along.max(), float(every.min()), float(every.max())

    def path(steps: np.ndarray, values: np.ndarray) -> str:
        x = LEFT + (steps - first) / max(last - first, 1e-300) * (RIGHT - LEFT)
        # A series that never changes is a line in the middle.
        middle = np.where(np.isfinite(values), 0.5, np.nan)
        share = (values - low) / (high - low) if high > low else middle
        return _path(x, BOTTOM - share * (BOTTOM - TOP))

    titles = [
        f"{metric['name']}: {found.min():.4g} to {found.max():.4g}"
        for metric, found in zip(metrics, finite, strict=True)
        if found.size
    ]
    return Chart(
        "; ".join(titles),
        [
            (path(steps, each), colour, each is averages)
            for (steps, values, averages), colour in zip(lines, COLOURS, strict=False)
            for each in (values, averages)
        ],
        _axes(first, last, low, high),
    )


def unpack(packed: Packed) -> np.ndarray:
    """Return the numbers of a `Packed` series; float64, shape ``(points,)``."""
    return np.frombuffer(base64.b64decode(packed), "<f8")


def _thinned(metric: Metric) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    steps, values, averages = map(unpack, (metric["steps"], metric["values"], metric["averages"]))
    if len(steps) > MOST_POINTS:
        chosen = np.linspace(0, len(steps) - 1, MOST_POINTS).astype(int)
        steps, values, averages = steps[chosen], values[chosen], averages[chosen]
    return steps, values, averages


def _path(x: np.ndarray, y: np.ndarray) -> str:
    parts, pen = [], "M"
    for across, down in zip(x.tolist(), y.tolist(), strict=True):
        if np.isfinite(down):
            parts.append(f"{pen}{across:.1f},{down:.1f}")
            pen = "L"
        else:
            pen = "M"
    # A point alone is a dot: it takes a line of no length.
    return "".join(parts) if len(parts) != 1 else f"{parts[0]}h0"


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
