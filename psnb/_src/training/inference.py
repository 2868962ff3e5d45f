"""Inference: a closure that predicts for one split of a dataset, in order, and writes nothing.

Its result is the predictions, or whether there is a file that has them. If its worker dies, another
one predicts the whole split again. Threads: those of all closures on a worker share the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from psnb._src.data import Dataset
from psnb._src.parameters import writing_nothing
from psnb._src.training.prediction_files import PredictionFiles
from psnb._src.training.rows import rows_of
from psnb.errors import ConfigurationError

Columns = dict[str, np.ndarray]

ALONE = "prediction"
"""The column of what a function returns that is no dict."""


class Inference:
    """Predicts for whole splits.

    Parameters
    ----------
    predict : callable
        Takes a batch, and returns an array with one row for each example, or a dict of such.
    files : PredictionFiles, optional
        Where the predictions go; without, they are the result.
    """

    def __init__(self, predict: Callable[[Any], Any], files: PredictionFiles | None) -> None:
        self._predict, self._files = predict, files
        name = getattr(predict, "__qualname__", type(predict).__qualname__)
        self.__qualname__ = self.__name__ = f"predictions by {name}"

    def __call__(self, datasets: Sequence[Dataset], number: int) -> Any:
        """Return a split's predictions, None if there are none; or whether its file has rows."""
        with datasets[number].iterator() as iterator, writing_nothing():
            if self._files is not None:
                return self._files.write(number, map(self._columns, iterator))
            return joined(self._columns(batch) for batch in iterator)

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
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}
