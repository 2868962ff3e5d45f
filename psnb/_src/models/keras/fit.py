"""FitLoop: the epochs of `fit`, with validation and callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from psnb._src.client.variable import Variable
from psnb._src.coordinator.coordinator import ClusterCoordinator, coordinator_core
from psnb._src.metrics.metric import MetricStates
from psnb._src.models.keras.passes import Passes
from psnb._src.models.keras.program import KerasProgram, Trained
from psnb._src.monitor.history import VALIDATION
from psnb._src.monitor.training_clock import EpochCount, TrainingClock
from psnb._src.utils.checks import integer
from psnb.errors import ConfigurationError

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


def ends_at_nan(callbacks_: Any) -> bool:
    """Return whether a callback ends training at a loss that is not finite."""
    return any(isinstance(each, keras.callbacks.TerminateOnNaN) for each in callbacks_.callbacks)


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
        self._program, self.variable = program, variable
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
        return self._program.network.results(self.variable.read())


Step = Callable[[Iterator[Any]], Trained | None]


@dataclass
class Pass:
    """Goes through data on the workers.

    Attributes
    ----------
    data : Passes
        The batches.
    metrics : CountedMetrics
        What is counted.
    steps : int or None
        How many batches; None for all.
    length : int or None
        How many these are; None if that is not known.
    """

    data: Passes
    metrics: CountedMetrics
    steps: int | None
    length: int | None


class FitLoop:
    """Trains and evaluates a model.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        Of the workers.
    program : KerasProgram
        What they compute.
    model : object
        Has ``stop_training`` and ``stop_evaluating``, which callbacks set.
    """

    def __init__(self, coordinator: ClusterCoordinator, program: KerasProgram, model: Any) -> None:
        self._coordinator, self._program, self._model = coordinator, program, model
        self._taken = 0  # batches of the epoch

    def fit(
        self, epochs: range, training: Pass, validation: Pass | None, each: Any, callbacks_: Any
    ) -> None:
        """Train; ``each`` says by an epoch's number whether there is a validation after it."""
        program, variable = self._program, training.metrics.variable
        ends = ends_at_nan(callbacks_)
        step = _step("step of fit", lambda batch: program.train(batch, variable, ends))
        hold = looks_at_batches(callbacks_)
        self._model.stop_training = False
        callbacks_.on_train_begin()
        logs: Logs = {}
        clock, core = TrainingClock(epochs.stop), coordinator_core(self._coordinator)
        with core.training(clock):
            for epoch in epochs:
                self._taken = 0
                callbacks_.on_epoch_begin(epoch)
                core.begin_epoch(
                    clock,
                    epoch + 1,
                    lambda: EpochCount(self._taken, training.length),
                    MetricStates({}),
                )
                training.metrics.begin()
                begin = callbacks_.on_train_batch_begin
                for number, found in _numbered(step, training, begin, hold):
                    self._taken = number + 1
                    callbacks_.on_train_batch_end(number, training.metrics.add(found))
                    if self._model.stop_training:
                        break
                self._coordinator.join(progress=False)  # what ran when it was stopped
                if training.length is None and not self._model.stop_training:
                    training.length = self._taken
                logs = training.metrics.results()
                validated: Logs = {}
                if validation is not None and each(epoch):
                    validated = self.evaluate(validation, callbacks_)
                # Closures report the loss of each batch.
                whole = {name: value for name, value in logs.items() if name != "loss"}
                core.records.history.add(time.time(), whole, averaged=False)
                core.records.history.add_validation(time.time(), validated)
                logs |= {f"{VALIDATION}{name}": value for name, value in validated.items()}
                callbacks_.on_epoch_end(epoch, logs)
                if self._model.stop_training:
                    break
        callbacks_.on_train_end(logs)

    def evaluate(self, given: Pass, callbacks_: Any) -> Logs:
        """Return loss and metrics."""
        program, variable = self._program, given.metrics.variable
        score = _step("step of evaluate", lambda batch: program.score(batch, variable))
        given.data.restart()  # as Keras does, whatever was left of the time before
        given.metrics.begin()
        self._model.stop_evaluating = False
        callbacks_.on_test_begin()
        for number, _ in _numbered(score, given, callbacks_.on_test_batch_begin):
            callbacks_.on_test_batch_end(number, {})
            if self._model.stop_evaluating:
                break
        self._coordinator.join(progress=False)  # what ran when it was stopped
        logs = given.metrics.results()
        callbacks_.on_test_end(logs)
        return logs


def _step(name: str, function: Callable[[Any], Trained]) -> Step:
    """Return what calls a function with the next batch; errors and the dashboard show its name."""

    def step(iterator: Iterator[Any]) -> Trained | None:
        batch = next(iterator, None)
        return None if batch is None else function(batch)

    step.__qualname__ = name
    return step


def _numbered(
    step: Step, given: Pass, begin: Callable[[int], None], hold: bool = False
) -> Iterator[tuple[int, Trained]]:
    run = given.data.run(step, given.steps, begin, hold=hold)
    with closing(run) as found:  # type: ignore[type-var]
        yield from enumerate(found)


def validated_after(frequency: int | Collection[int]) -> Callable[[int], bool]:
    """Return whether there is a validation after an epoch, as Keras counts."""
    if not isinstance(frequency, Collection):
        frequency = integer("fit: validation_freq", frequency, 1)
        return lambda epoch: (epoch + 1) % frequency == 0
    return lambda epoch: epoch + 1 in frequency
