"""Static figures of reported metrics, of one run or several; the widget is the live view.

Imported when a figure is asked for: matplotlib takes half a second.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from psnb._src.utils.text import NAME, truncate, unknown
from psnb.errors import ConfigurationError

_FEW = 30
"""Points of a line, such as one an epoch, that are marked."""


def plot(
    history: Mapping[str, Mapping[str, np.ndarray]],
    metrics: str | Sequence[str] | None = None,
    *,
    log: bool = False,
) -> Figure:
    """Draw metrics, each on axes of its own; see `ClusterCoordinator.plot`."""
    alone = [metrics] if isinstance(metrics, str) else metrics
    names = list(history) if alone is None else list(alone)
    for name in names:
        if name not in history:
            raise ConfigurationError(unknown("metric", name, history))
    if not names:
        raise ConfigurationError("no closure has reported anything yet: psnb.report(loss=...)")

    figure = MetricsFigure(len(names))
    for axes, name in zip(figure.subplots(len(names), squeeze=False)[:, 0], names, strict=True):
        series = history[name]
        axes.plot(series["step"], series["value"], color="tab:blue", alpha=0.3, linewidth=0.8)
        axes.plot(series["step"], series["smoothed"], color="tab:blue", linewidth=1.6)
        # The names come from users, and are not mathematical formulas.
        axes.set_ylabel(name, parse_math=False)
        axes.set_yscale("log" if log else "linear")
        axes.set_xlabel("values reported")
        axes.grid(alpha=0.25)
    return figure


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
    for axes, name in zip(figure.subplots(len(metrics), squeeze=False)[:, 0], metrics, strict=True):
        shown = {}
        for number, (run, found) in enumerate(lines.items()):
            if name not in found:
                continue
            x, raw, smoothed = found[name]
            color, marker = f"C{number % 10}", "o" if len(x) <= _FEW else ""
            if not np.array_equal(raw, smoothed, equal_nan=True):
                axes.plot(x, raw, color=color, alpha=0.25, linewidth=0.8)
            style = {"linewidth": 1.6, "marker": marker, "markersize": 4}
            (shown[run],) = axes.plot(x, smoothed, color=color, zorder=3, **style)
        legend = axes.legend(shown.values(), [*map(str, range(len(shown)))], fontsize="small")
        for text, run in zip(legend.get_texts(), shown, strict=True):
            # A name may begin as what matplotlib leaves out, and is no mathematical formula.
            text.set_parse_math(False)
            text.set_text(truncate(run, NAME))
        axes.set_ylabel(name, parse_math=False)
        axes.set_yscale("log" if log else "linear")
        axes.set_xlabel(places)
        axes.grid(alpha=0.25)
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

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()
