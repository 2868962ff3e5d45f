"""The data of a call, as batches: of arrays or a dataset, with validation and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from psnb._src.data.dataset import Dataset
from psnb.errors import ConfigurationError


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
