"""Trainer: from a dataset and a step to a trained model and its history."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import Any, cast

from psnb._src.checkpoint.manifest import checked_metadata
from psnb._src.checkpoint.reader import latest_full
from psnb._src.coordinator.coordinator import ClusterCoordinator, coordinator_core
from psnb._src.coordinator.datasets.dask_source import DaskPartitions, frame_beside
from psnb._src.coordinator.datasets.epoch import map_splits
from psnb._src.coordinator.datasets.leased import Epochs
from psnb._src.coordinator.resume import CheckpointManager, run_of
from psnb._src.coordinator.settings import SavedRun
from psnb._src.data.dataset import Dataset
from psnb._src.data.splits import check_order, partitions_of
from psnb._src.monitor.training_clock import TrainingClock
from psnb._src.training.device_workers import DeviceWorker, Downpour, Hogwild
from psnb._src.training.epoch_progress import FetchLines
from psnb._src.training.epoch_source import EpochSource, Files
from psnb._src.training.history import EpochRow, TrainingHistory, TrainingSnapshot
from psnb._src.training.prediction_files import PredictionFiles
from psnb._src.training.run import STATE, TrainingRun
from psnb._src.training.whole_splits import (
    ALONE,
    Evaluation,
    Inference,
    Results,
    has_elements,
    joined,
    merged_figures,
    nothing_to_validate,
)
from psnb._src.utils.checks import check_instance, integer, period
from psnb._src.utils.foreign_names import FixedAttributes
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

_WORKERS: dict[str, Callable[[], DeviceWorker]] = {"hogwild": Hogwild, "downpour": Downpour}


class Callback:
    """Gets the events of training; its methods do nothing: override the ones that you need.

    They are called in the thread that called `Trainer.train_from_dataset`, one at a time, while the
    workers continue: be quick, or the workers wait. ``trainer.stop("why")`` ends training. An
    exception of a method ends it, too, at a consistent point, and is raised with the callback's
    name; the other callbacks are called all the same, and their exceptions are among the error's
    notes.
    """

    def on_begin(self, trainer: Trainer) -> None:
        """Handle the beginning of training."""

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Handle the beginning of an epoch, or of the rest of one; its number counts from 1."""

    def on_batch(self, trainer: Trainer, snapshot: TrainingSnapshot) -> None:
        """Handle the progress of training; called four times a second at most."""

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Handle a row of the history, when an epoch and its validation are over.

        Also for an epoch that was stopped in the middle: then ``trainer.history.stopped`` says why,
        and the row is of that part and has no validation. If training continues it later, its next
        row is of the whole epoch.
        """

    def on_checkpoint(self, trainer: Trainer, path: AnyPath) -> None:
        """Handle a checkpoint that was saved."""

    def on_failure(self, trainer: Trainer, error: Exception) -> None:
        """Handle a failure: a closure raised, for example. The error is raised after that."""

    def on_end(self, trainer: Trainer, history: TrainingHistory) -> None:
        """Handle the end of training, also after a failure."""


class Trainer(FixedAttributes):
    """Trains, evaluates and predicts, over datasets and a coordinator's workers.

    After Paddle's ``Executor.train_from_dataset``. It is made of public parts, which you can also
    use without it: `ClusterCoordinator.create_per_worker_dataset`, `ClusterCoordinator.run_epoch`,
    `report`, `CheckpointManager`.

    Its methods are for one thread at a time, except `stop`.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        Whose workers train.
    step : callable, optional
        A closure of an iterator: it takes batches with ``next(iterator)``, trains on them, and
        calls `report`. Made by hand, by ``psnb.jax.step``, or around a ``psnb.torch`` model. None
        with a `Section`, which trains its stages.
    worker : str or DeviceWorker
        How the workers go through an epoch: ``"hogwild"``, ``"downpour"``, or an object: `Hogwild`,
        `Downpour` or `Section`.
    evaluate : callable, optional
        A closure of an iterator that reports metrics, in place of ``step`` for evaluation: with a
        model in evaluation mode, or without gradients, which takes less time.
    predict : callable, optional
        Takes a batch, and returns an array with one row for each example, or a dict of arrays:
        ``psnb.jax.forward(...)``, for example. For `infer_from_dataset`.
    progress : bool, optional
        Whether to show a line of progress; as for `ClusterCoordinator.join`.
    checkpoint : CheckpointManager, optional
        For each `train_from_dataset` that is not given another one.
    resume : bool
        Whether the first `train_from_dataset` continues from the newest checkpoint of
        ``checkpoint``, if there is one. So the same script can be started again whenever it was
        killed.

    Attributes
    ----------
    coordinator, step, worker
        As given.

    Raises
    ------
    ConfigurationError
        If an argument is of the wrong kind.
    """

    coordinator: ClusterCoordinator
    worker: DeviceWorker
    step: Any

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        step: Callable[..., Any] | None = None,
        worker: str | DeviceWorker = "hogwild",
        *,
        evaluate: Callable[..., Any] | None = None,
        predict: Callable[[Any], Any] | None = None,
        progress: bool | None = None,
        checkpoint: CheckpointManager | None = None,
        resume: bool = False,
    ) -> None:
        check_instance("coordinator", coordinator, ClusterCoordinator)
        self.coordinator, self.worker = coordinator, _device_worker(worker)
        self.step = step
        if self.worker.takes_step != callable(step):
            raise ConfigurationError(
                f"step must be a function of an iterator, found {shown(step)}"
                if self.worker.takes_step
                else f"{type(self.worker).__name__} trains its stages: leave step={step!r} out"
            )
        if not all(each is None or callable(each) for each in (evaluate, predict)):
            raise ConfigurationError("evaluate and predict must be functions")
        self._evaluate, self._predict = evaluate or step, predict
        self._progress = progress
        if checkpoint is not None:
            check_instance("checkpoint", checkpoint, CheckpointManager)
        self._checkpoint, self._resume = checkpoint, resume
        if resume and checkpoint is None:
            raise ConfigurationError("resume=True needs checkpoint=, a psnb.CheckpointManager")
        self._run: TrainingRun | None = None  # while it trains
        self._history = TrainingHistory()

    def __repr__(self) -> str:
        return f"<psnb.Trainer of {self.coordinator.name!r} with {self.worker!r}>"

    @property
    def history(self) -> TrainingHistory:
        """The results of the latest training, also while it runs or if it has failed."""
        run = self._run
        return self._history if run is None else run.history()

    def train_from_dataset(
        self,
        dataset: Any,
        epochs: int | None = None,
        *,
        fetch: Iterable[str] = (),
        fetch_every: int = 100,
        callbacks: Iterable[Callback] | Callback = (),
        checkpoint: CheckpointManager | None = None,
        save_every: float | str | None = None,
        save_steps: int | None = None,
        files: Files | None = None,
        validation: Any = None,
        metadata: Mapping[str, Any] | None = None,
        debug: bool = False,
        resume: Mapping[str, Any] | None = None,
    ) -> TrainingHistory:
        """Train on every example of a dataset exactly once an epoch, whatever worker dies.

        An interrupt (Ctrl-C, the stop button), `stop` and the dashboard's stop let running batches
        have their effect, begin no other, and return the history. If they take nearly a second, an
        interrupt is raised instead, and a second one immediately: they have their effect all the
        same.

        Parameters
        ----------
        dataset : Dataset, QueueDataset, InMemoryDataset, LeasedDataset or PartitionedDataset
            Batches; or a function of the epoch's number, from 1 on, that returns such a dataset. An
            `psnb.data.InMemoryDataset` is loaded into the workers' memory, and shuffled globally
            before each epoch.
        epochs : int, optional
            How many, including those before ``resume``; 1 by default, or as many as ``files`` has
            entries.
        fetch : iterable of str
            Metrics that are printed every ``fetch_every`` batches: ``"loss"`` is the mean since the
            last line. A name that the step has not reported by the first line is refused. At the
            end of an epoch a line has what ``validation`` gave.
        fetch_every : int
            The print period, in batches. The number that is printed is exact; several periods that
            workers report together have one line: of half a second, or of two with hundreds of
            workers.
        callbacks : iterable of Callback, or Callback
            They are called in this order.
        checkpoint : CheckpointManager, optional
            Saves at the end of each epoch, and when training is stopped; by default the trainer's
            own. The metadata is `TrainingHistory.state`. So is that of its automatic saves
            meanwhile, in the background, with ``every`` and ``steps`` of its own. If a save fails,
            training goes on, and it is tried again, as `CheckpointManager` says of its automatic
            ones; the last save raises.
        save_every : float or str, optional
            Saves also in the middle of epochs, in the background, every this many seconds, or
            ``"5 min"``. Unless the manager has ``consistent=False``, closures are held for it, so
            that the checkpoint is of one moment: ``resume`` then continues with exactly the
            examples that were not used.
        save_steps : int, optional
            Likewise, every this many batches of all workers; with both, whichever comes first.
            Workers report some times a second, so a few batches more may have passed.
        files : callable or sequence, optional
            The files of each epoch, in place of the dataset's own: a function of the epoch's number
            from 1 on, or one entry (a pattern, or a list) for each epoch. See
            `psnb.data.Dataset.with_files`.
        validation : dataset, optional
            Is evaluated at the end of each epoch, as by `evaluate`; its metrics are in the history
            with ``val_`` before their names.
        metadata : mapping, optional
            Metadata of your own, kept with each checkpoint next to the trainer's; anything that
            JSON can hold, by other names than those of `TrainingHistory.state`.
        debug : bool
            Print at the end where the time of the coordinator's closures has gone so far, by phase
            and by stage of the dataset: `ClusterCoordinator.phases` and ``stages``.
        resume : mapping, optional
            `TrainingHistory.state`, or the result of `CheckpointManager.restore`: continue from
            there, with the same dataset. (To train an earlier model further from the beginning of a
            dataset, restore it and leave this out.) Without it, a trainer with ``resume=True``
            continues from its newest checkpoint the first time.

        Returns
        -------
        TrainingHistory
            One row an epoch.

        Raises
        ------
        Exception
            The exception of a closure or a callback, when everything has ended. `history` has the
            results until then.
        ConfigurationError
            If an argument is of the wrong kind, or this trainer is training. Or if it is to
            continue in the middle of an epoch, and the dataset is another one: other files, another
            batch size; nothing was restored. Or if an epoch has no files, or no epoch a batch.
        CheckpointError
            With ``resume=True``: if all checkpoints are damaged, or the newest does not fit the
            parameters, or was saved by an earlier psnb that kept less of a run. Nothing was
            restored.
        """
        if self._run is not None:
            raise ConfigurationError("this trainer is training already: make another one")
        if files is not None and not callable(files) and len(files) == 0:
            raise ConfigurationError("files= is empty: give the files of one epoch at least")
        if epochs is None:
            epochs = len(files) if files is not None and not callable(files) else 1
        all_callbacks = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
        for each in all_callbacks:
            if not isinstance(each, Callback):
                raise ConfigurationError(
                    f"callbacks takes psnb.Callback objects, found {shown(each)}"
                )
        if checkpoint is not None:
            check_instance("checkpoint", checkpoint, CheckpointManager)
        checkpoint = checkpoint or self._checkpoint
        if checkpoint is None and (save_every is not None or save_steps is not None):
            raise ConfigurationError("save_every= and save_steps= need checkpoint=")
        if checkpoint is not None:
            checked_metadata(metadata or {})  # what is wrong with it would end training at its end
        if taken := [name for name in metadata or () if name in STATE]:
            raise ConfigurationError(
                f"metadata= has {taken}, which are the trainer's own: take other names than "
                f"{', '.join(STATE)}"
            )
        restore: Callable[[], object] = bool
        manager = self._checkpoint
        if self._resume and manager is not None and resume is None:
            newest = latest_full(manager.directory)
            if newest is not None:
                saved, resume = run_of(newest), newest.metadata
                restore = partial(self._restore, manager, newest.path, saved)
        validated = None
        if validation is not None:
            validated = EpochSource(self.coordinator, validation, None)
            made = validated.check()  # not after an epoch of hours
            if made is not None and not any(self._mapped(has_elements, made)):
                raise nothing_to_validate()
        run = TrainingRun(
            self,
            self.coordinator,
            self.worker,
            self.step,
            self._progress,
            EpochSource(self.coordinator, dataset, files),
            integer("epochs", epochs, 1),
            FetchLines(fetch, fetch_every),
            all_callbacks,
            checkpoint,
            None if save_every is None else period("save_every", save_every),
            None if save_steps is None else integer("save_steps", save_steps, 1),
            {} if metadata is None else metadata,
            debug,
            None if validated is None else self._evaluator(validated),
            resume,
        )
        run.prepare(restore)
        self._run, self._resume = run, False
        try:
            return run.run()
        finally:
            if validated is not None:
                validated.close()
            self._run, self._history = None, run.history()

    def _restore(self, manager: CheckpointManager, path: AnyPath, saved: SavedRun) -> None:
        manager.restore(path)
        core = coordinator_core(self.coordinator)
        core.go_on_from(saved.closures, saved.next_number, saved.record)

    def evaluate(self, dataset: Any) -> Results:
        """Evaluate the model on a dataset; every example counts exactly once, whatever worker dies.

        The workers run the trainer's ``evaluate``, or else its step, in a way that changes nothing:
        its writes to parameters are dropped, and lookups have ``training=False``. A step of
        ``psnb.jax`` then computes only its loss, without gradients. (All else in a step happens as
        in training: dropout, for example; give ``evaluate`` then.) Its reports are not mixed with
        the training's.

        Parameters
        ----------
        dataset : Dataset, QueueDataset, InMemoryDataset, LeasedDataset or PartitionedDataset
            Batches, as for `train_from_dataset`.

        Returns
        -------
        dict of str to float
            Of the states of `psnb.metrics` their value over all examples, exactly; of numbers the
            mean, weighted by the examples that each is of. ``"examples"`` is how many there were.
            Its attribute ``slices`` is a dict, too: of each metric that was called with ``by``, its
            `psnb.metrics.SliceTable`.

        Raises
        ------
        Exception
            What a closure raised.
        """
        with closing(EpochSource(self.coordinator, dataset, None)) as source:
            return self._evaluator(source)(None)

    def infer_from_dataset(self, dataset: Any, to: str | os.PathLike[str] | None = None) -> Any:
        """Predict for every example of a dataset, in its order; exactly once, whatever worker dies.

        The workers take whole parts of it, and nothing is written to parameters.

        Parameters
        ----------
        dataset : Dataset, QueueDataset, InMemoryDataset, LeasedDataset or PartitionedDataset
            Batches. It must have an order: no shuffle, nor interleaved files.
        to : str or os.PathLike, optional
            Files for the predictions, on a file system that notebook and workers share:
            ``"predictions/*.parquet"``, or of suffix ``.csv`` or ``.jsonl``. Each part of the
            dataset has a file, whose number takes the place of ``*``, from ``00000`` on; a part
            without examples has none. They appear when all are written, in place of an earlier
            call's, which stay as they are if this one fails. Then only a batch at a time is in
            memory. JSON lines have null for NaN and infinite numbers; bfloat16 is written as
            float32.

        Returns
        -------
        numpy.ndarray, dict of numpy.ndarray or list of str
            The predictions; or the files, in order.

        Raises
        ------
        ConfigurationError
            If the trainer was made without ``predict``, the dataset has no order, or there is not
            one row of predictions for each example.
        Exception
            What a closure raised.
        """
        if self._predict is None:
            raise ConfigurationError(
                "infer_from_dataset needs a function of a batch: "
                "psnb.Trainer(..., predict=predict), where predict(batch) returns an array; "
                "psnb.jax.forward makes one"
            )
        plain = getattr(dataset, "dataset", dataset)
        if isinstance(plain, Dataset):
            check_order(plain.node)
        files = None if to is None else PredictionFiles(to)
        source = EpochSource(self.coordinator, dataset, None)
        try:
            made = source.whole()
            if files is not None:
                files.prepare(len(made.whole_splits().choosers))
            run = Inference(self._predict, files)
            found = self._mapped(run, made)
            if files is not None:
                return files.publish(found)
        finally:
            source.close()
            if files is not None:
                files.clear()
        columns = joined(iter(found))
        return columns[ALONE] if columns is not None and list(columns) == [ALONE] else columns

    def infer_dask(self, dataset: Dataset, to: str | os.PathLike[str]) -> Any:
        """Predict for every row of a Dask DataFrame; return a frame aligned with it.

        Like `infer_from_dataset`, immediately and into files: so predictions are not lost with the
        workers.

        Parameters
        ----------
        dataset : Dataset
            Batches of `psnb.data.Dataset.from_dask` of a persisted DataFrame or Series. It must
            have an order, and an element for each row.
        to : str or os.PathLike
            Files for the predictions, as for `infer_from_dataset`: ``"predictions/*.parquet"``.

        Returns
        -------
        dask.dataframe.DataFrame
            With the partitions and the index of the collection; a column for each name that
            ``predict`` returns, or ``prediction``. With several numbers a row, a cell is an array.
            The files are read when it is computed: another call with the same ``to`` changes what
            an earlier frame has. Give each its own folder to keep both.

        Raises
        ------
        ConfigurationError
            As for `infer_from_dataset`; or if the dataset reads something else, or a part of it.
        DatasetError
            If no partition has a row. Or when the frame is computed: if there is not one prediction
            for each row, as the dataset filters.

        Examples
        --------
        >>> flights = flights.persist(workers=strategy.worker_addresses)  # doctest: +SKIP
        >>> batches = psnb.data.Dataset.from_dask(flights).batch(512)  # doctest: +SKIP
        >>> found = trainer.infer_dask(batches, "predictions/*.parquet")  # doctest: +SKIP
        >>> flights.assign(late=found.prediction)  # doctest: +SKIP
        """
        found = partitions_of(dataset.node) if isinstance(dataset, Dataset) else None
        frame = None if found is None else cast(DaskPartitions, found.source).frame
        if found is None or frame is None:
            raise ConfigurationError(
                "infer_dask takes a psnb.data.Dataset.from_dask of a DataFrame or Series, found "
                f"{shown(dataset)}: infer_from_dataset takes any dataset"
            )
        count = len(found.parts)
        if count != frame.npartitions:
            raise ConfigurationError(
                f"infer_dask predicts for all {frame.npartitions} partitions, and the dataset "
                f"reads {count}: choose some of the collection instead"
            )
        check_order(dataset.node)
        files = PredictionFiles(to)
        if files.path(0).suffix != ".parquet":
            raise ConfigurationError(f"infer_dask writes .parquet files, found {shown(to)}")
        made = self.coordinator.create_per_worker_dataset(dataset, sharding="dynamic", splits=count)
        written = set(self.infer_from_dataset(made, to))
        paths = [str(files.path(number)) for number in range(count)]
        return frame_beside(frame, [each if each in written else None for each in paths])

    def _evaluator(self, source: EpochSource) -> Callable[[TrainingClock | None], Results]:
        if self._evaluate is None:
            raise ConfigurationError(
                "to evaluate stages, make the trainer with evaluate=, a closure of an iterator "
                "that reports metrics"
            )
        evaluation = Evaluation(self._evaluate)

        def evaluate(clock: TrainingClock | None) -> Results:
            return merged_figures(self._mapped(evaluation, source.whole(), clock))

        return evaluate

    def _mapped(
        self, function: Callable[..., Any], dataset: Epochs, clock: TrainingClock | None = None
    ) -> list[Any]:
        core, splits = coordinator_core(self.coordinator), dataset.whole_splits()
        if clock is None:
            return map_splits(core, function, splits, self._progress)
        # The training's own line of progress has it.
        return map_splits(core, function, splits, False, clock.count_parts)

    @property
    def validates(self) -> bool:
        """Whether what is trained now has ``validation=``."""
        return self._run is not None and self._run.validate is not None

    def stop(self, reason: str = "stopped") -> None:
        """End training when the batches that run have had their effect; any thread, also callbacks.

        `train_from_dataset` returns its history then. Without effect if nothing is trained.

        Parameters
        ----------
        reason : str
            Becomes `TrainingHistory.stopped`.
        """
        run = self._run
        if run is not None:
            run.stop(reason or "stopped")


def _device_worker(worker: str | DeviceWorker) -> DeviceWorker:
    if isinstance(worker, DeviceWorker):
        return worker
    if worker in _WORKERS:
        return _WORKERS[worker]()
    raise ConfigurationError(
        f"worker must be one of {', '.join(map(repr, _WORKERS))} or a psnb.DeviceWorker, found "
        f"{worker!r}"
    )
