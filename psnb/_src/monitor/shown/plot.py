"""A static figure of reported metrics, for papers; the widget is the live view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from psnb.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(
    history: Mapping[str, Mapping[str, np.ndarray]],
    metrics: Sequence[str] | None = None,
    *,
    log: bool = False,
) -> Figure:
    """Draw metrics, each on axes of its own; see `ClusterCoordinator.plot`."""
    names = list(history) if metrics is None else list(metrics)
    for name in names:
        if name not in history:
            known = ", ".join(map(repr, history)) or "nothing"
            raise ConfigurationError(f"no closure has reported {name!r} yet; there is {known}")
    if not names:
        raise ConfigurationError("no closure has reported anything yet: psnb.report(loss=...)")
    from psnb._src.monitor.shown.metrics_figure import MetricsFigure

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
