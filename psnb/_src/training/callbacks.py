"""Callback: gets the events of training, in the thread that trains."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from psnb._src.coordinator.coordinator import ClusterCoordinator
from psnb._src.coordinator.epoch import LeasedIterator
from psnb._src.data.ragged import Ragged
from psnb._src.data.reader import DatasetIterator
from psnb._src.data.spec import flatten
from psnb._src.metrics.metric import MetricStates, united
from psnb._src.metrics.ranking import loaded_states, saved_states
from psnb._src.monitor.history import EXAMPLES, NO_METRICS
from psnb._src.monitor.html.tables import html_table
from psnb._src.utils.checks import integer
from psnb._src.utils.files import AnyPath
from psnb._src.utils.text import shown, text_table
from psnb.errors import ConfigurationError

if TYPE_CHECKING:
    from psnb._src.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class TrainingSnapshot:
    """Training at one moment.

    Attributes
    ----------
    epoch : int
        Counts from 1.
    batch : int
        Elements of the dataset used in this epoch so far.
    examples : int or None
        As in `EpochRow`, so far.
    metrics : mapping of str to float
        Likewise.
    seconds : float
        Since the epoch began.
    """

    epoch: int
    batch: int
    examples: int | None
    metrics: Mapping[str, float]
    seconds: float


class Callback:
    """Gets the events of training; its methods do nothing, override those that you need.

    They are called in the thread that called `Trainer.train_from_dataset`, one at a time, while
    the workers go on: be quick, or the workers wait. ``trainer.stop("why")`` ends training. What a
    method raises ends it, too, at a consistent point, and is raised with the callback's name; the
    other callbacks are called all the same, and what they raise is among the error's notes.
    """

    def on_begin(self, trainer: Trainer) -> None:
        """Handle the beginning of training."""

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Handle the beginning of an epoch, or of the rest of one; its number counts from 1."""

    def on_batch(self, trainer: Trainer, snapshot: TrainingSnapshot) -> None:
        """Handle the progress of training; called four times a second at most."""

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Handle a row of the history, when an epoch and its validation are over.

        Also of an epoch that was stopped in the middle: ``trainer.history.stopped`` says why then,
        and the row is of that part and has no validation. If training goes on with it later, its
        next row is of the whole epoch.
        """

    def on_checkpoint(self, trainer: Trainer, path: AnyPath) -> None:
        """Handle a checkpoint that was saved."""

    def on_failure(self, trainer: Trainer, error: Exception) -> None:
        """Handle a failure: a closure raised, for example. The error is raised after that."""

    def on_end(self, trainer: Trainer, history: TrainingHistory) -> None:
        """Handle the end of training, also after a failure."""


# EpochFigures: what closures report in one epoch, and in each of its print periods. One thread.
#
# What an earlier run has trained of the epoch counts as well: `EpochFigures.saved` has it in
# JSON's types.

RECENT = "batch_"
"""What begins the name of a metric that is wanted of the print period alone."""

NOTHING: Mapping[str, Any] = {"numbers": {}, "states": {}}
"""What `EpochFigures.saved` returns when nothing was reported."""


class _Sum(NamedTuple):
    """Of a number: its sum times weights, the sum of weights, and how many were not finite."""

    total: float = 0.0
    weight: float = 0.0
    not_finite: int = 0

    def plus(self, other: _Sum, sign: int = 1) -> _Sum:
        """Return the sum of both, or what is left without the other."""
        return _Sum(
            self.total + sign * other.total,
            self.weight + sign * other.weight,
            self.not_finite + sign * other.not_finite,
        )


class _Reported(NamedTuple):
    """What was reported up to one moment, or between two."""

    numbers: Mapping[str, _Sum]
    states: MetricStates

    def since(self, earlier: _Reported) -> _Reported:
        """Return what was reported after another moment."""
        found = {}
        for name, each in self.numbers.items():
            before = earlier.numbers.get(name, _Sum())
            # The coordinator keeps series of the metrics, too.
            merged = name in self.states or name.removeprefix(RECENT) in self.states
            if each.weight > before.weight and not merged:
                found[name] = each.plus(before, -1)
        return _Reported(found, self.states.since(earlier.states))

    def and_(self, other: _Reported) -> _Reported:
        """Return what was reported here or there."""
        numbers = dict(other.numbers)
        for name, each in self.numbers.items():
            numbers[name] = numbers.get(name, _Sum()).plus(each)
        return _Reported(numbers, united(other.states, self.states))

    def results(self) -> dict[str, float]:
        """Return the mean of each number, and the value of each metric."""
        means = {
            name: float("nan") if each.not_finite else each.total / each.weight
            for name, each in self.numbers.items()
            if name not in NO_METRICS
        }
        return means | self.states.results()


class EpochFigures:
    """The metrics of what closures have reported since this was made.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        Whose closures.
    earlier : mapping
        From `saved`: what an earlier run had of the epoch.

    Raises
    ------
    KeyError, TypeError, ValueError
        If that is something else.
    """

    def __init__(
        self, coordinator: ClusterCoordinator, earlier: Mapping[str, Any] = NOTHING
    ) -> None:
        self._coordinator = coordinator
        self._begin = self._period = self._now()
        numbers = {name: _loaded(*each) for name, each in earlier["numbers"].items()}
        self._earlier = _Reported(numbers, loaded_states(earlier["states"]))

    def _now(self) -> _Reported:
        metrics = self._coordinator.statistics().metrics
        sums = {n: _Sum(each.total, each.weight, each.not_finite) for n, each in metrics.items()}
        return _Reported(sums, self._coordinator.metrics)

    def _epoch(self) -> _Reported:
        return self._now().since(self._begin).and_(self._earlier)

    @property
    def earlier(self) -> MetricStates:
        """What an earlier run had of the metrics."""
        return MetricStates(self._earlier.states)

    @property
    def examples(self) -> int | None:
        """The sum of the reported ``examples``; None if there were none."""
        found = self._epoch().numbers.get(EXAMPLES)
        return None if found is None else int(found.total)

    def so_far(self) -> dict[str, float]:
        """Return the metrics of the epoch so far."""
        return self._epoch().results()

    def saved(self) -> dict[str, Any]:
        """Return what the epoch has so far, as JSON can hold it."""
        found = self._epoch()
        numbers = {name: [str(each.total), *each[1:]] for name, each in found.numbers.items()}
        return {"numbers": numbers, "states": saved_states(found.states)}

    def lines(self) -> dict[str, float]:
        """Return what a printed line may have, and begin the next print period.

        Of numbers, the mean of the period. Of metrics the value so far, and under ``batch_`` and
        their names that of the period.
        """
        now = self._now()
        period = now.since(self._period).results()
        self._period = now
        so_far = now.since(self._begin).and_(self._earlier).states.results()
        return period | {f"{RECENT}{name}": value for name, value in period.items()} | so_far


def _loaded(total: str, weight: float, not_finite: int) -> _Sum:
    return _Sum(float(total), float(weight), int(not_finite))  # the sum may be infinite


# EpochProgress: the epoch that is being trained. Pure, without a lock: see `TrainingRun`.


@dataclass
class EpochProgress:
    """An epoch, also one of which another run has trained a part.

    Attributes
    ----------
    epoch : int
        Counts from 1.
    iterator : LeasedIterator
        What is left of it.
    figures : EpochFigures
        What closures reported.
    began : float
        When, of the monotonic clock.
    earlier_seconds : float
        How long the part took that another run has trained.
    seconds : float or None
        How long this run took, once it is over.
    """

    epoch: int
    iterator: LeasedIterator
    figures: EpochFigures
    began: float
    earlier_seconds: float
    seconds: float | None = None

    def end(self) -> None:
        """Note that it is over."""
        self.seconds = time.monotonic() - self.began

    def snapshot(self) -> TrainingSnapshot:
        """Return the figures of now."""
        seconds = time.monotonic() - self.began if self.seconds is None else self.seconds
        return TrainingSnapshot(
            self.epoch,
            self.iterator.progress().visits,
            self.figures.examples,
            self.figures.so_far(),
            self.earlier_seconds + seconds,
        )

    def part(self) -> dict[str, Any]:
        """Return what came out of it so far, in JSON's types: what another run goes on with."""
        return {**self.figures.saved(), "seconds": self.snapshot().seconds}


