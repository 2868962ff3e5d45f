"""The callbacks that come with psnb: they end training early, set learning rates, and write logs.

Logs are files to which lines are appended, or events of TensorBoard.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from io import StringIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO, Literal

from psnb._src.monitor.history import VALIDATION
from psnb._src.training.history import EpochRow, TrainingHistory, TrainingSnapshot
from psnb._src.training.trainer import Callback, Trainer
from psnb._src.utils.checks import choice, integer, path_text
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import error_text, shown, unknown
from psnb.errors import ConfigurationError

logger = logging.getLogger("psnb")


class EarlyStopping(Callback):
    """Ends training when a metric has not improved for some epochs.

    If training is resumed, the epochs of the history count, as if it had never stopped: training
    that this has ended is ended again immediately, unless ``patience`` is larger now.

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
        choice("EarlyStopping: mode", mode, ("min", "max"))
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
        if self._metric.startswith(VALIDATION) and not trainer.validates:
            raise ConfigurationError(
                f"EarlyStopping: {self._metric!r} is a metric of validation: give "
                "train_from_dataset(..., validation=dataset)"
            )
        self._judge_all(trainer)

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Stop if it is enough."""
        if trainer.history.stopped:
            return  # there is nothing to stop, and a part of an epoch says nothing
        if self._metric not in row.metrics:
            raise ConfigurationError(
                f"EarlyStopping: {unknown('metric', self._metric, row.metrics)}"
            )
        self._judge_all(trainer)

    def _judge_all(self, trainer: Trainer) -> None:
        """Judge anew: after a rewind, some that were judged are no part of the history."""
        self.best, self.best_epoch = math.nan, 0
        for row in trainer.history.rows:
            if self._metric in row.metrics:  # validation may be new
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


_COLUMNS = ("epoch", "batches", "examples", "seconds")


class CSVLog(Callback):
    """Appends a line for each epoch to a CSV file.

    The first epoch that is written decides on the columns. A file that is there already is
    continued, with its own columns. An epoch that was stopped has a line, too, and one more for the
    whole if training continues it. So has an epoch after which a process was killed before it
    saved: it is trained again. A last line without an end is ended if it has all columns, and else
    removed; a warning has it.

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path_text("CSVLog: path", path))

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Append a line."""
        values = {name: getattr(row, name) for name in _COLUMNS} | dict(row.metrics)
        head = _csv(values)
        end_last_line(self._path, lambda rest: self._is_line(rest, head))
        names = self._names()
        text = _csv([values.get(name, "") for name in names or values])
        append_lines(self._path, text if names else head + text)

    def _names(self, errors: str = "strict") -> list[str]:
        """Return the columns that the file has; none if it is empty, or not there."""
        if not self._path.is_file():
            return []
        with self._path.open(encoding="utf-8", errors=errors, newline="") as file:
            return next(csv.reader(file), [])

    def _is_line(self, rest: str, head: str) -> bool:
        """Return whether a line has all columns, and is not the beginning of a longer one."""
        try:
            values = next(csv.reader([rest]), [])
        except csv.Error:
            return False
        columns = self._names("replace")  # a letter may have been cut
        return not head.startswith(rest) and len(values) == len(columns)


def _csv(values: Iterable[Any]) -> str:
    text = StringIO(newline="")
    csv.writer(text).writerow(values)
    return text.getvalue()


class JSONLinesLog(Callback):
    """Appends a line for all that happens: ``{"time": …, "event": "epoch", "epoch": 1, …}``.

    Events are ``"begin"``, ``"batch"`` (now and then), ``"epoch"``, ``"checkpoint"``,
    ``"failure"`` and ``"end"``. A metric that is not a finite number is null. An epoch that was
    stopped has a line, too, and one more for the whole if training continues it. A last line
    without an end is ended if it is an event, and else removed; a warning has it.

    Parameters
    ----------
    path : str or os.PathLike
        The file; it is continued if it is there already.
    every : float
        Seconds between two ``"batch"`` lines, at least.
    """

    def __init__(self, path: str | os.PathLike[str], every: float = 10.0) -> None:
        self._path, self._every = Path(path_text("JSONLinesLog: path", path)), every
        self._last_report = -math.inf

    def on_begin(self, trainer: Trainer) -> None:
        """Append a line; the first ``"batch"`` of each training has one."""
        self._last_report = -math.inf
        self._append("begin", {"coordinator": trainer.coordinator.name})

    def on_batch(self, trainer: Trainer, snapshot: TrainingSnapshot) -> None:
        """Append a line, if the last one is old enough."""
        now = time.monotonic()
        if now - self._last_report >= self._every:
            self._last_report = now
            where = {"epoch": snapshot.epoch, "batch": snapshot.batch}
            self._append("batch", {**where, **_finite(snapshot.metrics)})

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Append a line."""
        counts = {"batches": row.batches, "examples": row.examples, "seconds": row.seconds}
        self._append("epoch", {"epoch": row.epoch, **counts, **_finite(row.metrics)})

    def on_checkpoint(self, trainer: Trainer, path: AnyPath) -> None:
        """Append a line."""
        self._append("checkpoint", {"path": str(path)})

    def on_failure(self, trainer: Trainer, error: Exception) -> None:
        """Append a line."""
        self._append("failure", {"error": error_text(error)})

    def on_end(self, trainer: Trainer, history: TrainingHistory) -> None:
        """Append a line."""
        self._append("end", {"epochs": len(history.rows), "stopped": history.stopped})

    def _append(self, event: str, values: Mapping[str, Any]) -> None:
        line = json.dumps({"time": time.time(), "event": event, **values}, allow_nan=False)
        end_last_line(self._path, _is_event)
        append_lines(self._path, line + "\n")


