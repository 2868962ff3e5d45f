"""FitLoop: the epochs of `fit`, with validation and callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import keras
import numpy as np

from psnb._src.client.variable import Variable
from psnb._src.coordinator.coordinator import ClusterCoordinator, closures_of_epoch, epoch_services
from psnb._src.coordinator.epoch import run_in_order
from psnb._src.coordinator.remote_value import ClosureStatus, RemoteValue, StepValues
from psnb._src.coordinator.resume import clock_shown, epoch_metrics_shown, epoch_shown
from psnb._src.data.dataset import Dataset
from psnb._src.models.keras.program import KerasProgram, Trained
from psnb._src.monitor.history import VALIDATION
from psnb._src.monitor.training_clock import EpochCount, TrainingClock
from psnb._src.protocol.modes import Sync
from psnb._src.utils.checks import integer
from psnb.errors import ConfigurationError

# Passes: calling closures for all batches of a dataset, and returning their results.
#
# In the notebook's thread that asks for results; what is scheduled ahead runs meanwhile.


class Passes:
    """Goes through a dataset on the workers, again and again.

    Workers lease parts and read them; results come as closures end. The notebook reads the batches
    instead, and results come in their order, if that is asked for; in mode `Sync`, so that a round
    has the same batches whichever worker is faster or dies; and of datasets that cannot be cut into
    parts (``take``, ``repeat``, generators).
    """

    def __init__(
        self, coordinator: ClusterCoordinator, data: Dataset, *, in_order: bool = False
    ) -> None:
        self._coordinator, self._data = coordinator, data
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
        steps: int | None,
        begin: Callable[[int], None],
        *,
        hold: bool = False,
    ) -> Iterator[Any]:
        """Call a closure for all batches, or for the next ones; yield what it returns.

        Parameters
        ----------
        closure : callable
            Takes a batch with ``next`` from what it is given; returns None if there is none.
        steps : int or None
            For how many batches; the next call goes on with those after them. None for all.
        begin : callable
            Called with the number of a batch before its result is yielded.
        hold : bool
            In mode `Sync`, call ``begin`` before a batch is scheduled, yield when its round is
            applied, and schedule nothing before all of its round were taken: so a batch's taker
            sees the parameters as they are after it, and ``begin`` changes what it is trained with.
            In other modes there is no such moment, as batches of several workers overlap.
        """
        coordinator, count = self._coordinator, 0
        held = self._round_size if hold else None
        if self._leased is not None:
            if self._under_way is None or self._under_way.progress().over:
                self._under_way = iter(self._leased)
            ended = closures_of_epoch(
                coordinator,
                closure,
                self._under_way,
                None if steps is None else lambda waiting: count + waiting < steps,
            )
        else:
            first = [] if self._under_way is None else [*islice(self._under_way, 1)]
            if not first:  # also where the steps of the call before have used all
                self._under_way = iter(self._data)
            numbered = enumerate(islice(chain(first, self._under_way), steps))

            def schedule(batch: tuple[int, Any]) -> RemoteValue:
                if held:
                    begin(batch[0])
                return coordinator.schedule(closure, (iter([batch[1]]),))

            ended = run_in_order(numbered, schedule, epoch_services(coordinator), held)
        with closing(ended):  # type: ignore[type-var]
            for remote in ended:
                if isinstance(remote, StepValues):
                    for found in remote.take():
                        if found is not None:
                            begin(count)
                            count += 1
                            yield found
                    if remote.done() and remote.status is not ClosureStatus.COMPLETED:
                        coordinator.join(progress=False)  # raises what it or another one raised
                    continue
                if not remote.done():
                    remote.fetch()  # raises what holds it up
                if remote.status is not ClosureStatus.COMPLETED:
                    coordinator.join(progress=False)  # likewise
                if held:
                    remote.fetch()  # waits for its round
                if (found := remote.returned()) is not None:  # its round goes on
                    if not held:
                        begin(count)
                    count += 1
                    yield found
        coordinator.join(progress=False)
        if steps is None or (self._leased is None and count < steps):
            self._under_way = None


# The callbacks of a call, as Keras makes them; those that cannot work are refused.

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

    Of Keras's own only those that save at batches: ``ProgbarLogger`` and ``TerminateOnNaN`` are
    given all that they look at.
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


# CountedMetrics: the metrics of an epoch, added up on the servers over all workers.
#
# Each batch adds to one variable what it gives to the metrics of Keras, with everything else that
# its closure does: so it counts exactly once, whatever dies.

_REFRESHED = 0.5
"""Seconds after which running metrics are read again."""

Logs = dict[str, Any]


class CountedMetrics:
    """The metrics of one pass at a time.

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

        The loss is that of all batches that have ended; others are read now and then.
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
        step = self._training_step(training.metrics, ends_at_nan(callbacks_))
        hold = looks_at_batches(callbacks_)
        self._model.stop_training = False
        callbacks_.on_train_begin()
        logs: Logs = {}
        clock = TrainingClock(epochs.stop)
        with clock_shown(self._coordinator, clock):
            for epoch in epochs:
                self._taken = 0
                callbacks_.on_epoch_begin(epoch)
                epoch_shown(self._coordinator, clock, epoch + 1, partial(self._count, training))
                training.metrics.begin()
                begin = callbacks_.on_train_batch_begin
                for number, found in self._numbered(step, training, begin, hold):
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
                epoch_metrics_shown(self._coordinator, whole, validated)
                logs |= {f"{VALIDATION}{name}": value for name, value in validated.items()}
                callbacks_.on_epoch_end(epoch, logs)
                if self._model.stop_training:
                    break
        callbacks_.on_train_end(logs)

    def _count(self, training: Pass) -> EpochCount:
        return EpochCount(self._taken, training.length)

    def evaluate(self, given: Pass, callbacks_: Any) -> Logs:
        """Return loss and metrics."""
        program, variable = self._program, given.metrics.variable

        def score(iterator: Iterator[Any]) -> Trained | None:
            batch = next(iterator, None)
            return None if batch is None else program.score(batch, variable)

        score.__qualname__ = "step of evaluate"
        given.data.restart()  # as Keras does, whatever was left of the time before
        given.metrics.begin()
        self._model.stop_evaluating = False
        callbacks_.on_test_begin()
        for number, _ in self._numbered(score, given, callbacks_.on_test_batch_begin):
            callbacks_.on_test_batch_end(number, {})
            if self._model.stop_evaluating:
                break
        self._coordinator.join(progress=False)  # what ran when it was stopped
        logs = given.metrics.results()
        callbacks_.on_test_end(logs)
        return logs

    def _training_step(self, metrics: CountedMetrics, ends: bool) -> Step:
        program, variable = self._program, metrics.variable

        def train(iterator: Iterator[Any]) -> Trained | None:
            batch = next(iterator, None)
            return None if batch is None else program.train(batch, variable, ends)

        train.__qualname__ = "step of fit"  # what errors and the dashboard call it
        return train

    @staticmethod
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


