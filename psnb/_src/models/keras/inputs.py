"""ModelInputs: a Keras model's inputs, as arrays by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from psnb._src.data.ragged import Ragged
from psnb.errors import ConfigurationError, InvalidArrayError


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
        flat = self.flat(x)
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

    def flat(self, x: Any) -> list[Any]:
        """Return what is given for each input."""
        if isinstance(x, Mapping):
            if missing := [name for name in self.names if name not in x]:
                raise ConfigurationError(
                    f"a batch lacks the inputs {missing} of the model; it has {sorted(x)}"
                )
            return [x[name] for name in self.names]
        flat = list(x) if isinstance(x, tuple | list) else [x]
        if len(flat) != len(self.names):
            raise ConfigurationError(
                f"the model has {len(self.names)} inputs, {list(self.names)}; a batch has "
                f"{len(flat)}"
            )
        return flat

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
        raise ConfigurationError(f"input {name!r} is of {array.dtype}, not of numbers")
    if array.ndim == len(shape) - 1 and shape[-1] == 1:
        array = array[..., None]
    elif array.ndim == len(shape) + 1 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != len(shape) or any(
        size not in (None, found) for size, found in zip(shape[1:], array.shape[1:], strict=True)
    ):
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
