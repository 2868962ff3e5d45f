"""FitLoop: the epochs of `fit`, with validation and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from psnb._src.coordinator import (
    ClusterCoordinator,
    clock_shown,
    epoch_metrics_shown,
    epoch_shown,
)
from psnb._src.keras_models.callback_list import ends_at_nan, looks_at_batches
from psnb._src.keras_models.counted_metrics import CountedMetrics, Logs
from psnb._src.keras_models.keras_program import KerasProgram, Trained
from psnb._src.keras_models.passes import Passes
from psnb._src.monitor import VALIDATION, EpochCount, TrainingClock

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
        Has ``stop_training``, which callbacks set.
    """

    def __init__(self, coordinator: ClusterCoordinator, program: KerasProgram, model: Any) -> None:
        self._coordinator, self._program, self._model = coordinator, program, model
        self._taken = 0  # batches of the epoch

    def fit(
        self, epochs: range, training: Pass, validation: Pass | None, each: Any, told: Any
    ) -> None:
        """Train; ``each`` tells by an epoch's number whether there is a validation after it."""
        step = self._training_step(training.metrics, ends_at_nan(told))
        hold = looks_at_batches(told)
        self._model.stop_training = False
        told.on_train_begin()
        logs: Logs = {}
        clock = TrainingClock(epochs.stop)
        with clock_shown(self._coordinator, clock):
            for epoch in epochs:
                self._taken = 0
                told.on_epoch_begin(epoch)
                epoch_shown(self._coordinator, clock, epoch + 1, partial(self._count, training))
                training.metrics.begin()
                begin = told.on_train_batch_begin
                for number, found in self._numbered(step, training, begin, hold):
                    self._taken = number + 1
                    told.on_train_batch_end(number, training.metrics.add(found))
                    if self._model.stop_training:
                        break
                self._coordinator.join(progress=False)  # what ran when it was stopped
                if training.length is None and not self._model.stop_training:
                    training.length = self._taken
                logs = training.metrics.results()
                validated: Logs = {}
                if validation is not None and each(epoch):
                    validated = self.evaluate(validation, told)
                # Closures report the loss of each batch.
                whole = {name: value for name, value in logs.items() if name != "loss"}
                epoch_metrics_shown(self._coordinator, whole, validated)
                logs |= {f"{VALIDATION}{name}": value for name, value in validated.items()}
                told.on_epoch_end(epoch, logs)
                if self._model.stop_training:
                    break
        told.on_train_end(logs)

    def _count(self, training: Pass) -> EpochCount:
        return EpochCount(self._taken, training.length)

    def evaluate(self, given: Pass, told: Any) -> Logs:
        """Return loss and metrics."""
        program, variable = self._program, given.metrics.variable

        def score(iterator: Iterator[Any]) -> Trained | None:
            batch = next(iterator, None)
            return None if batch is None else program.score(batch, variable)

        score.__qualname__ = "step of evaluate"
        given.metrics.begin()
        told.on_test_begin()
        for number, _ in self._numbered(score, given, told.on_test_batch_begin):
            told.on_test_batch_end(number, {})
        logs = given.metrics.results()
        told.on_test_end(logs)
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
    if isinstance(frequency, int):
        return lambda epoch: (epoch + 1) % frequency == 0
    return lambda epoch: epoch + 1 in frequency
