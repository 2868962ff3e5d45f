"""The loops of `fit`, `evaluate` and `predict`: passes over batches on the workers, callbacks.

In the notebook's thread that asks for results; closures that were scheduled ahead run meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from itertools import chain, islice
from typing import Any

import keras
import numpy as np

from psnb._src.client.variable import Variable
from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue, StepValues
from psnb._src.coordinator.coordinator import ClusterCoordinator, coordinator_core
from psnb._src.coordinator.datasets.epoch import run_epoch, run_in_order
from psnb._src.data.dataset import Dataset
from psnb._src.metrics.metric import MetricStates
from psnb._src.models.keras.data import steps_of
from psnb._src.models.keras.program import KerasProgram, Trained
from psnb._src.monitor.history import VALIDATION
from psnb._src.monitor.training_clock import EpochCount, TrainingClock
from psnb._src.protocol.modes import Sync
from psnb._src.utils.checks import integer
from psnb.errors import ConfigurationError


class Passes:
    """Goes through a dataset on the workers, again and again.

    Workers lease parts and read them; results come as closures end. The notebook reads the batches
    instead, and results come in their order, if that is asked for; in mode `Sync`, so that a round
    has the same batches whichever worker is faster or dies; and of datasets that cannot be cut into
    parts (``take``, ``repeat``, generators).

    Parameters
    ----------
    coordinator : ClusterCoordinator
        Of the workers.
    data : Dataset
        The batches.
    steps : int, optional
        For how many batches a call is, the next one continues after them; by default for all.
    metrics : CountedMetrics, optional
        What is counted.
    in_order : bool
        Whether the notebook reads the batches.

    Attributes
    ----------
    length : int or None
        How many batches a call is for; None if that is not known.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        data: Dataset,
        steps: int | None = None,
        metrics: Any = None,
        *,
        in_order: bool = False,
    ) -> None:
        self.coordinator, self.metrics, self.length = coordinator, metrics, steps_of(data, steps)
        self._data, self._steps = data, steps
        mode = coordinator.strategy.mode
        self._round_size = mode.closures if isinstance(mode, Sync) else None
        self._leased: Any = None
        if not in_order and self._round_size is None:
            with suppress(ConfigurationError):
                self._leased = coordinator.create_per_worker_dataset(data, sharding="dynamic")
        self._under_way: Any = None

    def restart(self) -> None:
        """Let the next call begin with the first batch."""
        self._under_way = None

    def run(
        self,
        closure: Callable[[Iterator[Any]], Any],
        begin: Callable[[int], None],
        *,
        hold: bool = False,
    ) -> Iterator[Any]:
        """Call a closure for all batches, or for the next ones; yield what it returns.

        Parameters
        ----------
        closure : callable
            Takes a batch with ``next`` from its argument; returns None if there is none.
        begin : callable
            Called with the number of a batch before its result is yielded.
        hold : bool
            In mode `Sync`, call ``begin`` before a batch is scheduled, yield when its round is
            applied, and schedule nothing before all of its round were taken: so a batch's taker
            sees the parameters as they are after it, and ``begin`` changes the parameters for it.
            In other modes there is no such moment, as batches of several workers overlap.
        """
        coordinator, steps, count = self.coordinator, self._steps, 0
        core = coordinator_core(coordinator)
        held = self._round_size if hold else None
        if self._leased is not None:
            if self._under_way is None or self._under_way.progress().over:
                self._under_way = iter(self._leased)
            wanted = None if steps is None else lambda waiting: count + waiting < steps
            epoch = self._under_way
            ended = run_epoch(core, closure, epoch, (), {}, results=True, wanted=wanted)
        else:
            first = [] if self._under_way is None else [*islice(self._under_way, 1)]
            if not first:  # also where the steps of the call before have used all
                self._under_way = iter(self._data)
            numbered = enumerate(islice(chain(first, self._under_way), steps))

            def schedule(batch: tuple[int, Any]) -> RemoteValue:
                if held:
                    begin(batch[0])
                return coordinator.schedule(closure, (iter([batch[1]]),))

            ended = run_in_order(core, numbered, schedule, held)
        with closing(ended):  # type: ignore[type-var]
            for remote in ended:
                results = remote.take() if isinstance(remote, StepValues) else []
                if not isinstance(remote, StepValues):
                    if not remote.done() or (held and remote.status is ClosureStatus.COMPLETED):
                        remote.fetch()  # raises what holds it up; waits for its round
                    if remote.status is ClosureStatus.COMPLETED:
                        results = [remote.returned()]  # its round continues
                for found in results:
                    if found is not None:
                        if not held:
                            begin(count)
                        count += 1
                        yield found
                if remote.done() and remote.status is not ClosureStatus.COMPLETED:
                    coordinator.join(progress=False)  # raises what it or another one raised
        coordinator.join(progress=False)
        if steps is None or (self._leased is None and count < steps):
            self._under_way = None


