"""Layers that take the place of others in the model that workers compute with.

Threads: each has its own lookup.
"""

from __future__ import annotations

import base64
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import keras

from psnb.errors import SerializationError

Lookup = Callable[[str, Any], Any]
"""Takes the name of a table and ids, returns their rows: tensors of the backend."""

_local = threading.local()


@contextmanager
def looking_up(lookup: Lookup) -> Iterator[None]:
    """Let this thread's embeddings look up with a function."""
    before = getattr(_local, "lookup", None)
    _local.lookup = lookup
    try:
        yield
    finally:
        _local.lookup = before


@keras.saving.register_keras_serializable("psnb")
class TableLookup(keras.layers.Layer):
    """In place of ``keras.layers.Embedding``; outside of `looking_up` all rows are zeros.

    Parameters
    ----------
    table : str
        The name of the table.
    dim : int
        Floats a row.
    mask_zero : bool
        As of ``keras.layers.Embedding``.
    options
        Of every layer of Keras.
    """

    def __init__(self, table: str, dim: int, mask_zero: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.table, self.dim, self.mask_zero = table, dim, mask_zero
        self.supports_masking, self.autocast = mask_zero, False

    def call(self, ids: Any) -> Any:
        """Return the rows of ids of any shape."""
        lookup = getattr(_local, "lookup", None)
        if lookup is None:
            return keras.ops.zeros((*ids.shape, self.dim), self.compute_dtype)
        return keras.ops.cast(lookup(self.table, ids), self.compute_dtype)

    def compute_mask(self, ids: Any, mask: Any = None) -> Any:
        """Return which ids are not 0, with ``mask_zero``."""
        return keras.ops.not_equal(ids, 0) if self.mask_zero else None

    def compute_output_spec(self, ids: Any) -> Any:
        """Return what comes out, without a lookup."""
        return keras.KerasTensor((*ids.shape, self.dim), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make the layer again."""
        own = {"table": self.table, "dim": self.dim, "mask_zero": self.mask_zero}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("psnb")
class PickledLambda(keras.layers.Lambda):
    """A ``keras.layers.Lambda`` whose function travels with all that it refers to.

    Keras keeps the bytecode alone: names that a lambda uses would not be known on workers.
    """

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make the layer again.

        Raises
        ------
        SerializationError
            If the function cannot be pickled.
        """
        shape = lambda_shape(self)
        try:
            arguments = _untracked(self.arguments)
            pickled = cloudpickle.dumps((self.function, shape, self.mask, arguments))
        except Exception as error:  # reduction of the user's objects may raise anything
            raise SerializationError(
                f"the function of Lambda layer {self.name!r} cannot be pickled: {error}. The model "
                "travels to workers: make there what cannot travel (locks, files, connections), in "
                "the function, when it is first needed"
            ) from error
        text = base64.b64encode(pickled).decode()
        return {"name": self.name, "dtype": self.dtype, "trainable": self.trainable, "of": text}

    @classmethod
    def from_config(cls, config: dict[str, Any], **_: Any) -> PickledLambda:
        """Make the layer again."""
        options = {**config}
        function, shape, mask, arguments = pickle.loads(base64.b64decode(options.pop("of")))
        return cls(function, shape, mask, arguments, **options)


def _untracked(value: Any) -> Any:
    """Return what a layer was given: Keras keeps its own dicts and lists, which do not travel."""
    match value:
        case dict():
            return {name: _untracked(each) for name, each in value.items()}
        case list() | set():
            kind = list if isinstance(value, list) else set
            return kind(map(_untracked, value))
        case tuple() if type(value) is tuple:
            return tuple(map(_untracked, value))
    return value


def lambda_shape(layer: keras.layers.Lambda) -> Any:
    """Return the output shape that a ``Lambda`` was made with; None for one that is computed."""
    config = keras.layers.Lambda.get_config(layer)
    shape = config.get("output_shape")
    return tuple(shape) if isinstance(shape, list | tuple) else None