def _is_event(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


class TensorBoard(Callback):
    """Writes metrics as scalars; ``tensorboard --logdir FOLDER`` shows them.

    Under ``epoch/`` and a metric's name the values of whole epochs, by the epoch; under ``batch/``
    those of the epoch so far, a few times a second, by the number of batches that this training has
    used. If it continues an earlier one, so does that number. Needs ``pip install
    psnb[tensorboard]``.

    Parameters
    ----------
    folder : str or os.PathLike
        Where the event files go.

    Raises
    ------
    ConfigurationError
        If tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                "psnb.TensorBoard needs tensorboardX: pip install psnb[tensorboard]"
            ) from error
        self._folder = path_text("TensorBoard: folder", folder)
        self._writer: Any = None
        self._before = 0  # batches of earlier epochs

    def on_begin(self, trainer: Trainer) -> None:
        """Begin a file, behind the epochs that are resumed."""
        from tensorboardX import SummaryWriter

        # Its own names are of a second: the next training within it would overwrite the file.
        self._writer = SummaryWriter(self._folder, filename_suffix=f".{time.time_ns()}")
        self._before = sum(row.batches for row in trainer.history.rows)

    def on_batch(self, trainer: Trainer, snapshot: TrainingSnapshot) -> None:
        """Write the metrics so far."""
        for name, value in snapshot.metrics.items():
            self._writer.add_scalar(f"batch/{name}", value, self._before + snapshot.batch)

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Write the epoch's metrics."""
        self._before += row.batches
        for name, value in row.metrics.items():
            self._writer.add_scalar(f"epoch/{name}", value, row.epoch)
        self._writer.flush()

    def on_end(self, trainer: Trainer, history: TrainingHistory) -> None:
        """End the file, and the writer's thread."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def end_last_line(path: Path, is_line: Callable[[str], bool]) -> None:
    """See to it that a file ends with a line end, if it has anything; of a pipe there is no end.

    Text after the last line end, if it is a whole line, was left so by an editor, and is ended.
    Anything else is no line, nor can it be continued: it is removed. A warning has either.
    """
    if not path.is_file():
        return
    with open(path, "r+b") as file:
        rest = _after_last_line(file)
        if not rest:
            return
        text = rest.decode(errors="replace")
        end = file.seek(0, os.SEEK_END)
        if keep := is_line(text):
            file.write(b"\n")
        else:
            file.truncate(end - len(rest))
    logger.warning(
        "%s ended within a line, as a process was killed or had no room; %s: %s",
        path,
        "kept, as it may be whole" if keep else "removed",
        text,
    )


def append_lines(path: Path, text: str) -> None:
    """Append whole lines to a file, or nothing: a part from before an error is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", buffering=0) as file:
        begin = file.tell() if file.seekable() else None
        left = memoryview(text.encode())
        try:
            while left:
                left = left[file.write(left) :]
        except BaseException:  # an interrupt, too: half a line would be glued to the next one
            if begin is not None:
                with suppress(OSError):
                    file.truncate(begin)
            raise


def _after_last_line(file: BinaryIO) -> bytes:
    if not file.seek(0, os.SEEK_END):
        return b""  # which cannot be mapped
    with mmap(file.fileno(), 0, access=ACCESS_READ) as held:
        return held[held.rfind(b"\n") + 1 :]