class EarlyStopping(Callback):
    """Ends training when a metric has not improved for some epochs.

    If training is resumed, the epochs that the history has by then count, as if it had gone on: one
    that this has ended is ended again at once, unless ``patience`` is larger now.

    Parameters
    ----------
    metric : str
        A metric of the history: ``"val_auc"``, for example.
    patience : int
        After how many epochs without an improvement; at least 1.
    mode : {"min", "max"}
        Whether it improves downwards or upwards.
    min_delta : float
        By how much it must change to count as improved.

    Attributes
    ----------
    best : float
        The best value so far; NaN before the first epoch.
    best_epoch : int
        When that was; 0 before.

    Raises
    ------
    ConfigurationError
        If an argument is of the wrong kind; while training, if there is no such metric.
    """

    def __init__(
        self,
        metric: str,
        patience: int = 1,
        mode: Literal["min", "max"] = "min",
        min_delta: float = 0.0,
    ) -> None:
        if mode not in ("min", "max"):
            raise ConfigurationError(
                f"EarlyStopping: mode must be 'min' or 'max', found {shown(mode)}"
            )
        if not min_delta >= 0:
            raise ConfigurationError(
                f"EarlyStopping: min_delta must be >= 0, found {shown(min_delta)}"
            )
        self._metric, self._sign = metric, 1.0 if mode == "max" else -1.0
        self._patience = integer("EarlyStopping: patience", patience, 1)
        self._min_delta = min_delta
        self.best, self.best_epoch = math.nan, 0

    def on_begin(self, trainer: Trainer) -> None:
        """Forget an earlier training, and learn of the epochs that are resumed."""
        self.best, self.best_epoch = math.nan, 0
        for row in trainer.history.rows:
            if self._metric in row.metrics:  # validation may be new
                self._judge(trainer, row)

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Stop if it is enough."""
        if trainer.history.stopped:
            return  # there is nothing to stop, and a part of an epoch says nothing
        if self._metric not in row.metrics:
            raise ConfigurationError(
                f"EarlyStopping: there is no metric {self._metric!r}; found "
                f"{', '.join(row.metrics) or 'none'}"
            )
        self._judge(trainer, row)

    def _judge(self, trainer: Trainer, row: EpochRow) -> None:
        value = row.metrics[self._metric]
        gain = self._sign * (value - self.best)
        if not self.best_epoch or gain > self._min_delta or math.isnan(self.best):
            self.best, self.best_epoch = value, row.epoch
        elif row.epoch - self.best_epoch >= self._patience:
            trainer.stop(
                f"{self._metric} has not improved since epoch {self.best_epoch}: {self.best:.4g}"
            )


class LearningRateScheduler(Callback):
    """Sets the learning rate of parameters before each epoch, as Keras's does.

    Rates that change with every update are a `Schedule` of the optimizer itself:
    ``psnb.Adagrad(psnb.CosineDecay(0.05, 10_000))``.

    Parameters
    ----------
    schedule : callable
        Takes the number of an epoch, from 1 on, and returns its learning rate.
    parameters : iterable of str, optional
        The names of variables and embeddings; by default all that have an optimizer.

    Raises
    ------
    ConfigurationError
        If ``schedule`` is not a function; while training, if there is no such parameter, or a rate
        is out of range.
    """

    def __init__(
        self, schedule: Callable[[int], float], parameters: Iterable[str] | None = None
    ) -> None:
        if not callable(schedule):
            raise ConfigurationError(
                f"LearningRateScheduler takes a function of the epoch, found {shown(schedule)}"
            )
        self._schedule = schedule
        self._parameters = None if parameters is None else tuple(parameters)

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Set the rates of the epoch."""
        parameters = trainer.coordinator.strategy.parameters
        names = self._parameters
        if names is None:
            names = tuple(name for name, each in parameters.items() if each.optimizer is not None)
        for name in names:
            trainer.coordinator.set_learning_rate(name, float(self._schedule(epoch)))


