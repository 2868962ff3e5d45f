"""Checks of numbers that users pass: the same everywhere, and True is not taken for 1. Pure."""

from __future__ import annotations

import itertools
import math
import numbers
import operator
import os
import re
import secrets
import threading
import weakref
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from psnb._src.jupyter_compat import notebook_name
from psnb._src.utils.text import NAME, shown
from psnb.errors import ConfigurationError


def integer(what: str, value: Any, least: int | None, most: int | None = None) -> int:
    """Return a whole number, of Python or numpy, as an int.

    Parameters
    ----------
    what : str
        The name of the argument, for the error: ``"local_cluster: workers"``.
    value : object
        The user's argument.
    least, most : int or None
        The smallest number that is allowed, and the largest, if there are limits.

    Raises
    ------
    ConfigurationError
        If it is not a whole number, or not within these bounds.
    """
    bounds = f"{least} or more" if most is None else f"{least} to {most}"
    if not is_integer(value):
        bounds = "a whole number" if least is None else f"{bounds} and whole"
        raise ConfigurationError(f"{what} must be {bounds}, found {shown(value)}")
    number = operator.index(value)
    if (least is not None and number < least) or (most is not None and number > most):
        raise ConfigurationError(f"{what} must be {bounds}, found {shown(value)}")
    return number


def is_integer(value: Any) -> bool:
    """Return whether something is a whole number; a bool is not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def integers(what: str, values: Any, least: int | None) -> tuple[int, ...]:
    """Return several integers, each within bounds.

    Raises
    ------
    ConfigurationError
        If they are none.
    """
    if not isinstance(values, Iterable):
        raise ConfigurationError(f"{what} must be a list of integers, found {shown(values)}")
    return tuple(integer(what, each, least) for each in values)


def is_number(value: Any) -> bool:
    """Return whether something is a real number; it may be infinite, but not a bool or NaN."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value


def seconds(what: str, value: Any, *, zero: bool = False, infinite: bool = False) -> float:
    """Return a number of seconds.

    Parameters
    ----------
    what, value
        As for `integer`.
    zero, infinite : bool
        Whether it may be 0, or infinite.

    Raises
    ------
    ConfigurationError
        If it is not a number, is negative, or has a value that is not allowed.
    """
    try:
        number = float(value) if is_number(value) else -1.0
    except OverflowError:  # an int that no float holds
        number = math.inf if value > 0 else -1.0
    if number < 0 or (number == 0 and not zero) or (number == math.inf and not infinite):
        bounds = "0 or more" if zero else "a positive number of"
        raise ConfigurationError(f"{what} must be {bounds} seconds, found {shown(value)}")
    return number


def path_text(what: str, value: Any) -> str:
    """Return a path, or an address, as text.

    Raises
    ------
    ConfigurationError
        If it is neither text nor a path.
    """
    if not isinstance(value, str | os.PathLike):
        raise ConfigurationError(f"{what} must be a path, found {shown(value)}")
    return os.fsdecode(value)


def choice(what: str, value: Any, choices: Sequence[str]) -> str:
    """Return one of several texts.

    Raises
    ------
    ConfigurationError
        If it is none of them, or no text.
    """
    if not isinstance(value, str) or value not in choices:
        either = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
        raise ConfigurationError(f"{what} must be {either}, found {shown(value)}")
    return value


_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_PERIOD = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})\s*", re.ASCII)


def period(what: str, value: Any) -> float:
    """Return a period in seconds: of a number of them, or of text such as ``"5 min"``.

    Raises
    ------
    ConfigurationError
        If it is neither, is not positive, or has another unit than s, min, h and d.
    """
    if not isinstance(value, str):
        return seconds(what, value)
    found = _PERIOD.fullmatch(value)
    if found is None:
        raise ConfigurationError(
            f"{what} must be seconds, or a number and its unit as in '90 s', '5 min', '6 h' or "
            f"'1 d', found {shown(value)}"
        )
    return seconds(what, float(found[1]) * _UNITS[found[2]])


# Labels: readable names of strategies and coordinators. Pure.
#
# No two coordinators of a process have the same. Any thread takes one; it is free again when its
# coordinator is closed or collected.

_ADJECTIVES = (
    *("amber", "azure", "bold", "brave", "bright", "calm", "clear", "clever", "coral"),
    *("crisp", "eager", "early", "fleet", "gentle", "glad", "golden", "green", "keen"),
    *("kind", "light", "lively", "lucky", "mellow", "merry", "neat", "noble", "proud"),
    *("quick", "quiet", "rapid", "royal", "silver", "steady", "sunny", "swift", "tidy"),
    *("vivid", "warm", "wise", "witty"),
)
_NOUNS = (
    *("acorn", "badger", "beacon", "birch", "brook", "cedar", "comet", "cove", "crane"),
    *("dune", "falcon", "fern", "finch", "forest", "fox", "glacier", "harbor", "hazel"),
    *("heron", "island", "lagoon", "lark", "lynx", "maple", "meadow", "otter", "pebble"),
    *("pine", "planet", "raven", "reef", "river", "robin", "sparrow", "spruce", "summit"),
    *("swan", "thistle", "tulip", "willow"),
)


def check_label(value: object) -> str:
    """Return a name that a user has given; None becomes empty.

    Raises
    ------
    ConfigurationError
        If it is not text, empty or too long.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or not value.strip() or len(value) > NAME:
        raise ConfigurationError(
            f"name must be a text of 1 to {NAME} characters, found {shown(value)}"
        )
    return value.strip()


def made_up_label() -> str:
    """Return a name for what has none: that of the notebook, or two words."""
    if notebook := notebook_name():
        return notebook[:NAME]
    # Not `random`, whose state is the user's.
    return f"{secrets.choice(_ADJECTIVES)} {secrets.choice(_NOUNS)}"


def numbered(label: str, taken: Container[str]) -> str:
    """Return a label, with a number if it is taken."""
    names = itertools.chain((label,), (f"{label} {number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


class Labels:
    """The labels in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # two threads do not take the same
        self._owners: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    def take(self, wanted: str, owner: object) -> str:
        """Return the wanted label, or one with a number, for as long as ``owner`` lives."""
        with self._lock:
            label = numbered(wanted, self._owners)
            self._owners[label] = owner
            return label

    def give_back(self, label: str) -> None:
        """Let others have a label."""
        with self._lock:
            self._owners.pop(label, None)


# Descriptions: small frozen objects as JSON can hold them, and made again of it. Pure.
#
# Nothing is pickled: what is made again is of kinds that the reader names, and these check their
# values.

NAME_KEY = "name"
"""The key of a description's kind."""

_FLOAT = "float"
"""The key of a number that JSON lacks: an infinite one."""


def to_config(thing: Any) -> dict[str, Any]:
    """Return a dataclass's name and fields as values that JSON can hold.

    What has a ``describe`` of its own in a field is described by it.
    """
    values = {each.name: getattr(thing, each.name) for each in fields(thing)}
    return {NAME_KEY: _kind(type(thing))} | {name: _plain(each) for name, each in values.items()}


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
        If it describes nothing of these kinds, or has another value than they take.
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
    return {NAME_KEY: _kind(type(value))}  # that much is known of it, and nothing makes it again
