"""Evaluation and Inference: closures of one split of a dataset, which write nothing.

The reports of an evaluation stay out of the coordinator's metrics; they are the closure's result,
so they count once, whichever worker dies. The result of an inference is the predictions, in order,
or whether there is a file that has them; if its worker dies, another one predicts the whole split
again. Threads: the closures of a worker share the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from psnb._src.client.local.dry_run import writing_nothing
from psnb._src.data.dataset import Dataset
from psnb._src.data.iterator import DatasetIterator
from psnb._src.data.nesting import flatten
from psnb._src.data.ragged import Ragged
from psnb._src.metrics.metric import MetricStates
from psnb._src.metrics.slice_table import SliceTable
from psnb._src.monitor.history import EXAMPLES
from psnb._src.monitor.metrics import warn_of_samples
from psnb._src.training.prediction_files import PredictionFiles
from psnb._src.training.reported import Reported, Sum
from psnb._src.utils.arrays import concatenated
from psnb._src.utils.ownership import owned
from psnb._src.utils.text import Named
from psnb._src.worker.context import entered, worker_context
from psnb._src.worker.reports import ReportedStates
from psnb._src.worker.taken import taken_in_vain
from psnb.errors import ConfigurationError, DatasetError


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


def has_elements(datasets: Sequence[Dataset], number: int) -> tuple[bool, list[Any]]:
    """Return whether a split has any element, and what partitions it has read for the first."""
    with datasets[number].iterator() as iterator:
        found = any(True for _ in iterator)
        return found, iterator.partitions()


def nothing_to_validate() -> DatasetError:
    """Return the error of a validation without examples."""
    return DatasetError("validation=: the dataset yields no example; a filter may leave nothing")


class SplitFigures(NamedTuple):
    """What one split came to: how many examples, and what was reported of them."""

    rows: int
    reported: Reported


class Evaluation:
    """Evaluates whole splits.

    Parameters
    ----------
    step : callable
        A closure of an iterator, which reports metrics.
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        name = getattr(step, "__qualname__", type(step).__qualname__)
        self.__qualname__ = self.__name__ = f"evaluation by {name}"

    def __call__(
        self, datasets: Sequence[Dataset], number: int
    ) -> tuple[SplitFigures | None, list[Any]]:
        """Return the figures of a split, None if it is empty, and what partitions it has read."""
        numbers, states = dict[str, Sum](), ReportedStates()
        with datasets[number].iterator() as iterator:
            counted = CountedRows(iterator)
            since = examples = 0  # rows at the last report, and the rows that it was of

            def report(when: float, values: dict[str, float]) -> None:
                nonlocal since, examples
                if counted.rows > since:
                    since, examples = counted.rows, counted.rows - since
                weight = values.get(EXAMPLES, examples)
                for name, value in values.items():
                    numbers[name] = numbers.get(name, Sum()).plus(Sum(value * weight, weight))

            context = replace(worker_context(), send_report=report, states=states)
            with entered(context), writing_nothing():
                while not counted.ended:
                    before = counted.batches
                    try:
                        self._step(counted)
                    except StopIteration as error:
                        if not counted.ended:
                            raise
                        if count := counted.batches - before:
                            raise taken_in_vain(count) from error
                    if counted.batches == before and not counted.ended:
                        raise ConfigurationError(
                            f"{self.__name__}: it has taken nothing from its iterator, so it would "
                            "never end; batch = next(iterator)"
                        )
            partitions = iterator.partitions()
        reported = Reported(numbers, MetricStates(states.merged()))
        return (SplitFigures(counted.rows, reported) if counted.rows else None), partitions


class Results(Named[float]):
    """The metrics of an evaluation: their values by name.

    Attributes
    ----------
    slices : mapping of str to SliceTable
        The values by slice of metrics that were called with ``by``.
    """

    slices: Mapping[str, SliceTable] = Named({}, "metric by slice")


def merged_figures(parts: Iterable[SplitFigures | None]) -> Results:
    """Return the metrics of all splits, and how many examples there were."""
    rows, merged = 0, list[tuple[int, Reported]]()
    for part in parts:
        if part is None:
            continue
        rows, one, of_parts = rows + part.rows, part.reported, 1
        # As digits of a binary number are carried: few states that are large are merged.
        while merged and merged[-1][0] == of_parts:
            of_parts, one = 2 * of_parts, one.and_(merged.pop()[1])
        merged.append((of_parts, one))
    whole = Reported()
    for _, one in reversed(merged):
        whole = whole.and_(one)
    warn_of_samples(whole.states)
    results = Results(whole.results() | {EXAMPLES: rows}, "metric")
    results.slices = Named(whole.states.slices(), "metric by slice")
    return results


Columns = dict[str, np.ndarray]

ALONE = "prediction"
"""The column for the result of a function that does not return a dict."""


class Inference:
    """Predicts for whole splits.

    Parameters
    ----------
    predict : callable
        Takes a batch, and returns an array with one row for each example, or a dict of such arrays.
    files : PredictionFiles, optional
        Where the predictions go; without, they are the result.
    """

    def __init__(self, predict: Callable[[Any], Any], files: PredictionFiles | None) -> None:
        self._predict, self._files = predict, files
        name = getattr(predict, "__qualname__", type(predict).__qualname__)
        self.__qualname__ = self.__name__ = f"predictions by {name}"

    def __call__(self, datasets: Sequence[Dataset], number: int) -> tuple[Any, list[Any]]:
        """Return a split's predictions, None if there are none; or whether its file has rows.

        And what partitions it has read.
        """
        with datasets[number].iterator() as iterator, writing_nothing():
            batches = map(self._columns, iterator)
            if self._files is None:  # copies, as a function may fill the same array each time
                found: Any = joined(map(owned, batches))
            else:
                found = self._files.write(number, batches)
            return found, iterator.partitions()

    def _columns(self, batch: Any) -> Columns:
        found = self._predict(batch)
        columns = found if isinstance(found, Mapping) else {ALONE: found}
        arrays = {str(name): np.asarray(column) for name, column in columns.items()}
        rows = rows_of(batch)
        for name, array in arrays.items():
            if array.shape[:1] != (rows,):
                raise ConfigurationError(
                    f"{self.__name__}: {name!r} has shape {array.shape} for a batch of {rows} "
                    "examples: return arrays with one row for each"
                )
        return arrays


def joined(parts: Iterator[Columns | None]) -> Columns | None:
    """Return columns one after another; None if there are none."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    return {name: concatenated([part[name] for part in found]) for name in found[0]}