# TrainingHistory: what came out of training, epoch by epoch. Immutable. Pure.


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One epoch of `TrainingHistory`.

    Attributes
    ----------
    epoch : int
        Counts from 1.
    metrics : mapping of str to float
        What closures reported, each closure once: of numbers the mean, weighted by the examples
        that were reported with them; see `report`. The names of what ``validation`` gave begin
        with ``val_``.
    examples : int or None
        The sum of what closures reported as ``examples``, each closure once; None if none did.
    batches : int
        Elements of the dataset that were used.
    seconds : float
        How long it took, validation not counted.
    """

    epoch: int
    metrics: Mapping[str, float]
    examples: int | None
    batches: int
    seconds: float


@dataclass(frozen=True)
class TrainingHistory:
    """What `Trainer.train_from_dataset` returns.

    ``history["loss"]`` is the list of a metric's values, one an epoch, NaN where it was not
    reported; ``"examples"``, ``"batches"`` and ``"seconds"`` are columns, too.

    Attributes
    ----------
    rows : tuple of EpochRow
        The epochs. If training was stopped in the middle of one, its row is of that part. If it
        began there, its row is of the whole epoch all the same; but states of metrics of your own,
        and of an exact AUC beyond 1 MiB, are those of the rest.
    stopped : str
        Why training ended early: ``"interrupted"``, or what `Trainer.stop` was given; empty if it
        did not.
    state : mapping
        Where training is, in JSON's types: ``train_from_dataset(..., resume=history.state)`` goes
        on from there. Checkpoints of the trainer have it as their metadata.
    """

    rows: tuple[EpochRow, ...] = ()
    stopped: str = ""
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> list[Any]:
        columns = ("epoch", "examples", "batches", "seconds")
        if name in columns:
            return [getattr(row, name) for row in self.rows]
        if name not in self.names:
            raise ConfigurationError(
                f"the history has no {name!r}; it has {', '.join((*columns[1:], *self.names))}"
            )
        return [row.metrics.get(name, float("nan")) for row in self.rows]

    @property
    def names(self) -> list[str]:
        """The names of its metrics, in the order in which they first came."""
        return list(dict.fromkeys(name for row in self.rows for name in row.metrics))

    def __repr__(self) -> str:
        head, *rows = self._cells()
        end = [f"stopped: {self.stopped}"] if self.stopped else []
        return "\n".join([text_table(head, rows), *end])

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        end = f"<div>stopped: {escape(self.stopped)}</div>" if self.stopped else ""
        return f"<div>{html_table('epochs', tuple(head), [tuple(row) for row in rows])}{end}</div>"

    def _cells(self) -> list[list[str]]:
        names = self.names
        return [
            ["epoch", "batches", "examples", "seconds", *names],
            *(
                [
                    str(row.epoch),
                    f"{row.batches:,}",
                    "-" if row.examples is None else f"{row.examples:,}",
                    f"{row.seconds:.1f}",
                    *(f"{row.metrics[n]:.4f}" if n in row.metrics else "-" for n in names),
                ]
                for row in self.rows
            ),
        ]


def saved_rows(rows: tuple[EpochRow, ...]) -> list[dict[str, Any]]:
    """Return rows in JSON's types; `loaded_rows` makes them again."""
    return [asdict(row) | {"metrics": _as_json(row.metrics)} for row in rows]


