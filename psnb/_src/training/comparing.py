"""compare: the curves of several runs over each other, of those that have ended and that live."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from psnb._src.coordinator.coordinator import ClusterCoordinator, coordinator_core
from psnb._src.monitor.branches import parts
from psnb._src.monitor.charts.curves import Curves
from psnb._src.monitor.history import NO_METRICS
from psnb._src.monitor.run_record import settings_of
from psnb._src.training.history import TrainingHistory
from psnb._src.training.runs import Run, run_of_history, runs_at
from psnb._src.training.trainer import Trainer
from psnb._src.utils.checks import choice, path_text
from psnb._src.utils.paths import as_path
from psnb._src.utils.text import shown, unknown
from psnb.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from psnb._src.monitor.charts.plot import Line

_AXES = {
    "step": "step",
    "examples": "examples",
    "time": "seconds since the first value",
}

Comparable = (
    Run | Sequence[Run] | ClusterCoordinator | Trainer | TrainingHistory | str | PathLike[str]
)
"""What `compare` takes."""


def compare(
    *runs: Comparable,
    metrics: str | Sequence[str] | None = None,
    by: Literal["step", "examples", "time"] = "step",
    log: bool = False,
) -> Figure:
    """Draw the curves of several runs over each other.

    Parameters
    ----------
    *runs : Run, sequence of Run, ClusterCoordinator, Trainer, TrainingHistory, str or os.PathLike
        What to compare: runs that `runs` has found, or paths (of a folder of runs, a checkpoint, or
        a saved history). Of a coordinator, or the coordinator of a trainer, the curves until now;
        of a history one point an epoch, with its batches as steps.
    metrics : str or sequence of str, optional
        Which metrics; by default all that at least one run has, a chart each.
    by : {"step", "examples", "time"}
        What the values are drawn over: the steps until then (the values of the metric that is
        reported most often), the training examples, or the seconds since the run's first value. By
        examples, steps of different batch sizes compare.
    log : bool
        Whether the axis of the values is logarithmic.

    Returns
    -------
    matplotlib.figure.Figure
        One chart for each metric, with a line for each run that has it: smoothed values strong, raw
        ones pale where they differ. Where a run's parameters went back, by
        `ClusterCoordinator.rewind`, its line ends at a dashed one, and what was abandoned is paler.
        As the last line of a cell it is shown; ``savefig`` writes it.

    Raises
    ------
    ConfigurationError
        If there is no run, if one is of another kind, if no run has one of the metrics, or, by
        examples, if a run has reported none: ``psnb.report(examples=...)``.
    CheckpointError
        If a path has no run that can be read.

    Examples
    --------
    >>> import psnb
    >>> rows = [psnb.EpochRow(n, {"loss": 1 / n}, 100, 10, 1.5) for n in (1, 2)]
    >>> figure = psnb.compare(psnb.TrainingHistory((rows[0],)), psnb.TrainingHistory((*rows,)))
    >>> len(figure.axes)
    1
    """
    from psnb._src.monitor.charts.plot import plot_runs

    choice("compare: by", by, (*_AXES,))
    found = [each for given in runs for each in _runs_of(given)]
    if not found:
        raise ConfigurationError("compare takes runs: psnb.compare(*psnb.runs(folder))")
    known = dict.fromkeys(n for run in found for n in run.curves.named if n not in NO_METRICS)
    several = isinstance(metrics, Sequence) and not isinstance(metrics, str)
    wanted: list[Any] = [*known] if metrics is None else [*metrics] if several else [metrics]
    for name in wanted:
        if name not in known:
            raise ConfigurationError(unknown("metric", name, known))
    if not wanted:
        raise ConfigurationError("no run has reported a metric yet: psnb.report(loss=...)")
    if by == "examples":
        for run in found:
            if not run.curves.examples:
                raise ConfigurationError(
                    f"run {run.name!r:.200} has reported no examples: psnb.report(examples=...), "
                    "or compare by='step' or by='time'"
                )
    lines = {
        label: _lines(run.curves, by, f"C{number % 10}")
        for number, (label, run) in enumerate(_labelled(found))
    }
    return plot_runs(lines, wanted, _AXES[by], log=log)


def _runs_of(given: Any) -> Sequence[Run]:
    match given:
        case Run():
            return [given]
        case tuple() | list():
            return [run for each in given for run in _runs_of(each)]
        case ClusterCoordinator():
            return [_live(given)]
        case Trainer():
            return [_live(given.coordinator)]
        case TrainingHistory():
            return [run_of_history(given, "history")]
        case str() | PathLike():
            return runs_at(as_path(path_text("compare", given)))
    raise ConfigurationError(
        "compare takes runs, coordinators, trainers, histories and paths, found " + shown(given)
    )


def _live(coordinator: ClusterCoordinator) -> Run:
    coordinator.history()  # draws merged metrics with the very last examples
    core = coordinator_core(coordinator)
    settings = settings_of(core.run_settings())
    return Run(
        core.name, None, core.recording.began, time.time(), settings, 0, core.recording.curves()
    )


def _labelled(runs: Sequence[Run]) -> Iterator[tuple[str, Run]]:
    """Yield runs with names that differ."""
    taken: set[str] = set()
    for run in runs:
        label, number = run.name, 2
        while label in taken:
            label, number = f"{run.name} ({number})", number + 1
        taken.add(label)
        yield label, run


def _lines(curves: Curves, by: str, color: str) -> Mapping[str, Line]:
    """Return the line of each metric."""
    from psnb._src.monitor.charts.plot import Line

    begin = min((c.points["time"].min() for c in curves.named.values()), default=math.nan)
    cut_at = curves.cuts
    rewinds = [each.time - begin if by == "time" else getattr(each, by) for each in cut_at]
    found = {}
    for name, curve in curves.named.items():
        points = curve.points
        places = points["time"] - begin if by == "time" else points[by]
        split = parts(points["time"], cut_at)
        found[name] = Line(color, places, points["value"], points["smoothed"], split, rewinds)
    return found