def as_batches(
    x: Any,
    y: Any = None,
    weights: Any = None,
    batch_size: int | None = None,
    *,
    shuffle: bool = False,
) -> Dataset:
    """Return a dataset of batches ``(x,)``, ``(x, y)`` or ``(x, y, weights)``.

    Raises
    ------
    ConfigurationError
        If there is something else, or arrays have other lengths.
    """
    if isinstance(x, Dataset):
        if y is not None or weights is not None:
            raise ConfigurationError(
                "x is a dataset, whose elements have targets and weights: leave y and "
                "sample_weight out"
            )
        return x
    whole = tuple(each for each in arrays(x, y, weights) if each is not None)
    data = Dataset.from_tensor_slices(whole)
    if shuffle:
        data = data.shuffle(length(whole))
    return data.batch(batch_size or 32)


def parted(given: Any, batch_size: int | None) -> tuple[Any, Any, Any, int | None]:
    """Return what `as_batches` takes from ``(x, y)``, ``(x, y, weights)`` or a dataset."""
    if isinstance(given, Dataset):
        return given, None, None, batch_size
    if not isinstance(given, tuple | list) or len(given) not in (2, 3):
        raise ConfigurationError(
            "validation_data is (x, y), (x, y, sample_weight) or a psnb.data.Dataset, found "
            f"{type(given).__name__}"
        )
    x, y, *weights = given
    return x, y, weights[0] if weights else None, batch_size


