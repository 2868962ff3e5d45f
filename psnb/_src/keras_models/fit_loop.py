"""FitLoop: the epochs of `fit`, with validation and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from psnb._src.coordinator import ClusterCoordinator
from psnb._src.keras_models.callback_list import ends_at_nan, looks_at_batches
from psnb._src.keras_models.counted_metrics import CountedMetrics, Logs
from psnb._src.keras_models.keras_program import KerasProgram, Trained
from psnb._src.keras_models.passes import Passes

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
    """

    data: Passes
    metrics: CountedMetrics
    steps: int | None


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

    def fit(
        self, epochs: range, training: Pass, validation: Pass | None, each: Any, told: Any
    ) -> None:
        """Train; ``each`` tells by an epoch's number whether there is a validation after it."""
        step = self._training_step(training.metrics, ends_at_nan(told))
        hold = looks_at_batches(told)
        self._model.stop_training = False
        told.on_train_begin()
        logs: Logs = {}
        for epoch in epochs:
            told.on_epoch_begin(epoch)
            training.metrics.begin()
            for number, found in self._numbered(step, training, told.on_train_batch_begin, hold):
                told.on_train_batch_end(number, training.metrics.add(found))
                if self._model.stop_training:
                    break
            self._coordinator.join(progress=False)  # what ran when it was stopped
            logs = training.metrics.results()
            if validation is not None and each(epoch):
                found_logs = self.evaluate(validation, told)
                logs |= {f"val_{name}": value for name, value in found_logs.items()}
            told.on_epoch_end(epoch, logs)
            if self._model.stop_training:
                break
        told.on_train_end(logs)

    def evaluate(self, given: Pass, told: Any) -> Logs:
        """Return loss and metrics."""
        program, variable = self._program, given.metrics.variable

        def score(iterator: Iterator[Any]) -> Trained | None:
            batch = next(iterator, None)
            return None if batch is None else program.score(batch, variable)

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
