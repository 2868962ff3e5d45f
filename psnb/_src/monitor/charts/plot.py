"""Static figures of reported metrics, of one run or several; the widget is the live view.

Imported when a figure is asked for: matplotlib takes half a second.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from psnb._src.monitor.charts.value_range import shown_range
from psnb._src.monitor.history import EpochBegin
from psnb._src.utils.checks import path_text
from psnb._src.utils.text import NAME, truncate, unknown
from psnb.errors import ConfigurationError

_FEW = 30
"""Points of a line, such as one an epoch, that are marked; and epochs that are numbered."""

Line = tuple[str, np.ndarray, np.ndarray, np.ndarray]
"""A colour, and the places, the values and the smoothed values."""


def plot(
    history: Mapping[str, Mapping[str, np.ndarray]],
    metrics: str | Sequence[str] | None = None,
    epochs: Sequence[EpochBegin] = (),
    *,
    log: bool = False,
) -> Figure:
    """Draw metrics, each on axes of its own over the same steps; see `ClusterCoordinator.plot`."""
    alone = [metrics] if isinstance(metrics, str) else metrics
    names = list(history) if alone is None else list(alone)
    for name in names:
        if name not in history:
            raise ConfigurationError(unknown("metric", name, history))
    if not names:
        raise ConfigurationError("no closure has reported anything yet: psnb.report(loss=...)")

    figure = MetricsFigure(len(names))
    begins = [each.step for each in epochs]
    for axes, name in zip(figure.rows(len(names)), names, strict=True):
        series = history[name]
        axes.plot(series["step"], series["value"], color="tab:blue", alpha=0.3, linewidth=0.8)
        axes.plot(series["step"], series["smoothed"], color="tab:blue", linewidth=1.6)
        for each in epochs:
            style = "-" if each.epoch else "--"
            axes.axvline(each.step, color="tab:gray", alpha=0.4, linewidth=0.6, linestyle=style)
        line = series["step"], series["value"], series["smoothed"]
        _set_scale(axes, [("tab:blue", *line)], begins, log)
        # The names come from users, and are not mathematical formulas.
        axes.set_ylabel(name, parse_math=False)
        axes.grid(alpha=0.25)
    figure.axes[-1].set_xlabel("step")
    _write_numbers(figure.axes[0], epochs)
    return figure


def _set_scale(axes: Axes, lines: Sequence[Line], epochs: Sequence[float], log: bool) -> None:
    """Show all but outliers, and a triangle at the edge for each of them."""
    if log:
        axes.set_yscale("log")
        return
    span = shown_range([(x, values, averages) for _, x, values, averages in lines], epochs)
    if span is None:
        return
    low, high = span
    for color, x, values, _ in lines:
        for beyond, edge, marker in ((values > high, 1, "^"), (values < low, 0, "v")):
            places = x[beyond & np.isfinite(values)]
            if not len(places):
                continue
            (drawn,) = axes.plot(places, np.full(len(places), edge), marker, color=color)
            drawn.set(transform=axes.get_xaxis_transform(), clip_on=False, markersize=4)
    if high > low:
        margin = 0.05 * (high - low)
        axes.set_ylim(low - margin, high + margin)


def _write_numbers(axes: Axes, epochs: Sequence[EpochBegin]) -> None:
    """Write the numbers of epochs above the first chart, at most some thirty."""
    for each in epochs[:: 1 + len(epochs) // _FEW]:
        number = str(each.epoch) if each.epoch else "rewound"
        text = f"epoch {number}" if each is epochs[0] and each.epoch else number
        where = axes.get_xaxis_transform()
        axes.text(each.step, 1.02, text, transform=where, color="tab:gray", fontsize="x-small")


def plot_runs(
    lines: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]],
    metrics: Sequence[str],
    places: str,
    *,
    log: bool,
) -> Figure:
    """Draw runs over each other.

    Parameters
    ----------
    lines : mapping of str to mapping
        By run, by metric: the places, the values, and the smoothed values.
    metrics : sequence of str
        Each has axes of its own.
    places : str
        What the places are.
    log : bool
        As for `plot`.
    """
    figure = MetricsFigure(len(metrics))
    for axes, name in zip(figure.rows(len(metrics)), metrics, strict=True):
        shown: dict[str, Line2D] = {}
        drawn: list[Line] = []
        for number, (run, found) in enumerate(lines.items()):
            if name not in found:
                continue
            x, raw, smoothed = found[name]
            color, marker = f"C{number % 10}", "o" if len(x) <= _FEW else ""
            if not np.array_equal(raw, smoothed, equal_nan=True):
                axes.plot(x, raw, color=color, alpha=0.25, linewidth=0.8)
            style: dict[str, Any] = {"linewidth": 1.6, "marker": marker, "markersize": 4}
            (shown[run],) = axes.plot(x, smoothed, color=color, zorder=3, **style)
            drawn.append((color, x, raw, smoothed))
        legend = axes.legend(shown.values(), [*map(str, range(len(shown)))], fontsize="small")
        for text, run in zip(legend.get_texts(), shown, strict=True):
            # A name may begin as what matplotlib leaves out, and is no mathematical formula.
            text.set_parse_math(False)
            text.set_text(truncate(run, NAME))
        axes.set_ylabel(name, parse_math=False)
        _set_scale(axes, drawn, (), log)
        axes.grid(alpha=0.25)
    figure.axes[-1].set_xlabel(places)
    return figure


class MetricsFigure(Figure):
    """A figure that needs no window system, and leaves no global state behind.

    A notebook shows it, whether pyplot was imported or not; IPython shows plain figures only after
    pyplot has configured it.

    Parameters
    ----------
    charts : int
        How many charts are below each other.
    """

    def __init__(self, charts: int) -> None:
        super().__init__(figsize=(6.4, 2.8 * charts), dpi=150, layout="constrained")
        FigureCanvasAgg(self)

    def rows(self, count: int) -> Sequence[Axes]:
        """Return axes below each other that share the one along them."""
        return list(self.subplots(count, sharex=True, squeeze=False)[:, 0])

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure as matplotlib does; ``~`` is the home folder, as in a shell."""
        if isinstance(fname, str | os.PathLike):
            fname = path_text("savefig", fname)
            os.makedirs(os.path.dirname(fname) or ".", exist_ok=True)
        super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()
