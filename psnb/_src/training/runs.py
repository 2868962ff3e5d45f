"""Runs: what checkpoint managers and saved histories have left in a folder, as a table."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from psnb._src.checkpoint.folders import checkpoints_in, is_gone
from psnb._src.checkpoint.manifest import MANIFEST
from psnb._src.checkpoint.reader import SavedCheckpoint
from psnb._src.checkpoint.store import number_of
from psnb._src.monitor.branches import kept_points
from psnb._src.monitor.charts.curves import Curve, Curves, loaded_curves
from psnb._src.monitor.history import NO_METRICS, POINT
from psnb._src.monitor.html.tables import html_table
from psnb._src.monitor.run_record import RunRecord, settings_of
from psnb._src.training.history import (
    HISTORY,
    EpochRow,
    TrainingHistory,
    loaded_history,
    loaded_rows,
)
from psnb._src.utils.checks import path_text
from psnb._src.utils.paths import AnyPath, as_path
from psnb._src.utils.sealed_json import typed
from psnb._src.utils.text import NAME, Named, counted, text_table, truncate
from psnb.errors import CheckpointError

_HIGHER = re.compile(r"(^|[/_])(acc|accuracy|(\w*)auc|f1|hit\w*|mrr|ndcg|precision|recall|r2)\b")
"""The metrics of which higher is better, by their names; of all others, lower is."""

_NO_ROWS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What rows raise that are none; `CheckpointError` is not among them."""

_MOST_COLUMNS = 6
_DEEPEST = 3


