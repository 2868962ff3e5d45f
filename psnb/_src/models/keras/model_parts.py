"""ModelParts: finds other references to a model than its layers: on workers, these are copies."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

import keras

from psnb._src.models.references import functions_of, leads_to, used_global
from psnb.errors import ConfigurationError


class ModelParts:
    """A model, its layers and its weights.

    Parameters
    ----------
    model : keras.Model
        The model.
    layers : iterator of keras.layers.Layer
        Its layers, and those of the models in it.
    """

    def __init__(self, model: Any, layers: Iterator[Any]) -> None:
        self._alive = [model, *layers]  # so that no other thing has their ids
        self._names = {id(each): f"layer {each.name!r}" for each in self._alive}
        self._names |= {id(each): f"weight {each.path!r}" for each in model.weights}
        self._names[id(model)] = "the model itself"

    def check(self, what: str, thing: Any) -> None:
        """Raise ConfigurationError if a function or an object leads to a part of the model.

        Parameters
        ----------
        what : str
            What it is called.
        thing : object
            A function; an object whose attributes are looked at; or nested structures of them.
        """
        for each in _flat(thing):
            if (itself := self._name(each)) is not None:
                raise self._refused(what, itself)
            functions = [each] if isinstance(each, FunctionType) else functions_of(type(each))
            for function in functions:
                if (used := used_global(function, self._name)) is not None:
                    raise self._refused(what, used[1])
            values = [each] if isinstance(each, FunctionType) else vars(each).values()
            for value in values:
                if (found := self._led_to(value)) is not None:
                    raise self._refused(what, found)

    def check_layer(self, layer: Any) -> None:
        """Raise ConfigurationError if what a layer runs leads to another part of the model."""
        what = f"layer {layer.name!r}"
        if isinstance(layer, keras.layers.Lambda):
            self.check(what, [layer.function, layer.arguments])
        elif not type(layer).__module__.startswith("keras."):
            for function in functions_of(type(layer)):
                if (used := used_global(function, self._name)) is not None:
                    raise self._refused(what, used[1])

    def _name(self, value: Any) -> str | None:
        return self._names.get(id(value))

    def _led_to(self, value: Any) -> str | None:
        try:
            return leads_to(value, self._name)
        except Exception:  # what cannot be pickled is refused where it travels
            return None

    def _refused(self, what: str, part: str) -> ConfigurationError:
        return ConfigurationError(
            f"{what} uses {part} beside the model, and on workers that would be a copy that does "
            "not learn. Penalties belong to layers (kernel_regularizer=, add_loss in call), and "
            "what shares a weight into one layer that does both"
        )


def _flat(thing: Any) -> list[Any]:
    flat = keras.tree.flatten(thing)
    return [each for each in flat if isinstance(each, FunctionType) or hasattr(each, "__dict__")]