def step_of(name: str, function: Callable[[Any], Any]) -> Callable[[Iterator[Any]], Any]:
    """Return what calls a function with the next batch; errors and the dashboard show its name."""

    def step(iterator: Iterator[Any]) -> Any:
        batch = next(iterator, None)
        return None if batch is None else function(batch)

    step.__qualname__ = f"step of {name}"
    return step


_REFUSED = {
    "BackupAndRestore": "optimizers have their state on the servers: psnb.CheckpointManager saves "
    "all of it, while closures run, and restores it",
    "SwapEMAWeights": "servers keep no moving averages of weights",
    "TensorBoard": "it reads the model's graph and variables in this process; "
    "keras.callbacks.CSVLogger and coordinator.plot() keep logs",
    "LoraCallback": "servers keep no LoRA weights",
}


def callback_list(given: Any, model: Any, verbose: Any, **params: Any) -> Any:
    """Return a list of callbacks that keeps a history and shows progress.

    Raises
    ------
    ConfigurationError
        If there is one that cannot work.
    """
    if isinstance(given, keras.callbacks.CallbackList):
        return given
    for each in keras.tree.flatten(given) if given else ():
        for kind in type(each).__mro__:
            if kind.__module__.startswith("keras.") and kind.__name__ in _REFUSED:
                raise ConfigurationError(f"callback {kind.__name__}: {_REFUSED[kind.__name__]}")
    return keras.callbacks.CallbackList(
        given,
        add_history=True,
        add_progbar=verbose != 0,
        model=model,
        verbose=1 if verbose == "auto" else verbose,
        **params,
    )


_AT_BATCHES = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def looks_at_batches(callbacks_: Any) -> bool:
    """Return whether a callback may look at the model, or steer it, at each batch of training.

    Of Keras's own only those that save at batches: ``ProgbarLogger`` and ``TerminateOnNaN`` get all
    that they need.
    """
    return any(_has_own(each, name) for each in callbacks_.callbacks for name in _AT_BATCHES)


def _has_own(callback: Any, name: str) -> bool:
    found = getattr(callback, name)
    function = getattr(found, "__func__", found)
    if function is getattr(keras.callbacks.Callback, name):
        return False
    keras_own = str(getattr(function, "__module__", "")).startswith("keras.")
    return not keras_own or getattr(callback, "save_freq", "epoch") != "epoch"


_REFRESHED = 0.5
"""Seconds after which running metrics are read again."""

Logs = dict[str, Any]


