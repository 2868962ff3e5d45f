"""Checks of numbers that users pass: the same everywhere, and True is not taken for 1. Pure."""

from __future__ import annotations

import math
import numbers
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from psnb._src.utils.text import shown
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
    if is_integer(value):
        number = operator.index(value)
        if (least is None or number >= least) and (most is None or number <= most):
            return number
    else:
        bounds = "a whole number" if least is None else f"{bounds} and whole"
    raise ConfigurationError(f"{what} must be {bounds}, found {shown(value)}")


def is_integer(value: Any) -> bool:
    """Return whether something is a whole number; a bool is not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_instance(what: str, value: Any, kind: type) -> None:
    """Raise ConfigurationError unless this is an object of a public class."""
    if not isinstance(value, kind):
        raise ConfigurationError(f"{what} must be a psnb.{kind.__name__}, found {shown(value)}")


def check_fields(owner: Any, check: Callable[[str, Any], Any], *names: str) -> None:
    """Replace fields of a frozen dataclass by what a check returns for name and value.

    A field that is None by default may be None.
    """
    for name in names:
        value = getattr(owner, name)
        if value is not None or type(owner).__dataclass_fields__[name].default is not None:
            object.__setattr__(owner, name, check(name, value))


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
    """Return a path, or an address, as text; ``~`` is the home folder, as in a shell.

    All paths of users come through here. It is the home folder of the process that was given the
    path, mostly the notebook's: workers get the whole path.

    Raises
    ------
    ConfigurationError
        If it is neither text nor a path.
    """
    if not isinstance(value, str | os.PathLike):
        raise ConfigurationError(f"{what} must be a path, found {shown(value)}")
    return os.path.expanduser(os.fsdecode(value))


def column_names(what: str, value: Any) -> Any:
    """Return the names of columns, or None, as they are given.

    Raises
    ------
    ConfigurationError
        If they are one text, whose letters would be taken for names, or no texts.
    """
    if isinstance(value, Iterator):
        value = tuple(value)  # which can be gone through twice
    plain = not isinstance(value, str) and isinstance(value, Iterable)
    if value is not None and not (plain and all(isinstance(each, str) for each in value)):
        raise ConfigurationError(
            f"{what}: columns must be a list of names, as in columns=['user'], found {shown(value)}"
        )
    return value


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