@dataclass(frozen=True, slots=True)
class RunMetric:
    """One metric of a run, smoothed, of the points that are kept: of no abandoned branch.

    The first points are averages of few values, and the best may be one of them.

    Attributes
    ----------
    last, best : float
        The newest value, and the best one; NaN if there is none.
    best_step : int
        Where that was.
    higher_is_better : bool
        By its name: of an AUC, accuracy, precision, recall, F1, R2, hit rate, MRR and NDCG. Of all
        others, the lowest value is the best.
    """

    last: float
    best: float
    best_step: int
    higher_is_better: bool


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A run up to one moment; `runs` lists them, `compare` draws them.

    Attributes
    ----------
    name : str
        The coordinator's; of a saved history, its file's.
    path : pathlib.Path, RemotePath or None
        Its newest checkpoint that can be read, or its file; None if it lives.
    began, saved : float
        When it began, and the moment that this is of; in seconds since the epoch. NaN if that is
        not known, as of what an earlier psnb saved.
    settings : mapping
        With what it was made, in JSON's types: ``mode``, ``replicas``, ``workers``, ``servers``,
        ``commit`` (of git, in the notebook's folder), ``optimizers`` (as made), ``changes`` (of
        their hyperparameters, by this notebook, with times), ``versions``. Empty of what an earlier
        psnb saved.
    epochs : int
        How many a trainer had ended.
    """

    name: str
    path: AnyPath | None
    began: float
    saved: float
    settings: Mapping[str, Any]
    epochs: int
    curves: Curves = field(default_factory=Curves)

    @property
    def metrics(self) -> dict[str, RunMetric]:
        """The last and the best value of each metric that has one of no abandoned branch."""
        every = self.curves.named.items()
        at = self.curves.cuts
        kept = {n: kept_points(c.points, at) for n, c in every if n not in NO_METRICS}
        return Named({n: _metric(n, each) for n, each in kept.items() if len(each)}, "metric")

    @property
    def history(self) -> dict[str, dict[str, np.ndarray]]:
        """Its curves, as of `ClusterCoordinator.history`; a thousand points of each at most."""
        every = self.curves.named.items()
        fields = POINT.names or ()
        return Named({n: {key: c.points[key].copy() for key in fields} for n, c in every}, "metric")

    def __repr__(self) -> str:
        head, *rows = _cells((self,))
        return text_table(head, rows)


class Runs(tuple[Run, ...]):
    """The runs of a folder, the oldest first; all that a tuple can. A notebook shows a table.

    Attributes
    ----------
    wrong : tuple of str
        What cannot be read, and why.
    """

    wrong: tuple[str, ...] = ()

    def __repr__(self) -> str:
        head, *rows = _cells(self)
        return "\n".join([text_table(head, rows) if rows else "no runs", *self.wrong])

    def _repr_html_(self) -> str:
        head, *rows = _cells(self)
        lines = "".join(f"<div>{escape(each)}</div>" for each in self.wrong)
        return f"<div>{html_table('runs', head, rows) or 'no runs'}{lines}</div>"


def runs(folder: str | PathLike[str]) -> Runs:
    """List the runs that checkpoint managers and saved histories have left in a folder.

    Of the path of one checkpoint, or of one saved history, it is that run.

    Looked at are the folder, and those in it three levels deep: the checkpoints of a
    `CheckpointManager`, of which each run's newest counts, and, on this machine's disks, files of
    `TrainingHistory.save`.
    What a run goes on from, by `resume` or a `Trainer`, is the same run. No parameters are read,
    and nothing is changed.

    Parameters
    ----------
    folder : str or os.PathLike
        A path, or an address that fsspec understands.

    Returns
    -------
    Runs
        A tuple of `Run`, the oldest first. What cannot be read is in its ``wrong``.

    Raises
    ------
    CheckpointError
        If there is no such folder, or it cannot be read.

    Examples
    --------
    >>> import psnb, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> history = psnb.TrainingHistory((psnb.EpochRow(1, {"loss": 0.5}, 100, 10, 1.5),))
    >>> path = history.save(f"{folder}/monday.run.json")
    >>> [(run.name, run.metrics["loss"].last) for run in psnb.runs(folder)]
    [('monday', 0.5)]
    """
    return _listed(as_path(path_text("psnb.runs: folder", folder)))


def runs_at(path: AnyPath) -> Runs:
    """Return the run of a checkpoint or of a saved history, or the runs of a folder.

    Raises
    ------
    CheckpointError
        If there is none that can be read.
    """
    found = _listed(path)
    if not found:
        raise CheckpointError("\n".join([f"there is no run in {str(path)!r}", *found.wrong]))
    return found


def _listed(path: AnyPath) -> Runs:
    listing = _Listing()
    if (_is_history(path) and not _is_folder(path)) or number_of(path.name) is not None:
        listing.add(path)
    else:
        listing.walk(path)
    return listing.runs()


class _Listing:
    """Gathers runs, and what is wrong."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Run] = {}
        self._wrong: list[str] = []

    def runs(self) -> Runs:
        """Return what was found."""
        every = sorted(self._found.values(), key=lambda run: (run.saved, str(run.path)))
        listed = Runs(every)
        listed.wrong = tuple(map(truncate, self._wrong))
        return listed

    def walk(self, place: AnyPath, depth: int = 0) -> None:
        """Add the runs of a folder, and of those in it."""
        try:
            names = _names(place)
            checkpoints = checkpoints_in(place)
        except (OSError, CheckpointError) as error:
            if not depth:
                raise CheckpointError(f"no runs can be read in {str(place)!r}: {error}") from error
            self._wrong.append(f"{str(place)!r} cannot be read now: {error}")
            return
        for path in reversed(checkpoints):  # the newest of a run counts
            self.add(path)
        for path in (place / name for name in names):
            if _is_history(path):
                self.add(path)
            elif depth < _DEEPEST and _is_folder(path):
                self.walk(path, depth + 1)

    def add(self, path: AnyPath) -> None:
        """Add the run of a checkpoint, unless a newer one of it is there, or of a history."""
        try:
            if _is_history(path):
                history, saved = loaded_history(Path(path))
                name = path.name.removesuffix(HISTORY)
                self._found[str(path), ""] = run_of_history(history, name, path, saved)
                return
            checkpoint = SavedCheckpoint(path)
            record = self._record(checkpoint)
            key = str(path.parent), "" if record is None else record.id
            if key not in self._found:
                self._found[key] = _run_of(checkpoint, record)
        except _NO_ROWS as error:  # of a history
            self._wrong.append(f"{str(path)!r} has rows that no trainer has made: {error!r}")
        except CheckpointError as error:
            if _is_history(path) or not is_gone(path):  # by a manager, just now
                self._wrong.append(str(error))

    def _record(self, checkpoint: SavedCheckpoint) -> RunRecord | None:
        try:
            record = typed(checkpoint.run.get("record"), RunRecord | None)  # type: ignore[arg-type]
            if record is not None:
                loaded_curves(record.curves)
        except ValueError as error:
            where = str(checkpoint.path)
            self._wrong.append(f"checkpoint {where!r} has no curves that can be read: {error}")
            return None
        return record


def _is_history(path: AnyPath) -> bool:
    return isinstance(path, Path) and path.name.endswith(HISTORY)


def _names(place: AnyPath) -> list[str]:
    if isinstance(place, Path):
        return sorted(each.name for each in place.iterdir())
    return place.names()


