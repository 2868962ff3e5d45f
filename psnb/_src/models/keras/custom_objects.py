"""Finds a user's own classes and functions in a model: Keras knows them by name only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import keras

from psnb.errors import ConfigurationError


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
            left += _attributes(thing)


def _attributes(thing: Any) -> Iterator[Any]:
    """Yield the attributes of an object with a config.

    But for methods that Keras has wrapped in functions that hold their object (`build`): these are
    in no config, and would have all of the object travel.
    """
    if isinstance(thing, FunctionType | type):
        return
    for name, value in getattr(thing, "__dict__", {}).items():
        if not (isinstance(value, FunctionType) and callable(getattr(type(thing), name, None))):
            yield value
