"""A metric's chart as inline SVG, for the static summary. Pure."""

from __future__ import annotations

import base64
from html import escape

import numpy as np

from psnb._src.monitor.told import Metric, Packed

WIDTH, HEIGHT = 240, 70
"""Size in CSS pixels."""

MOST_POINTS = WIDTH // 2
"""Points drawn of one series: enough for the eye, and small, because the notebook keeps the
page."""

_MARGIN = 3


def sparkline(metric: Metric) -> str:
    """Return a chart of a metric's whole series: values in pale, their average in strong colour.

    Values that are not finite leave gaps; a series without finite values gives an empty string.
    """
    steps, values = unpack(metric["steps"]), unpack(metric["values"])
    averages = unpack(metric["averages"])
    if len(steps) > MOST_POINTS:
        chosen = np.linspace(0, len(steps) - 1, MOST_POINTS).astype(int)
        steps, values, averages = steps[chosen], values[chosen], averages[chosen]
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    low, high = float(finite.min()), float(finite.max())
    title = f"{metric['name']}: {low:.4g} to {high:.4g}"
    box = _Box(float(steps[0]), float(steps[-1]), low, high)
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{escape(title)}</title>"
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" fill="none" '
        'stroke="#808080" stroke-opacity="0.4"></rect>'
        f'<path d="{box.path(steps, values)}" fill="none" stroke="#3b82c4" '
        'stroke-opacity="0.45"></path>'
        f'<path d="{box.path(steps, averages)}" fill="none" stroke="#3b82c4" '
        'stroke-width="1.5"></path></svg>'
    )


def unpack(packed: Packed) -> np.ndarray:
    """Return the numbers of a `Packed` series; float64, shape ``(points,)``."""
    return np.frombuffer(base64.b64decode(packed), "<f8")


class _Box:
    """Converts steps and values to the chart's pixels."""

    def __init__(self, first: float, last: float, low: float, high: float) -> None:
        self._first, self._across = first, max(last - first, 1e-300)
        self._low, self._up = low, high - low

    def path(self, steps: np.ndarray, values: np.ndarray) -> str:
        x = _MARGIN + (steps - self._first) / self._across * (WIDTH - 2 * _MARGIN)
        # A series that never changes is a line in the middle.
        share = (
            (values - self._low) / self._up
            if self._up
            else np.where(np.isfinite(values), 0.5, np.nan)
        )
        y = HEIGHT - _MARGIN - share * (HEIGHT - 2 * _MARGIN)
        parts, pen = [], "M"
        for across, down in zip(x.tolist(), y.tolist(), strict=True):
            if np.isfinite(down):
                parts.append(f"{pen}{across:.1f},{down:.1f}")
                pen = "L"
            else:
                pen = "M"
        return "".join(parts)