def _as_json(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """Return metrics with texts in place of NaN and infinite numbers, which JSON lacks."""
    return {n: value if math.isfinite(value) else str(float(value)) for n, value in metrics.items()}


def loaded_rows(saved: Any) -> tuple[EpochRow, ...]:
    """Return the rows that `saved_rows` was given.

    Raises
    ------
    TypeError
        If these are not rows.
    """
    return tuple(
        EpochRow(
            **row | {"metrics": {n: float(value) for n, value in dict(row["metrics"]).items()}}
        )
        for row in saved
    )


# rows_of: how many examples an element of a dataset has. Pure.


def rows_of(element: Any) -> int:
    """Return the length of the first array or `Ragged` of a batch; 1 if there is none."""
    for leaf in flatten(element)[0]:
        if isinstance(leaf, Ragged) or (isinstance(leaf, np.ndarray) and leaf.ndim):
            return len(leaf)
    return 1


class CountedRows(Iterator[Any]):
    """An iterator that counts what is taken from it.

    Parameters
    ----------
    iterator : DatasetIterator
        What it takes from.

    Attributes
    ----------
    rows, batches : int
        Taken so far.
    ended : bool
        Whether it was found at its end.
    """

    def __init__(self, iterator: DatasetIterator) -> None:
        self._iterator = iterator
        self.rows = self.batches = 0
        self.ended = False

    def __next__(self) -> Any:
        try:
            element = next(self._iterator)
        except StopIteration:
            self.ended = True
            raise
        self.rows += rows_of(element)
        self.batches += 1
        return element
