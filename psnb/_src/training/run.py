"""TrainingRun: one call of `Trainer.train_from_dataset`.

One thread: the caller's. It is in the device worker nearly all the time, which calls back ten
times a second: fetch lines, callbacks, saves and requests to stop happen there. Any thread may
request a stop, and the thread of an automatic save asks for the state.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from psnb._src.checkpoint.manager import SaveSchedule
from psnb._src.coordinator.coordinator import ClusterCoordinator
from psnb._src.coordinator.epoch import Epochs, LeasedIterator
from psnb._src.coordinator.partitioned import PartitionedDataset
from psnb._src.coordinator.resume import CheckpointManager, epoch_metrics_shown, epoch_shown
from psnb._src.data.dataset import Dataset
from psnb._src.data.in_memory import InMemoryDataset, QueueDataset
from psnb._src.monitor.history import EXAMPLES, VALIDATION
from psnb._src.monitor.progress_line import Share
from psnb._src.monitor.training_clock import TrainingClock
from psnb._src.training.callbacks import (
    NOTHING,
    Callback,
    EpochFigures,
    EpochProgress,
    EpochRow,
    TrainingHistory,
    loaded_rows,
    saved_rows,
)
from psnb._src.utils.checks import integer
from psnb._src.utils.files import AnyPath
from psnb._src.utils.text import error_text, shown
from psnb._src.utils.threads import Lock
from psnb.errors import ConfigurationError

if TYPE_CHECKING:
    from psnb._src.training.trainer import Trainer


# EpochSource: the dataset of each epoch, on the workers. One thread.

Files = Callable[[int], Any] | Sequence[Any]
"""The files of each epoch: a function of its number, from 1 on, or one entry for each epoch."""


class EpochSource:
    """Begins epochs; keeps a dataset on the workers as long as the epochs have the same.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        Puts datasets onto the workers.
    dataset, files
        As for `Trainer.train_from_dataset`.

    Raises
    ------
    ConfigurationError
        If the dataset cannot be leased, or has no files to replace.
    """

    def __init__(self, coordinator: ClusterCoordinator, dataset: Any, files: Files | None) -> None:
        if not callable(dataset):
            _check(dataset)
        if files is not None and not isinstance(dataset, Dataset | QueueDataset | InMemoryDataset):
            raise ConfigurationError(
                f"files= replaces the files of a dataset of psnb.data, "
                f"found {shown(dataset)}: give the "
                "dataset itself, not what create_per_worker_dataset returns"
            )
        self._coordinator, self._dataset, self._files = coordinator, dataset, files
        self._source: Any = None  # `_made` is of it, and kept while it stays the same
        self._made: Epochs[Any] | None = None
        self._shuffles = 0  # how often that was shuffled

    def begin(self, epoch: int, state: Mapping[str, Any] | None = None) -> LeasedIterator:
        """Return the iterator of an epoch; with a state, it goes on with it.

        A dataset in memory is shuffled first, by a seed that is the epoch's number.
        """
        # Cut as it was, though there may be another number of workers.
        made = self._place(
            self._of(epoch), epoch, None if state is None else state["dataset"]["splits"]
        )
        if made is self._made and isinstance(made, PartitionedDataset):
            while self._shuffles < epoch:
                self._shuffles += 1
                made.global_shuffle(self._shuffles)
        return made.iterator(state)

    def check(self) -> None:
        """Check that the dataset can be leased and has its files, before an epoch needs it.

        Not of one in memory: that would load it now.

        Raises
        ------
        ConfigurationError, DatasetError
            If it cannot, or has not.
        """
        if not callable(self._dataset) and not isinstance(self._dataset, InMemoryDataset):
            self._place(self._dataset, 1)

    def whole(self) -> Epochs[Any]:
        """Return the dataset as it is, for closures that read whole splits."""
        return self._place(self._dataset, 1)

    def _place(self, source: Any, epoch: int, splits: int | None = None) -> Epochs[Any]:
        """Put a dataset onto the workers, unless it is there."""
        if isinstance(source, Epochs):
            return source
        if self._made is None or source is not self._source:
            self.release()
            made = self._coordinator.create_per_worker_dataset(
                source, sharding="dynamic", splits=splits
            )
            assert isinstance(made, Epochs)
            if isinstance(made, PartitionedDataset):
                made.load_into_memory()
            # So a dataset for all epochs has the same order if training goes on in another process.
            self._shuffles = epoch - 1 if self._varies else 0
            self._made, self._source = made, source
        return self._made

    def release(self) -> None:
        """Let the workers forget what was made here."""
        if isinstance(self._made, PartitionedDataset):
            self._made.release_memory()
        self._made = self._source = None

    @property
    def _varies(self) -> bool:
        return self._files is not None or callable(self._dataset)

    def _of(self, epoch: int) -> Any:
        if self._files is not None:
            if callable(self._files):
                files = self._files(epoch)
            elif epoch <= len(self._files):
                files = self._files[epoch - 1]
            else:
                raise ConfigurationError(
                    f"files= has {len(self._files)} entries, one an epoch, and none for epoch "
                    f"{epoch}"
                )
            if isinstance(files, list | tuple) and not files:
                raise ConfigurationError(f"files= has none for epoch {epoch}: give one at least")
            return self._dataset.with_files(files)
        if callable(self._dataset):
            found = self._dataset(epoch)
            _check(found)
            return found
        return self._dataset


def _check(dataset: Any) -> None:
    if not isinstance(dataset, Dataset | QueueDataset | InMemoryDataset | Epochs):
        raise ConfigurationError(
            "a trainer takes a dataset of psnb.data, or what create_per_worker_dataset(..., "
            f"sharding='dynamic') returns, or of one in memory; found {shown(dataset)}"
        )


# FetchLines: prints metrics every n batches, as Paddle's fetch list does. One thread.


class FetchLines:
    """Lines such as ``epoch 1 batch 400: loss 0.4312 auc 0.7812 batch_auc 0.7901``.

    Parameters
    ----------
    names : iterable of str
        Metrics; see `Trainer.train_from_dataset`.
    every : int
        The print period, in batches.

    Raises
    ------
    ConfigurationError
        If the names are not a list of str, or the period is not positive.
    """

    def __init__(self, names: Iterable[str], every: int) -> None:
        self._names = [names] if isinstance(names, str) else list(names)
        if not all(isinstance(each, str) for each in self._names):
            raise ConfigurationError(f"fetch takes names of metrics, found {shown(self._names)}")
        self._every = integer("fetch_every", every, 1)
        self._printed = 0
        self._checked = False

    def begin(self) -> None:
        """Count batches from zero."""
        self._printed = 0

    def due(self, batch: int) -> bool:
        """Return whether a line is due; once for each print period."""
        if not self._names or batch // self._every <= self._printed // self._every:
            return False
        self._printed = batch
        return True

    def line(self, epoch: int, batch: int, values: Mapping[str, float]) -> str:
        """Return a line; what closures have not reported since the last one is shown as ``-``.

        Raises
        ------
        ConfigurationError
            As `check`.
        """
        self.check(values)
        shown = (
            f"{name} {values[name]:.4f}" if name in values else f"{name} -" for name in self._names
        )
        return f"epoch {epoch} batch {batch}: {' '.join(shown)}"

    def check(self, values: Mapping[str, float]) -> None:
        """Check the names by the first values that there are; with each line, and after an epoch.

        Not as soon as a closure has reported: a step need not report all of them each time.

        Raises
        ------
        ConfigurationError
            If they lack one of the names: lines would lack it for ever.
        """
        if not values or self._checked:
            return
        self._checked = True
        for name in self._names:
            if name not in values:
                near = get_close_matches(name, values, 3)
                meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
                raise ConfigurationError(
                    f"fetch has {name!r}, which the step does not report: it reports "
                    f"{', '.join(map(repr, sorted(values)))}.{meant} psnb.report({name}=...) in "
                    "the step adds it"
                )


STATE = ("epoch", "rows", "iterator", "part")
"""The names in `TrainingHistory.state`."""

_ON_BATCH_EVERY = 0.25
"""Seconds between two calls of `Callback.on_batch`, at least."""

_PATIENCE = 0.8
"""Seconds that batches get to end after an interrupt, which is to be raised within one."""

_LOOK = 0.01


_NO_PART: Mapping[str, Any] = {**NOTHING, "seconds": 0.0}
"""What came out of an epoch that has not begun."""


class _StopRequestedError(Exception):
    """Ends the device worker; never reaches users."""


@dataclass(frozen=True)
class TrainingPlan:
    """What `Trainer.train_from_dataset` was asked for, checked."""

    source: EpochSource
    epochs: int
    fetch: FetchLines
    callbacks: Sequence[Callback]
    checkpoint: CheckpointManager | None
    save_every: float | None
    save_steps: int | None
    metadata: Mapping[str, Any]
    debug: bool
    validate: Callable[[], Mapping[str, float]] | None


class TrainingRun:
    """Trains to the end, or until it is stopped.

    Parameters
    ----------
    trainer : Trainer
        What callbacks are given.
    plan : TrainingPlan
        What to do.
    resume : mapping, optional
        The `TrainingHistory.state` of the training to go on with.

    Raises
    ------
    ConfigurationError
        If ``resume`` is none.
    """

    def __init__(
        self, trainer: Trainer, plan: TrainingPlan, resume: Mapping[str, Any] | None
    ) -> None:
        self._trainer, self._coordinator, self._plan = trainer, trainer.coordinator, plan
        begin: Mapping[str, Any] = {"rows": (), "epoch": 0, "iterator": None, "part": _NO_PART}
        saved = begin if resume is None else resume
        try:
            self._rows = loaded_rows(saved["rows"])
            self._done = int(saved["epoch"])  # epochs
            # Of the next epoch: what is not used, and what came out of what is.
            self._rest, self._part = saved["iterator"], saved["part"]
            if self._rest is not None:
                self._rest["dataset"]["splits"]
            EpochFigures(self._coordinator, self._part)
            float(self._part["seconds"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                "to resume takes history.state, or what CheckpointManager.restore() returns of a "
                "checkpoint that a trainer saved. To go on with the parameters of another one, "
                "restore it, and train without resume"
            ) from error
        self._begun: LeasedIterator | None = None  # the rest of that epoch, before it is trained
        self._current: EpochProgress | None = None
        self._moment = Lock()  # guards the above, which change together when an epoch ends
        self.clock = TrainingClock(plan.epochs)
        self._stopped = self._reason = ""
        self._last_on_batch = time.monotonic()
        self._rhythm = SaveSchedule(plan.save_every, plan.save_steps, self._last_on_batch)
        self._saved = False

    def stop(self, reason: str) -> None:
        """Request that training ends as soon as what runs has ended; any thread."""
        self._reason = reason

    def prepare(self, restore: Callable[[], object]) -> None:
        """Begin what is left of an epoch; restore parameters if that fits the dataset."""
        try:
            if self._rest is not None and self._done < self._plan.epochs:
                self._begun = self._plan.source.begin(self._done + 1, self._rest)
            restore()
        except BaseException:  # an interrupt, too: the dataset is held for a run only
            self._plan.source.release()
            raise

    def run(self) -> TrainingHistory:
        """Train, and return what came out of it."""
        checkpoint = self._plan.checkpoint
        try:
            self._notify("on_begin")
            with (
                contextlib.nullcontext()
                if checkpoint is None
                else checkpoint.also_saving(self._content),
                self._trainer.shown(self),
            ):
                self._train_all()
        except BaseException as error:  # also a second interrupt
            failed = isinstance(error, Exception)
            if failed:
                with contextlib.suppress(Exception):
                    self._coordinator.join()  # what runs has ended when the caller sees the error
            self._plan.source.release()
            if failed:
                self._notify("on_failure", error, besides=error)
            self._notify("on_end", self.history(), besides=error)
            raise
        self._plan.source.release()
        self._notify("on_end", self.history())
        if self._plan.debug:
            self._print_times()
        return self.history()

    def history(self) -> TrainingHistory:
        """Return what came out of it so far."""
        return TrainingHistory(self._rows, self._stopped, self._state())

    def _train_all(self) -> None:
        try:
            while self._done < self._plan.epochs:
                self._check()
                self._train(self._done + 1)
            # Of several epochs one may be empty, such as a part of a day; not all of them.
            if self._rows and not any(row.batches for row in self._rows):
                raise ConfigurationError(
                    "no epoch had a batch, so nothing was trained: the dataset is empty, or "
                    "smaller than one batch"
                )
        except (_StopRequestedError, KeyboardInterrupt) as asked:
            self._stopped = self._reason or "interrupted"
            if isinstance(asked, KeyboardInterrupt) and not self._ends_soon():
                asked.add_note("batches still run, and will have their effect: join() waits")
                raise
            self._coordinator.join()  # what runs has its effect
            row = self._end_epoch()
            if row is not None:
                self._notify("on_epoch", row)
            if row is not None or not self._saved:
                self._save()

    def _ends_soon(self) -> bool:
        """Wait for what runs; return whether it has ended soon enough for an interrupt."""
        end = time.monotonic() + _PATIENCE
        while not self._coordinator.done():
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK)
        return True

    def _train(self, epoch: int) -> None:
        plan = self._plan
        self._notify("on_epoch_begin", epoch)
        plan.fetch.begin()
        iterator, self._begun = self._begun or plan.source.begin(epoch, self._rest), None
        figures = EpochFigures(self._coordinator, self._part)
        self._current = current = EpochProgress(
            epoch, iterator, figures, time.monotonic(), self._part["seconds"]
        )
        self._rhythm.count_from(iterator.progress().visits)  # what is resumed was saved
        epoch_shown(self._coordinator, self.clock, epoch, iterator.count, figures.earlier)
        self._trainer.worker.train(self._coordinator, self._trainer.step, iterator, self._watch)
        current.end()
        self._print_if_due(current)
        plan.fetch.check(current.figures.lines())  # an epoch may be too short for a line
        validation = {} if plan.validate is None else plan.validate()
        validation = {name: value for name, value in validation.items() if name != EXAMPLES}
        epoch_metrics_shown(self._coordinator, {}, validation)
        row = self._end_epoch(validation)
        self._notify("on_epoch", row)
        self._save()

    def _watch(self) -> None:
        current = self._current
        assert current is not None
        self._check()
        self._print_if_due(current)
        now = time.monotonic()
        if self._plan.callbacks and now - self._last_on_batch >= _ON_BATCH_EVERY:
            self._last_on_batch = now
            self._notify("on_batch", current.snapshot())
        if self._rhythm.due(now, current.iterator.progress().visits):
            self._save()

    def _check(self) -> None:
        if self._reason:
            raise _StopRequestedError

    def _print_if_due(self, current: EpochProgress) -> None:
        batch = current.iterator.progress().visits
        if self._plan.fetch.due(batch):
            line = self._plan.fetch.line(current.epoch, batch, current.figures.lines())
            print(line)  # noqa: T201

    def _print_times(self) -> None:
        coordinator = self._coordinator
        waits = coordinator.statistics().starved
        print(coordinator.phases(), coordinator.stages(), waits, sep="\n\n")  # noqa: T201

    def _end_epoch(self, validation: Mapping[str, float] | None = None) -> EpochRow | None:
        """Append the row of the current epoch, or of the part of it that was trained."""
        current = self._current
        if current is None:
            return None
        snapshot = current.snapshot()
        metrics = {**snapshot.metrics}
        metrics |= {f"{VALIDATION}{name}": value for name, value in (validation or {}).items()}
        row = EpochRow(
            current.epoch,
            metrics,
            snapshot.examples,
            snapshot.batch,
            snapshot.seconds,
        )
        rest = None if current.iterator.exhausted else current.iterator.state()
        part = _NO_PART if rest is None else current.part()
        with self._moment:
            self._rows = (*self._rows, row)
            self._current, self._rest = None, rest
            self._part = part
            self._done = current.epoch if rest is None else current.epoch - 1
        return row

    def _state(self) -> dict[str, Any]:
        with self._moment:
            current, rest, part = self._current, self._rest, self._part
            done, rows = self._done, self._rows
        if current is not None:
            rest, part = current.iterator.state(), current.part()
        return {"epoch": done, "rows": saved_rows(rows[:done]), "iterator": rest, "part": part}

    def _content(self) -> dict[str, Any]:
        """Return what is kept with a checkpoint; any thread, while no closure runs."""
        return {**self._plan.metadata, **self._state()}

    def _save(self) -> None:
        """Save where no closure runs, so that the epoch's rest is what the parameters lack."""
        if self._plan.checkpoint is not None:
            path: AnyPath = self._plan.checkpoint.save()
            current = self._current
            visits = 0 if current is None else current.iterator.progress().visits
            self._rhythm.saved(time.monotonic(), visits)
            self._saved = True
            self._notify("on_checkpoint", path)

    def _notify(self, method: str, *arguments: Any, besides: BaseException | None = None) -> None:
        """Tell all callbacks, also if one raises; then raise the first error, with the others.

        With ``besides``, which the caller raises, all are notes of that.
        """
        first = besides
        for callback in self._plan.callbacks:
            where = f"callback {type(callback).__name__}.{method}"
            try:
                getattr(callback, method)(self._trainer, *arguments)
            except BaseException as error:  # an interrupt, too: others have files to close
                if first is None:
                    error.add_note(f"raised by {where}")
                    first = error
                else:
                    first.add_note(f"besides, {where} raised {error_text(error)}")
        if first is not None and first is not besides:
            raise first

    def share(self) -> Share:
        """Return how much of the epoch is done, for the progress line; its thread calls."""
        current = self._current
        if current is None and self._rows:
            row = self._rows[-1]
            return Share(row.batches, row.batches, "batches", self._name(row.epoch))
        if current is None:
            return Share(0, 1, "parts", self._name(self._done + 1))
        found, name = current.iterator.count(), self._name(current.epoch)
        if found.batches is None:
            return Share(*found.parts, "parts", name)
        return Share(found.batch, found.batches, "batches", name)

    def _name(self, epoch: int) -> str:
        return f"epoch {epoch} of {self._plan.epochs}"
