"""TrainingRun: one call of `Trainer.train_from_dataset`.

One thread: the caller's. It is in the device worker nearly all the time, which calls back ten
times a second: fetch lines, callbacks and requests to stop happen there. Any thread may request a
stop, and the thread of an automatic save asks for the state, and tells what it has saved.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Any

from psnb._src.checkpoint.save_schedule import SaveSchedule
from psnb._src.coordinator.coordinator import ClusterCoordinator, coordinator_core
from psnb._src.coordinator.datasets.leased import LeasedIterator
from psnb._src.coordinator.resume import CheckpointManager
from psnb._src.coordinator.saving import Saves
from psnb._src.monitor.history import EXAMPLES, VALIDATION
from psnb._src.monitor.progress_line import WorkDone
from psnb._src.monitor.run_record import settings_of
from psnb._src.monitor.training_clock import TrainingClock
from psnb._src.training.device_workers import DeviceWorker
from psnb._src.training.epoch_progress import NO_PART, EpochProgress, FetchLines, loaded_part
from psnb._src.training.epoch_source import EpochSource
from psnb._src.training.history import EpochRow, TrainingHistory, loaded_rows, saved_rows
from psnb._src.training.reported import MOST_KEPT
from psnb._src.training.whole_splits import Results, nothing_to_validate
from psnb._src.utils.interrupts import Lock
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import error_text
from psnb._src.utils.threads import Answer
from psnb.errors import ConfigurationError

STATE = ("epoch", "rows", "iterator", "part")
"""The names in `TrainingHistory.state`."""

_ON_BATCH_EVERY = 0.25
"""Seconds between two calls of `Callback.on_batch`, at least."""

_PATIENCE = 0.8
"""Seconds that batches get to end after an interrupt, which must be raised within one."""

_LOOK = 0.01

_ENDED = "training has just ended, and nothing was changed: rewind again"


class _StopRequestedError(Exception):
    """Ends the device worker; never reaches users."""


class _RestRequestedError(Exception):
    """Ends the device worker, for a moment; never reaches users."""


@dataclass(eq=False)
class _Rest:
    """A function to call while training rests, and its waiting caller."""

    go: Callable[..., Mapping[str, Any]]
    answer: Answer[Mapping[str, Any]] | None  # None: no caller waits, so training raises its errors


@dataclass(eq=False)
class TrainingRun:
    """Trains to the end, or until it is stopped, as `Trainer.train_from_dataset` was asked to.

    The callbacks are given ``trainer``, of which nothing is known here. ``save_every`` is in
    seconds, and ``resume`` the `TrainingHistory.state` of the training to continue, if there is
    one.

    Raises
    ------
    ConfigurationError
        If ``resume`` is none.
    """

    trainer: object
    coordinator: ClusterCoordinator
    worker: DeviceWorker
    step: Any
    progress: bool | None
    source: EpochSource
    epochs: int
    fetch: FetchLines
    callbacks: Sequence[object]
    checkpoint: CheckpointManager | None
    save_every: float | None
    save_steps: int | None
    metadata: Mapping[str, Any]
    debug: bool
    validate: Callable[[TrainingClock], Results] | None
    resume: InitVar[Mapping[str, Any] | None]

    def __post_init__(self, resume: Mapping[str, Any] | None) -> None:
        self._core = coordinator_core(self.coordinator)
        begin: Mapping[str, Any] = {"rows": (), "epoch": 0, "iterator": None, "part": NO_PART}
        self._continue(begin if resume is None else resume)
        self._moment = Lock()  # guards the above, which change together when an epoch ends
        self._clock = TrainingClock(self.epochs)
        self._stopped = self._reason = ""
        self._thread = threading.get_ident()
        self._rests: deque[_Rest] | None = deque()  # None when it has ended
        self._last_on_batch = time.monotonic()
        self._unsaved = True
        self._saves: Saves | None = None
        self._saved: deque[AnyPath] = deque()  # what the callbacks have not heard of
        self._saved_batches = 0  # at the moment that the latest save is of

    def _continue(self, saved: Mapping[str, Any]) -> None:
        """Continue from a `TrainingHistory.state`, or raise ConfigurationError if it is none."""
        try:
            rows, done = loaded_rows(saved["rows"]), int(saved["epoch"])
            rest, part = saved["iterator"], saved["part"]
            if rest is not None:
                rest["dataset"]["splits"]
            loaded_part(part)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                "to resume takes history.state, or what CheckpointManager.restore() returns of a "
                "checkpoint that a trainer saved. To go on with the parameters of another one, "
                "restore it, and train without resume"
            ) from error
        self._rows, self._done = rows, done  # the second: how many epochs
        # For the next epoch: the unused elements, and the results of the used ones.
        self._rest, self._part = rest, part
        self._begun: LeasedIterator | None = None  # the rest of that epoch, before it is trained
        self._current: EpochProgress | None = None

    def stop(self, reason: str) -> None:
        """Request that training ends as soon as what runs has ended; any thread."""
        self._reason = reason

    def place(self) -> dict[str, Any]:
        """Return where it is, to continue from there; any thread, while no closure runs."""
        return self._state()

    def at_rest(self, go: Callable[..., Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Have a function called that rewinds, and wait for it: see `Training.at_rest`.

        Raises
        ------
        ConfigurationError
            If training has ended meanwhile.
        Exception
            What the function raises.
        """
        own = threading.get_ident() == self._thread
        rest = _Rest(go, None if own else Answer())
        with self._moment:
            if self._rests is None:
                raise ConfigurationError(_ENDED)
            self._rests.append(rest)
        return None if rest.answer is None else rest.answer.result()

    def prepare(self, restore: Callable[[], object]) -> None:
        """Begin the rest of an epoch; restore parameters if that fits the dataset."""
        try:
            self._begin_rest()
            restore()
        except BaseException:  # an interrupt, too: the dataset is held for a run only
            self.source.close()
            raise

    def _begin_rest(self) -> None:
        if self._rest is not None and self._done < self.epochs:
            self._begun = self.source.begin(self._done + 1, self._rest)

    def run(self) -> TrainingHistory:
        """Train, and return what came out of it."""
        try:
            self._notify("on_begin")
            with ExitStack() as opened:
                if (manager := self.checkpoint) is not None:
                    opened.enter_context(manager.also_saving(self._content))
                    saved = 0 if self._begun is None else self._begun.progress().visits
                    when = time.monotonic(), self._batches() + saved
                    schedule = SaveSchedule(self.save_every, self.save_steps, *when)
                    how = self._batches, manager.save_timeout, self._note_saved
                    self._saves = Saves(manager, schedule, *how)
                    opened.enter_context(self._core.saving.training(self._saves))
                opened.enter_context(self._core.training(self._clock, self))
                opened.callback(self._refuse_rests)
                opened.enter_context(self._core.progress(self.progress, self._share))
                self._train_all()
        except BaseException as error:  # also a second interrupt
            failed = isinstance(error, Exception)
            if failed:
                with suppress(Exception):
                    self.coordinator.join()  # what runs has ended when the caller sees the error
            self.source.close()
            while self._saved:
                self._notify("on_checkpoint", self._saved.popleft(), besides=error)
            if failed:
                self._notify("on_failure", error, besides=error)
            self._notify("on_end", self.history(), besides=error)
            raise
        self.source.close()
        self._notify("on_end", self.history())
        if self.debug:
            coordinator = self.coordinator
            waits = coordinator.statistics().starved
            print(coordinator.phases(), coordinator.stages(), waits, sep="\n\n")  # noqa: T201
        return self.history()

    def history(self) -> TrainingHistory:
        """Return what came out of it so far."""
        settings = settings_of(self._core.run_settings())
        return TrainingHistory(self._rows, self._stopped, self._state(), settings)

    def _train_all(self) -> None:
        try:
            while self._done < self.epochs or self._rests:
                try:
                    self._check()
                    self._train(self._done + 1)
                except _RestRequestedError:
                    self._be_at_rest()
            # One of several epochs may be empty, such as a part of a day; not all of them.
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
            self.coordinator.join()  # what runs has its effect
            row = self._end_epoch()
            if row is not None:
                self._notify("on_epoch", row)
            if row is not None or self._unsaved:
                self._save(last=True)

    def _be_at_rest(self) -> None:
        """Let closures that run end, call the function, and continue where it says."""
        self.coordinator.join()
        here, interrupt = self._state(), None

        def prepare(saved: Mapping[str, Any]) -> None:
            with self._moment:
                self._continue(saved if all(name in saved for name in STATE) else here)
            self._begin_rest()

        while self._rests:
            each = self._rests.popleft()
            answer: Answer[Mapping[str, Any]] = each.answer or Answer()
            go = partial(answer.give, each.go, prepare, self)
            threading.Thread(target=go, name="psnb-rewinding", daemon=True).start()
            while not answer.done():  # all of it, also after an interrupt
                try:
                    with suppress(Exception):
                        answer.result()
                except KeyboardInterrupt as asked:
                    interrupt = asked
            try:
                answer.result()
                here = self._state()
            except Exception:  # of any kind: the caller has it, and training continues as it was
                prepare(here)
                if each.answer is None:
                    raise
        if interrupt is not None:
            raise interrupt

    def _refuse_rests(self) -> None:
        """Have nothing rewind any more: training has ended."""
        with self._moment:
            rests, self._rests = self._rests or (), None
        for each in rests:
            if each.answer is not None:
                each.answer.set_exception(ConfigurationError(_ENDED))

    def _ends_soon(self) -> bool:
        """Wait for what runs; return whether it has ended soon enough for an interrupt."""
        end = time.monotonic() + _PATIENCE
        while not self.coordinator.done():
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK)
        return True

    def _train(self, epoch: int) -> None:
        self._notify("on_epoch_begin", epoch)
        self.fetch.begin()
        iterator, self._begun = self._begun or self.source.begin(epoch, self._rest), None
        self._current = current = EpochProgress(self.coordinator, epoch, iterator, self._part)
        self._core.begin_epoch(self._clock, epoch, iterator.count, current.earlier)
        self.worker.train(self.coordinator, self.step, iterator, self._watch)
        self._core.unmoved_rows.look()
        current.end()
        self._print_if_due(current)
        # An epoch may be too short for a line.
        self.fetch.check(current.lines(), over=current.iterator.progress().visits > 0)
        validation = self._validation()
        examples = validation.pop(EXAMPLES, 0)
        if validation and (line := self.fetch.validation(epoch, validation)):
            print(line)  # noqa: T201
        history = self._core.records.history
        history.add_validation(time.time(), validation)
        for name, table in validation.slices.items():
            history.set_slices(f"{VALIDATION}{name}", table)
        row = self._end_epoch(validation)
        self._notify("on_epoch", row)
        self._save(last=self._done == self.epochs)
        if self.validate is not None and not examples:
            raise nothing_to_validate()  # late, so that the epoch is not lost

    def _validation(self) -> Results:
        if self.validate is None:
            return Results()
        with self._clock.validating():
            return self.validate(self._clock)

    def _watch(self) -> None:
        current = self._current
        assert current is not None
        self._check()
        self._print_if_due(current)
        now = time.monotonic()
        if self.callbacks and now - self._last_on_batch >= _ON_BATCH_EVERY:
            self._last_on_batch = now
            self._notify("on_batch", current.snapshot())
        self._core.saving.poll()  # a device worker of the user's may wait in its own way
        self._tell_saved()

    def _check(self) -> None:
        if self._reason:
            raise _StopRequestedError
        if self._rests:
            raise _RestRequestedError

    def _print_if_due(self, current: EpochProgress) -> None:
        if self.fetch.due(batch := current.iterator.progress().visits):
            line = self.fetch.line(current.epoch, batch, current.lines())
            print(line)  # noqa: T201

    def _end_epoch(self, validation: Results | None = None) -> EpochRow | None:
        """Append the row of the current epoch, or of the part of it that was trained."""
        current = self._current
        if current is None:
            return None
        snapshot, found = current.snapshot(), Results() if validation is None else validation
        metrics, slices = {**snapshot.metrics}, current.slices()
        metrics |= {f"{VALIDATION}{name}": value for name, value in found.items()}
        slices |= {f"{VALIDATION}{n}": each.worst(MOST_KEPT) for n, each in found.slices.items()}
        seconds, batch = snapshot.seconds, snapshot.batch
        row = EpochRow(current.epoch, metrics, snapshot.examples, batch, seconds, slices)
        rest = None if current.iterator.exhausted else current.iterator.state()
        part = NO_PART if rest is None else current.part()
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
        """Return the metadata for a checkpoint; any thread, while no closure runs."""
        self._saved_batches = self._batches()
        return {**self.metadata, **self._state()}

    def _save(self, *, last: bool = False) -> None:
        """Save where no closure runs, so that the epoch's rest is what the parameters lack.

        If the last save fails, its error is raised; training continues without any other.
        """
        saves, saving = self._saves, self._core.saving
        if saves is None:
            return
        self._unsaved = True  # until it is: an interrupt may come
        saving.finish()  # one that ends later would be the newest
        self._tell_saved()  # before another save may remove them
        if last:
            self._saved.append(saves.manager.save())
        self._unsaved = not last and saving.attempt(saves) is None
        self._tell_saved()

    def _note_saved(self, path: AnyPath) -> None:
        self._saved.append(path)
        if self._saves is not None:
            self._saves.schedule.count_from(self._saved_batches)

    def _tell_saved(self) -> None:
        while self._saved:
            self._notify("on_checkpoint", self._saved.popleft())

    def _batches(self) -> int:
        """Return how many batches of all epochs were used; any thread."""
        with self._moment:
            rows, current = self._rows, self._current
        now = 0 if current is None else current.iterator.progress().visits
        return sum(row.batches for row in rows) + now

    def _notify(self, method: str, *arguments: Any, besides: BaseException | None = None) -> None:
        """Tell all callbacks, also if one raises; then raise the first error, with the others.

        With ``besides``, which the caller raises, all are notes of it.
        """
        first = besides
        for callback in self.callbacks:
            where = f"callback {type(callback).__name__}.{method}"
            try:
                getattr(callback, method)(self.trainer, *arguments)
            except BaseException as error:  # an interrupt, too: others have files to close
                if first is None:
                    error.add_note(f"raised by {where}")
                    first = error
                else:
                    first.add_note(f"besides, {where} raised {error_text(error)}")
        if first is not None and first is not besides:
            raise first

    def _share(self) -> WorkDone:
        """Return how much of the epoch is done, for the progress line; its thread calls."""
        current = self._current
        if current is None and self._rows:
            row = self._rows[-1]
            return WorkDone(row.batches, row.batches, "batches", self._name(row.epoch))
        if current is None:
            return WorkDone(0, 1, "parts", self._name(self._done + 1))
        found, name = current.iterator.count(), self._name(current.epoch)
        if (parts := self._clock.validated_parts()) is not None:
            done, of = parts
            return WorkDone(done, max(1, of), "parts", f"{name}, validating")
        if found.batches is None:
            return WorkDone(*found.parts, "parts", name)
        return WorkDone(found.batch, found.batches, "batches", name)

    def _name(self, epoch: int) -> str:
        return f"epoch {epoch} of {self.epochs}"
