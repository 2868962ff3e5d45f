"""LayerView: a layer of a distributed model, to be read.

The user's own layers have the values that the model began with, and setting something in them, or
in a copy, would change nothing: so neither is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import keras
import numpy as np

from psnb.errors import ConfigurationError

Read = Callable[[Sequence[Any]], list[np.ndarray]]
"""Returns the values that the servers have of variables of the undistributed model."""

_DESCRIBING = ("compute_output_shape", "count_params", "get_config", "get_layer")
"""The methods that only describe a layer."""


class LayerView:
    """A layer, with the values that its weights have on the servers.

    It has the attributes of the layer: weights are arrays of the present values, layers in it are
    views too. Methods that compute or change something raise `ConfigurationError`. For `isinstance`
    it is of the layer's class.

    Parameters
    ----------
    layer : keras.layers.Layer
        Of the undistributed model.
    read : callable
        See `Read`.
    """

    _layer: Any
    _read: Read

    def __init__(self, layer: Any, read: Read) -> None:
        vars(self).update(_layer=layer, _read=read)

    @property  # type: ignore[misc]  # a class's own can be set
    def __class__(self) -> type:
        found: type = type(self._layer)
        return found

    def __repr__(self) -> str:
        return (
            f"<{self.__class__.__name__} {self._layer.name!r} of a distributed model, to be read>"
        )

    def get_weights(self) -> list[np.ndarray]:
        """Return the values of the weights."""
        return self._read(self._layer.weights)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what protocols look for, and how Keras keeps it
            raise AttributeError(name)
        return self._shown(name, getattr(self._layer, name))

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: it computes nothing."""
        self._refuse("__call__")

    def _shown(self, name: str, value: Any) -> Any:
        if isinstance(value, keras.Variable):
            return self._read([value])[0]
        if isinstance(value, keras.layers.Layer):
            return LayerView(value, self._read)
        if isinstance(value, Mapping):
            return {key: self._shown(name, each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            shown = [self._shown(name, each) for each in value]
            return tuple(shown) if isinstance(value, tuple) else shown
        if name in _DESCRIBING:
            return lambda *args, **kwargs: self._shown("", value(*args, **kwargs))
        # Computations have the values that the model began with.
        computes = callable(getattr(type(self._layer), name, None))
        if computes or keras.ops.is_tensor(value) or isinstance(value, keras.KerasTensor):
            self._refuse(name)
        return value

    def _refuse(self, name: str, *_: Any) -> NoReturn:
        raise ConfigurationError(
            f"{self!r} has no {name!r}: its values are on the servers. undistributed() returns a "
            "plain copy of the model with them, whose layers compute; to change layers, distribute "
            "the changed model; model.set_weights replaces values"
        )

    __setattr__ = __delattr__ = _refuse