def _is_folder(path: AnyPath) -> bool:
    if path.name.startswith((".", "files-")) or number_of(path.name) is not None:
        return False
    if isinstance(path, Path):  # a link may lead round and round
        return os.path.isdir(path) and not os.path.islink(path)
    return "." not in path.name  # to ask a store for each name would take long


def _run_of(checkpoint: SavedCheckpoint, record: RunRecord | None) -> Run:
    try:
        rows = loaded_rows(checkpoint.metadata.get("rows", ()))
        _curves_of_rows(rows, 0.0)
    except _NO_ROWS:
        rows = ()  # metadata are the caller's, of any kind
    path = checkpoint.path
    if record is None:
        history = TrainingHistory(rows)
        return run_of_history(history, path.parent.name or str(path), path, _written(path))
    curves, settings = loaded_curves(record.curves), settings_of(record.settings)
    return Run(record.name, path, record.began, record.saved, settings, len(rows), curves)


def _written(path: AnyPath) -> float:
    try:
        manifest = path / MANIFEST
        return manifest.stat().st_mtime if isinstance(manifest, Path) else manifest.modified()
    except OSError:
        return math.nan


def run_of_history(
    history: TrainingHistory, name: str, path: AnyPath | None = None, saved: float = math.nan
) -> Run:
    """Return the run of a trainer's history; its points are epochs."""
    rows = history.rows
    began = saved - sum(row.seconds for row in rows)
    curves = _curves_of_rows(rows, 0.0 if math.isnan(began) else began)
    return Run(name, path, began, saved, history.settings, len(rows), curves)


def _curves_of_rows(rows: Sequence[EpochRow], began: float) -> Curves:
    found: dict[str, list[tuple[float, ...]]] = {}
    step, when, examples = 0, began, 0.0
    for row in rows:
        step, when = step + row.batches, when + row.seconds
        examples += row.examples or 0
        for name, value in row.metrics.items():
            found.setdefault(name, []).append((step, when, value, value, examples))
    named = {name: Curve(step, np.array(points, POINT)) for name, points in found.items()}
    return Curves(named, examples)


def _metric(name: str, points: np.ndarray) -> RunMetric:
    higher = _HIGHER.search(name.lower()) is not None
    values = points["smoothed"]
    known = np.where(np.isnan(values), -np.inf if higher else np.inf, values)
    best = int(known.argmax() if higher else known.argmin())
    return RunMetric(float(values[-1]), float(values[best]), int(points["step"][best]), higher)


def _cells(every: Sequence[Run]) -> list[tuple[str, ...]]:
    by_run = [run.metrics for run in every]
    names = list(dict.fromkeys(name for metrics in by_run for name in metrics))[:_MOST_COLUMNS]
    return [
        ("run", "saved", "epochs", "settings", *names),
        *(
            (
                truncate(run.name, NAME),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(run.saved))
                if math.isfinite(run.saved)
                else "-",
                str(run.epochs),
                truncate(summary(run.settings), NAME),
                *(
                    f"{metrics[n].last:.4g} (best {metrics[n].best:.4g})" if n in metrics else "-"
                    for n in names
                ),
            )
            for run, metrics in zip(every, by_run, strict=True)
        ),
    ]


def summary(settings: Mapping[str, Any]) -> str:
    """Return settings in a line: ``"Async, 2 workers, Adagrad 0.1 → 0.05, 1a2b3c4d"``."""
    if not settings:
        return "-"
    optimizers = dict.fromkeys(
        f"{described.get('name')} {_rates(settings, name, described)}"
        for name, described in settings["optimizers"].items()
    )
    learning = [*optimizers] if len(optimizers) < 4 else [f"{len(optimizers)} optimizers"]
    mode, workers = str(settings["mode"].get("name")), counted(settings["workers"], "worker")
    return ", ".join([mode, workers, *learning, *filter(None, [settings["commit"][:8]])])


def _rates(settings: Mapping[str, Any], parameter: str, made: Mapping[str, Any]) -> str:
    later = [
        each["value"]
        for each in settings["changes"]
        if (each["parameter"], each["hyperparameter"]) == (parameter, "learning_rate")
    ]
    every = [_rate(each) for each in (made.get("learning_rate"), *later)]
    rates = [rate for rate, _ in groupby(every)]  # one that was set again has not changed
    middle = ["…"] if len(rates) > 3 else rates[1:-1]
    return " → ".join([*rates[:1], *middle, *rates[1:][-1:]])


def _rate(value: Any) -> str:
    if isinstance(value, Mapping):  # a schedule
        return str(value.get("name"))
    return f"{value:g}" if isinstance(value, int | float) else str(value)
