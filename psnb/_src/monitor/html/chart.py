"""A metric's chart as inline SVG, for the static summary. Pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from psnb._src.monitor.protocol import (
    Metric,
    Packed,
)

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
