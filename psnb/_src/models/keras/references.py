"""What leads out of a Keras model, or back into it: a user's own classes, and references.

Keras knows classes and functions by name only, so they travel with the model. A reference to a
layer or a weight from outside of the layers would be a copy on workers, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any

import keras

from psnb._src.models.references import NameOf, functions_of, leads_to, used_global
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
        names = {id(each): f"layer {each.name!r}" for each in self._alive}
        names |= {id(each): f"weight {each.path!r}" for each in model.weights}
        names[id(model)] = "the model itself"
        self._name: NameOf = lambda value: names.get(id(value))

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
                self._check(what, [each], [each])
            elif hasattr(each, "__dict__"):
                self._check(what, functions_of(type(each)), [*vars(each).values()], each)

    def check_layer(self, layer: Any) -> None:
        """Raise ConfigurationError if what a layer runs leads to another part of the model."""
        if isinstance(layer, keras.layers.Lambda):
            self.check(f"layer {layer.name!r}", [layer.function, layer.arguments])
        elif not type(layer).__module__.startswith("keras."):
            self._check(f"layer {layer.name!r}", functions_of(type(layer)))

    def _check(
        self,
        what: str,
        functions: Iterable[FunctionType],
        values: Iterable[Any] = (),
        itself: object = None,
    ) -> None:
        """Raise if something is a part, some functions use one, or some values lead to one."""
        part = self._name(itself)
        for function in functions:
            if part is None and (used := used_global(function, self._name)) is not None:
                part = used[1]
        for value in values:
            with suppress(Exception):  # what cannot be pickled is refused where it travels
                part = part or leads_to(value, self._name)
        if part is not None:
            raise ConfigurationError(
                f"{what} uses {part} besides the model, and on workers that would be a copy that "
                "does not learn. Penalties belong to layers (kernel_regularizer=, add_loss in "
                "call), and what shares a weight into one layer that does both"
            )


def custom_objects(*things: Any) -> dict[str, Any]:
    """Return the classes and functions that are not Keras's, by the names that configs have.

    In layers, losses and metrics, and all that they hold. They are found as objects: a name may
    mean another class by now, if a cell has run again.

    Raises
    ------
    ConfigurationError
        If a name means two of them.
    """
    found: dict[str, Any] = {}
    fallback: dict[str, Any] = {}
    for thing in _held(things):
        own = thing if isinstance(thing, FunctionType | type) else type(thing)
        if str(own.__module__).startswith(("keras.", "psnb.")) or own.__name__ == "<lambda>":
            continue  # a lambda's code is in the config
        name = keras.saving.get_registered_name(own)
        if found.setdefault(name, own) is not own:
            raise ConfigurationError(
                f"the model has two classes or functions that are called {name!r}, and Keras makes "
                "a model again by names: rename one, or distinguish them with "
                "@keras.saving.register_keras_serializable(package=...). If the cell that defines "
                "it has run again, run also the one that makes the model"
            )
        fallback[own.__name__] = own
    return {**fallback, **found}


def _held(things: Any) -> Iterator[Any]:
    """Yield objects with a config, and functions: given ones, and those in their attributes."""
    seen: set[int] = set()
    left = [*things]
    while left:
        thing = left.pop()
        if isinstance(thing, Mapping):
            left += thing.values()
        elif isinstance(thing, list | tuple | set):
            left += thing
        elif isinstance(thing, FunctionType | type) or hasattr(type(thing), "from_config"):
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            if isinstance(thing, type) and not hasattr(thing, "from_config"):
                continue
            yield thing
            if not isinstance(thing, FunctionType | type):
                # But for methods that Keras has wrapped in functions that hold their object
                # (`build`): these are in no config, and would have all of the object travel.
                left += [
                    value
                    for name, value in getattr(thing, "__dict__", {}).items()
                    if not isinstance(value, FunctionType)
                    or not callable(getattr(type(thing), name, None))
                ]
