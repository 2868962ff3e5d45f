"""The data of a call, as batches: of arrays or a dataset, with validation and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from psnb._src.data.dataset import Dataset
from psnb._src.data.ragged import Ragged
from psnb._src.models.export.manifest import fits
from psnb._src.utils.arrays import found_in
from psnb.errors import ConfigurationError, InvalidArrayError


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
    found = tuple(map(_as_arrays, given))
    lengths = {len(each) for each in keras.tree.flatten(found) if each is not None}
    if len(lengths) > 1:
        raise ConfigurationError(f"arrays have different numbers of examples: {sorted(lengths)}")
    return found


def _as_arrays(given: Any) -> Any:
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {name: _as_arrays(each) for name, each in given.items()}
    if isinstance(given, list | tuple):
        return tuple(map(_as_arrays, given))
    array = np.asarray(given)
    if array.ndim == 0 or array.dtype == object:
        found = type(given).__name__
        if array.ndim:
            found += f" of {found_in(array)}"
        elif array.dtype != object:
            found += ", one of a list: give np.asarray(list)"
        raise ConfigurationError(
            f"x must be arrays of numbers or a psnb.data.Dataset, found {found}; "
            "psnb.data.Dataset.from_generator takes what else yields batches"
        )
    return array


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


def with_class_weights(weights: Mapping[int, float], x: Any, y: Any, given: Any = None) -> Any:
    """Return a batch in which each example has the weight of its class, 1 for others."""
    if not hasattr(y, "reshape"):
        raise ConfigurationError("class_weight is for models with one output")
    classes = np.asarray(y).reshape(len(y), -1)
    kinds = classes.argmax(1) if classes.shape[1] > 1 else classes[:, 0].astype(int)
    found = np.array([weights.get(int(kind), 1.0) for kind in kinds], np.float32)
    return x, y, found if given is None else found * given


class ModelInputs:
    """The inputs that a model takes.

    Parameters
    ----------
    model : keras.Model
        Functional or sequential.

    Attributes
    ----------
    names : tuple of str
        What the inputs are called, in the order of Keras's trees.
    batch_size : int or None
        How many examples each batch has, if an input says so.
    """

    def __init__(self, model: Any) -> None:
        # A sequential model that was not called has no `input`.
        given = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        self._form = given
        tensors = keras.tree.flatten(given)
        keys = sorted(given) if isinstance(given, dict) else [each.name for each in tensors]
        self.names = tuple(keys)
        self._specs = [(tuple(each.shape), str(each.dtype)) for each in tensors]
        sizes = (shape[0] for shape, _ in self._specs if shape)
        self.batch_size: int | None = next((size for size in sizes if size is not None), None)

    def arrays(self, x: Any) -> dict[str, np.ndarray]:
        """Return the arrays of a batch by name, with the shapes and dtypes of the inputs.

        Raises
        ------
        ConfigurationError
            If one is missing, or has another shape.
        InvalidArrayError
            If an input of integers gets what is none.
        """
        if isinstance(x, Mapping):
            if missing := [name for name in self.names if name not in x]:
                raise ConfigurationError(
                    f"a batch lacks the inputs {missing} of the model; it has {sorted(x)}"
                )
            x = [x[name] for name in self.names]
        flat = list(x) if isinstance(x, tuple | list) else [x]
        if len(flat) != len(self.names):
            raise ConfigurationError(
                f"the model has {len(self.names)} inputs, {list(self.names)}; a batch has "
                f"{len(flat)}: give a dict of them, which for a frame is dict(frame)"
            )
        return {
            name: _as(name, each, *spec)
            for name, each, spec in zip(self.names, flat, self._specs, strict=True)
        }

    def example(self) -> dict[str, np.ndarray]:
        """Return zeros by name, for two examples or a batch of the model's size.

        Raises
        ------
        ConfigurationError
            If an input has no fixed shape.
        """
        for name, (shape, _) in zip(self.names, self._specs, strict=True):
            if None in shape[1:]:
                raise ConfigurationError(
                    f"psnb.export: input {name!r} has no fixed shape, {shape}: give example=, a "
                    "batch of the shape that is to be predicted"
                )
        size = self.batch_size or 2
        return self.arrays([np.zeros((size, *shape[1:])) for shape, _ in self._specs])

    def pack(self, arrays: Mapping[str, Any]) -> Any:
        """Return what the model is called with."""
        return keras.tree.pack_sequence_as(self._form, [arrays[name] for name in self.names])


def _as(name: str, given: Any, shape: tuple[int | None, ...], dtype: str) -> np.ndarray:
    if isinstance(given, Ragged):
        raise ConfigurationError(
            f"input {name!r} is Ragged, and models of Keras take arrays: pad() it, with an "
            "Embedding(mask_zero=True) for the zeros"
        )
    array = np.asarray(given)
    if array.dtype.kind not in "biuf":
        raise ConfigurationError(f"input {name!r} takes numbers, and found {found_in(array)}")
    if array.ndim == len(shape) - 1 and shape[-1] == 1:
        array = array[..., None]
    elif array.ndim == len(shape) + 1 and array.shape[-1] == 1:
        array = array[..., 0]
    if not fits(array.shape, (None, *shape[1:])):
        raise ConfigurationError(
            f"input {name!r} of the model has shape {shape}, and a batch has {np.shape(given)}"
        )
    if array.dtype == dtype:
        return array
    if dtype.startswith(("int", "uint")):
        return whole(f"input {name!r}", array, dtype)
    return array.astype(dtype) if dtype != "bfloat16" else array.astype(np.float32)


def whole(what: str, array: np.ndarray, dtype: str = "int64") -> np.ndarray:
    """Return integers of a dtype, or raise InvalidArrayError if an array is none of them."""
    if not array.size:
        return array.astype(dtype)
    if array.dtype.kind == "f" and not (np.floor(array) == array).all():
        missing = " and missing values" if np.isnan(array).any() else ""
        raise InvalidArrayError(
            f"{what} takes integers, and found {array.dtype} with fractions{missing}: convert the "
            "column where it is read"
        )
    limits = np.iinfo(dtype)
    if array.min() < limits.min or array.max() > limits.max:
        raise InvalidArrayError(f"{what} is of {dtype}, and has {array.min()} to {array.max()}")
    return array.astype(dtype)
