"""ModelReferences: finds references to a model outside of its layers, which workers would copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

import keras

from psnb._src.models.references import functions_of, leads_to, used_global
from psnb.errors import ConfigurationError


class ModelReferences:
    """A model, its layers and its weights.

    Parameters
    ----------
    model : keras.Model
        The model.
    layers : iterator of keras.layers.Layer
        Its layers, and the layers of models in it.
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
        for each in keras.tree.flatten(thing):
            if isinstance(each, FunctionType):
                found = self._found([each], [each])
            elif hasattr(each, "__dict__"):
                found = self._found(functions_of(type(each)), vars(each).values())
            else:
                continue
            if (part := self._name(each) or found) is not None:
                raise self._refused(what, part)

    def check_layer(self, layer: Any) -> None:
        """Raise ConfigurationError if what a layer runs leads to another part of the model."""
        what = f"layer {layer.name!r}"
        if isinstance(layer, keras.layers.Lambda):
            self.check(what, [layer.function, layer.arguments])
            return
        own = not type(layer).__module__.startswith("keras.")
        if own and (part := self._found(functions_of(type(layer)), ())) is not None:
            raise self._refused(what, part)

    def _name(self, value: Any) -> str | None:
        return self._names.get(id(value))

    def _found(self, functions: Iterable[FunctionType], values: Iterable[Any]) -> str | None:
        """Return what some functions use, or some values lead to."""
        for function in functions:
            if (used := used_global(function, self._name)) is not None:
                return used[1]
        for value in values:
            with suppress(Exception):  # what cannot be pickled is refused where it travels
                if (part := leads_to(value, self._name)) is not None:
                    return part
        return None

    def _refused(self, what: str, part: str) -> ConfigurationError:
        return ConfigurationError(
            f"{what} uses {part} besides the model, and on workers that would be a copy that does "
            "not learn. Penalties belong to layers (kernel_regularizer=, add_loss in call), and "
            "what shares a weight into one layer that does both"
        )