def split_off(
    x: Any, y: Any, weights: Any, part: float
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Return the first examples and the last ones, which are a part of all.

    Raises
    ------
    ConfigurationError
        If they are not arrays, or one of both would be empty.
    """
    if isinstance(x, Dataset):
        raise ConfigurationError(
            "validation_split takes arrays; of a dataset, dataset.take(n) and dataset.skip(n) make "
            "two"
        )
    whole = arrays(x, y, weights)
    count = length(whole)
    at = int(count * (1.0 - part))
    if not 0 < at < count:
        raise ConfigurationError(
            f"validation_split={part} of {count} examples leaves none for training or validation"
        )
    first, last = (
        keras.tree.map_structure(lambda each, s=s: None if each is None else each[s], whole)
        for s in (slice(at), slice(at, None))
    )
    return first, last


def arrays(*given: Any) -> tuple[Any, ...]:
    """Return trees with arrays of numpy, all of one length, or raise ConfigurationError.

    Lists become tuples: to Keras they are the same, to datasets a list is one array.
    """

    def as_array(each: Any) -> Any:
        if each is None:
            return None
        array = np.asarray(each)
        if array.ndim == 0 or array.dtype == object:
            raise ConfigurationError(
                f"x must be arrays or a psnb.data.Dataset, found {type(each).__name__}; "
                "psnb.data.Dataset.from_generator takes what else yields batches"
            )
        return array

    found: tuple[Any, ...] = _in_tuples(keras.tree.map_structure(as_array, given))
    lengths = {len(each) for each in keras.tree.flatten(found) if each is not None}
    if len(lengths) > 1:
        raise ConfigurationError(f"arrays have different numbers of examples: {sorted(lengths)}")
    return found


def _in_tuples(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _in_tuples(each) for name, each in tree.items()}
    return tuple(map(_in_tuples, tree)) if isinstance(tree, list | tuple) else tree


def steps_of(data: Dataset, steps: int | None) -> int | None:
    """Return how many batches there will be; None if that is not known.

    Raises
    ------
    ConfigurationError
        If there is no end to them.
    """
    count = data.cardinality() if steps is None else steps
    if count == -1:
        raise ConfigurationError(
            "the dataset has no end: say how many batches are used, with steps_per_epoch=, "
            "validation_steps= or steps="
        )
    return count


def length(given: Any) -> int:
    """Return how many examples there are."""
    return next(len(each) for each in keras.tree.flatten(given) if each is not None)


class ClassWeights:
    """Gives each example of a batch the weight of its class.

    Parameters
    ----------
    weights : mapping of int to float
        Of each class; 1 for others.
    """

    def __init__(self, weights: Mapping[int, float]) -> None:
        self._weights = dict(weights)

    def __call__(self, x: Any, y: Any, given: Any = None) -> Any:
        """Return the batch with weights."""
        if not hasattr(y, "reshape"):
            raise ConfigurationError("class_weight is for models with one output")
        classes = np.asarray(y).reshape(len(y), -1)
        kinds = classes.argmax(1) if classes.shape[1] > 1 else classes[:, 0].astype(int)
        weights = np.array([self._weights.get(int(kind), 1.0) for kind in kinds], np.float32)
        return x, y, weights if given is None else weights * given
