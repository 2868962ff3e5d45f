"""Small frozen objects as what JSON can hold, and made again of it. Pure.

Nothing is pickled: only kinds that the reader names are made again, and they check their values.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from psnb._src.utils.checks import is_integer

NAME_KEY = "name"
"""The key of a description's kind."""

_FLOAT = "float"
"""The key of a number that JSON lacks: an infinite one."""


def to_config(thing: Any) -> dict[str, Any]:
    """Return a dataclass's name and fields as values that JSON can hold.

    A field's value with a ``describe`` method of its own is described by it.
    """
    values = {each.name: getattr(thing, each.name) for each in fields(thing)}
    return {NAME_KEY: _kind(type(thing))} | {name: _plain(each) for name, each in values.items()}


class Described:
    """The base of dataclasses that describe themselves."""

    def describe(self) -> dict[str, Any]:
        """Return name and parameters as JSON can hold them."""
        return to_config(self)


def from_config(what: str, description: Any, kinds: Mapping[str, type]) -> Any:
    """Return what `to_config` was given.

    Parameters
    ----------
    what : str
        What it is, for errors.
    description : object
        From JSON.
    kinds : mapping of str to type
        What it may be, and what may be in it, by name.

    Raises
    ------
    ValueError
        If it is of none of these kinds, or has a value that they refuse.
    """
    kind = None
    if isinstance(description, dict):
        kind = kinds.get(str(description.get(NAME_KEY)))
    if kind is None:
        raise ValueError(f"{what} is {description!r:.80}")
    options = {name: value for name, value in description.items() if name != NAME_KEY}
    left_out: frozenset[str] = getattr(kind, "may_be_left_out", frozenset()) - options.keys()
    expected = {each.name for each in fields(kind)} - left_out
    if options.keys() != expected:
        raise ValueError(f"{what}: expected {sorted(expected)}, found {sorted(options)}")
    return kind(
        **{name: _from_config(f"{what}: {name}", each, kinds) for name, each in options.items()}
    )


def _from_config(what: str, value: Any, kinds: Mapping[str, type]) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {_FLOAT}:
        return float(value[_FLOAT])
    return from_config(what, value, kinds)


def _kind(kind: type) -> str:
    own = kind.__module__.startswith("psnb.")
    return kind.__name__ if own else f"{kind.__module__}.{kind.__qualname__}"


def _plain(value: Any) -> Any:
    if hasattr(value, "describe"):
        return value.describe()
    if value is None or isinstance(value, str | bool):
        return value
    if is_integer(value):
        return int(value)  # of numpy, for example
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else {_FLOAT: str(number)}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return {NAME_KEY: _kind(type(value))}  # only its name is known: it cannot be made again
