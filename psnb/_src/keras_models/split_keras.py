"""Splits a Keras model: embeddings become tables, the rest takes their rows as inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from psnb.errors import ConfigurationError


class SplitKeras:
    """The parts of a model that workers compute with.

    Travels with closures, as Keras's own files do.

    Parameters
    ----------
    tail : keras.Model
        Takes the inputs of the model, then the rows of each embedding.
    inputs : sequence of str
        The names of the model's inputs, in order.
    features : sequence of str
        The names of the embeddings, in the order of the tail's inputs.
    sources : sequence of int or None
        Which input has an embedding's ids; None if they are computed from several.
    ids : keras.Model or None
        Computes the ids that no input has.
    """

    def __init__(
        self,
        tail: keras.Model,
        inputs: Sequence[str],
        features: Sequence[str],
        sources: Sequence[int | None],
        ids: keras.Model | None,
    ) -> None:
        self.tail, self.inputs, self.features = tail, tuple(inputs), tuple(features)
        self._sources, self._ids = tuple(sources), ids

    def flat(self, x: Any) -> list[Any]:
        """Return the model's inputs in their order."""
        if isinstance(x, Mapping):
            if missing := [name for name in self.inputs if name not in x]:
                raise ConfigurationError(
                    f"a batch lacks the inputs {missing} of the model; it has {sorted(x)}"
                )
            return [x[name] for name in self.inputs]
        flat = list(x) if isinstance(x, tuple | list) else [x]
        if len(flat) != len(self.inputs):
            raise ConfigurationError(
                f"the model has {len(self.inputs)} inputs, {self.inputs}; a batch has {len(flat)}"
            )
        return flat

    def ids_of(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the ids of each embedding for a batch."""
        x = batch["x"]
        found = {
            name: np.asarray(x[source])
            for name, source in zip(self.features, self._sources, strict=True)
            if source is not None
        }
        if self._ids is not None:
            left = [name for name in self.features if name not in found]
            computed = keras.tree.flatten(self._ids([keras.ops.convert_to_tensor(e) for e in x]))
            found |= {n: np.asarray(c) for n, c in zip(left, computed, strict=True)}
        # Keras's data come as floats easily; a fraction is no id.
        return {name: _whole(name, ids) for name, ids in found.items()}

    def call(self, batch: Mapping[str, Any], rows: Mapping[str, Any]) -> list[Any]:
        """Return the inputs of the tail."""
        return [*batch["x"], *(rows[name] for name in self.features)]


def split(model: keras.Model) -> tuple[SplitKeras, dict[str, keras.layers.Embedding]]:
    """Split a model, which stays as it is; return its embeddings by name as well.

    Raises
    ------
    ConfigurationError
        If it is no functional or sequential model, or has an embedding that servers cannot keep.
    """
    try:
        inputs, outputs = model.inputs, model.output
    except (AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"psnb.keras.distribute takes functional and sequential models that are built, found "
            f"{type(model).__name__}: {error}"
        ) from error
    found: dict[str, keras.layers.Embedding] = {}
    for layer in model.layers:
        if type(layer) is not keras.layers.Embedding or not layer.trainable:
            continue
        if layer.mask_zero or layer.embeddings_regularizer or layer.embeddings_constraint:
            raise ConfigurationError(
                f"embedding {layer.name!r} has mask_zero, a regularizer or a constraint, which "
                "servers do not apply: mask in a layer of its own, and let the optimizer's "
                "weight_decay= keep rows small"
            )
        try:
            _ = layer.output
        except (AttributeError, ValueError) as error:
            raise ConfigurationError(
                f"embedding {layer.name!r} is called several times: concatenate the ids, and call "
                "it once"
            ) from error
        found[layer.name] = layer
    names = [each.name for each in inputs]
    tail = keras.Model([*inputs, *(layer.output for layer in found.values())], outputs)
    sources = [_source(layer.input, inputs) for layer in found.values()]
    computed = [e.input for e, at in zip(found.values(), sources, strict=True) if at is None]
    ids = keras.Model(inputs, computed) if computed else None
    return SplitKeras(tail, names, list(found), sources, ids), found


def _source(ids: Any, inputs: Sequence[Any]) -> int | None:
    return next((at for at, each in enumerate(inputs) if each is ids), None)


def _whole(name: str, ids: np.ndarray) -> np.ndarray:
    if ids.dtype.kind in "iu":
        return ids
    whole = ids.astype(np.int64)
    if (whole != ids).any():
        raise ConfigurationError(f"the ids of embedding {name!r} have fractions: {ids.dtype}")
    return whole