class CountedMetrics:
    """The metrics of one pass at a time, added up on the servers over all workers.

    Each batch adds to one variable what it gives to the metrics of Keras, with everything else that
    its closure does: so it counts exactly once, whatever dies.

    Parameters
    ----------
    program : KerasProgram
        Knows what they come to.
    variable : Variable
        Where they are added up.
    """

    def __init__(self, program: KerasProgram, variable: Variable) -> None:
        self.program, self.variable = program, variable
        self._loss = self._examples = 0.0
        self._running: Logs = {}
        self._read = 0.0

    def begin(self) -> None:
        """Begin with nothing."""
        self.variable.assign(np.zeros(self.variable.shape))
        self._loss = self._examples = 0.0
        self._running, self._read = {}, time.monotonic()

    def add(self, batch: Trained) -> Logs:
        """Note a batch's result; return what callbacks get: metrics of the pass so far.

        The loss is over all ended batches; other metrics are read now and then.
        """
        loss, examples = batch
        self._loss += loss * examples
        self._examples += examples
        if (now := time.monotonic()) >= self._read + _REFRESHED:
            self._read, self._running = now, self.results()
        return {**self._running, "loss": self._loss / self._examples}

    def results(self) -> Logs:
        """Return the metrics of all batches so far."""
        values = self.variable.read()
        return self.program.network.results(values)


def fit_model(
    model: Any,
    epochs: range,
    training: Passes,
    validation: Passes | None,
    frequency: int | Collection[int],
    callbacks_: Any,
) -> None:
    """Train a model, in which callbacks set ``stop_training`` and ``stop_evaluating``."""
    if not isinstance(frequency, Collection):
        every = integer("fit: validation_freq", frequency, 1)
        frequency = range(every, epochs.stop + 1, every)
    coordinator, metrics, taken = training.coordinator, training.metrics, 0
    ends = any(isinstance(e, keras.callbacks.TerminateOnNaN) for e in callbacks_.callbacks)
    program, variable = metrics.program, metrics.variable
    step = step_of("fit", lambda batch: program.train(batch, variable, ends))
    hold = looks_at_batches(callbacks_)
    model.stop_training = False
    callbacks_.on_train_begin()
    logs: Logs = {}

    def progress() -> EpochCount:
        return EpochCount(taken, training.length)

    clock, core = TrainingClock(epochs.stop), coordinator_core(coordinator)
    with core.training(clock):
        for epoch in epochs:
            taken = 0
            callbacks_.on_epoch_begin(epoch)

            core.begin_epoch(clock, epoch + 1, progress, MetricStates({}))
            metrics.begin()
            for found in training.run(step, callbacks_.on_train_batch_begin, hold=hold):
                taken += 1
                callbacks_.on_train_batch_end(taken - 1, metrics.add(found))
                if model.stop_training:
                    break
            coordinator.join(progress=False)  # what ran when it was stopped
            core.unmoved_rows.look()
            if training.length is None and not model.stop_training:
                training.length = taken
            logs = metrics.results()
            validated: Logs = {}
            if validation is not None and epoch + 1 in frequency:  # as Keras counts
                with clock.validating():
                    validated = evaluate_model(model, validation, callbacks_)
            # Closures report the loss of each batch.
            whole = {name: value for name, value in logs.items() if name != "loss"}
            core.records.history.add(time.time(), whole, averaged=False)
            core.records.history.add_validation(time.time(), validated)
            logs |= {f"{VALIDATION}{name}": value for name, value in validated.items()}
            callbacks_.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
    callbacks_.on_train_end(logs)


def evaluate_model(model: Any, given: Passes, callbacks_: Any) -> Logs:
    """Return loss and metrics of a model."""
    metrics = given.metrics
    program, variable = metrics.program, metrics.variable
    score = step_of("evaluate", lambda batch: program.score(batch, variable))
    given.restart()  # as Keras does, whatever was left of the time before
    metrics.begin()
    model.stop_evaluating = False
    callbacks_.on_test_begin()
    for number, _ in enumerate(given.run(score, callbacks_.on_test_batch_begin)):
        callbacks_.on_test_batch_end(number, {})
        if model.stop_evaluating:
            break
    given.coordinator.join(progress=False)  # what ran when it was stopped
    logs: Logs = metrics.results()
    callbacks_.on_test_end(logs)
    return logs
