"""Static figures of reported metrics, of one run or several; the widget is the live view.

Imported when a figure is asked for: matplotlib takes half a second.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from psnb._src.monitor.branches import Part, cuts, parts
from psnb._src.monitor.charts.value_range import shown_range
from psnb._src.monitor.history import EpochBegin, Rewind
from psnb._src.utils.checks import path_text
from psnb._src.utils.text import NAME, truncate, unknown
from psnb.errors import ConfigurationError

_FEW = 30
"""Points of a line, such as one an epoch, that are marked; and epochs that are numbered."""

_PALE = 0.35
"""How much is left of the colour of an abandoned branch."""


@dataclass(frozen=True, eq=False)
class Line:
    """A metric of a run, as it is drawn.

    Attributes
    ----------
    color : str
        Of all of it; an abandoned branch is paler.
    places, values, smoothed : numpy.ndarray
        Of its points.
    parts : sequence of Part
        What of it is drawn in one.
    rewinds : sequence of float
        The places where its run went back.
    """

    color: str
    places: np.ndarray
    values: np.ndarray
    smoothed: np.ndarray
    parts: Sequence[Part]
    rewinds: Sequence[float]

    @property
    def marker(self) -> str:
        """What stands at each point."""
        return "o" if len(self.places) <= _FEW else ""

    def draw(self, axes: Axes) -> None:
        """Draw it, and a dashed line at each rewind."""
        averaged = not np.array_equal(self.values, self.smoothed, equal_nan=True)
        for points, abandoned in self.parts:
            x, left = self.places[points], _PALE if abandoned else 1.0
            if averaged:
                raw = self.values[points]
                axes.plot(x, raw, color=self.color, alpha=0.3 * left, linewidth=0.8)
            (drawn,) = axes.plot(x, self.smoothed[points], color=self.color, alpha=left)
            drawn.set(linewidth=1.6, marker=self.marker, markersize=4, zorder=2 + left)
        for place in self.rewinds:
            axes.axvline(place, color=self.color, alpha=0.6, linewidth=0.8, linestyle="--")


def plot(
    history: Mapping[str, Mapping[str, np.ndarray]],
    metrics: str | Sequence[str] | None = None,
    epochs: Sequence[EpochBegin] = (),
    rewinds: Sequence[Rewind] = (),
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
    cut_at, back = cuts(rewinds), [each.step for each in rewinds]
    begins = sorted([*(each.step for each in epochs), *back])
    for axes, name in zip(figure.rows(len(names)), names, strict=True):
        series = history[name]
        found = series["step"], series["value"], series["smoothed"]
        line = Line("tab:blue", *found, parts(series["time"], cut_at), back)
        line.draw(axes)
        for each in epochs:
            axes.axvline(each.step, color="tab:gray", alpha=0.4, linewidth=0.6)
        _set_scale(axes, [line], begins, log)
        # The names come from users, and are not mathematical formulas.
        axes.set_ylabel(name, parse_math=False)
        axes.grid(alpha=0.25)
    figure.axes[-1].set_xlabel("step")
    _write_numbers(figure.axes[0], epochs)
    for place in back[-_FEW:]:
        _write(figure.axes[0], place, "rewound")
    return figure


def _set_scale(axes: Axes, lines: Sequence[Line], epochs: Sequence[float], log: bool) -> None:
    """Show all but outliers, and a triangle at the edge for each of them."""
    if log:
        axes.set_yscale("log")
        return
    span = shown_range([(each.places, each.values, each.smoothed) for each in lines], epochs)
    if span is None:
        return
    low, high = span
    for line in lines:
        values = line.values
        for beyond, edge, marker in ((values > high, 1, "^"), (values < low, 0, "v")):
            places = line.places[beyond & np.isfinite(values)]
            if not len(places):
                continue
            (drawn,) = axes.plot(places, np.full(len(places), edge), marker, color=line.color)
            drawn.set(transform=axes.get_xaxis_transform(), clip_on=False, markersize=4)
    if high > low:
        margin = 0.05 * (high - low)
        axes.set_ylim(low - margin, high + margin)


def _write_numbers(axes: Axes, epochs: Sequence[EpochBegin]) -> None:
    """Write the numbers of epochs above the first chart, at most some thirty."""
    for each in epochs[:: 1 + len(epochs) // _FEW]:
        text = f"epoch {each.epoch}" if each is epochs[0] else str(each.epoch)
        _write(axes, each.step, text)


def _write(axes: Axes, place: float, text: str) -> None:
    where = axes.get_xaxis_transform()
    axes.text(place, 1.02, text, transform=where, color="tab:gray", fontsize="x-small")


def plot_runs(
    lines: Mapping[str, Mapping[str, Line]], metrics: Sequence[str], places: str, *, log: bool
) -> Figure:
    """Draw runs over each other.

    Parameters
    ----------
    lines : mapping of str to mapping
        By run, by metric.
    metrics : sequence of str
        Each has axes of its own.
    places : str
        What the places are.
    log : bool
        As for `plot`.
    """
    figure = MetricsFigure(len(metrics))
    for axes, name in zip(figure.rows(len(metrics)), metrics, strict=True):
        shown = {run: found[name] for run, found in lines.items() if name in found}
        for line in shown.values():
            line.draw(axes)
        # Of its own: all of a line may be of an abandoned branch.
        handles = [
            Line2D([], [], color=line.color, linewidth=1.6, marker=line.marker, markersize=4)
            for line in shown.values()
        ]
        legend = axes.legend(handles, [*map(str, range(len(shown)))], fontsize="small")
        for text, run in zip(legend.get_texts(), shown, strict=True):
            # A name may begin as what matplotlib leaves out, and is no mathematical formula.
            text.set_parse_math(False)
            text.set_text(truncate(run, NAME))
        axes.set_ylabel(name, parse_math=False)
        _set_scale(axes, [*shown.values()], (), log)
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
