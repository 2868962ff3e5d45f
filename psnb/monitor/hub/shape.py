"""Whether JSON that came over the network has the shape that the wire contract gives a message.

Types are read from the contract's TypedDicts themselves, so there is no second description of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints
from typing import is_typeddict as is_typed_dict

_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}


def parsed(text: str | bytes) -> object:
    """Return what a JSON text says.

    Raises
    ------
    ValueError
        If it is no JSON, also if only Python's reader would take it: NaN, infinities.
    """
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refused(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is out of range")
    return value


def problem(value: object, expected: Any, where: str = "the message") -> str:
    """Return what is wrong with a value, and where; empty if it is as expected.

    Parameters
    ----------
    value : object
        What `json.loads` returned.
    expected : type
        A TypedDict of `psnb.monitor.protocol`, or any type that one of them uses. Keys that it does
        not have are let through: they harm nobody.
    where : str
        Path to the value, for what is returned.
    """
    if is_typed_dict(expected):
        return _first(_of_parts(value, expected, where))
    origin, arguments = get_origin(expected), get_args(expected)
    if origin in (Union, UnionType):
        wrong = [problem(value, each, where) for each in arguments]
        return "" if "" in wrong else wrong[0]
    if origin is Literal:
        known = isinstance(value, str) and value in arguments
        return "" if known else f"{where} must be one of {', '.join(arguments)}"
    if origin is list:
        return _first(_of_items(value, arguments[0], where))
    if origin is tuple:
        return _first(_of_tuple(value, arguments, where))
    if origin is dict:
        return _first(_of_values(value, arguments[1], where))
    return "" if _is(value, expected) else f"{where} must be {_NAMES[expected]}"


def _is(value: object, expected: Any) -> bool:
    if expected is Any:
        return True
    if isinstance(value, bool):  # which Python takes for an int
        return expected is bool
    return isinstance(value, int | float if expected is float else expected)


def _first(problems: Iterable[str]) -> str:
    return next(filter(None, problems), "")


def _of_parts(value: object, expected: Any, where: str) -> Iterable[str]:
    if not isinstance(value, dict):
        yield f"{where} must be an object"
        return
    for key, (kind, required) in _parts(expected).items():
        if key in value:
            yield problem(value[key], kind, f"{where}.{key}")
        elif required:
            yield f"{where}.{key} is missing"


def _of_items(value: object, expected: Any, where: str) -> Iterable[str]:
    if not isinstance(value, list):
        yield f"{where} must be a list"
        return
    for at, item in enumerate(value):
        yield problem(item, expected, f"{where}[{at}]")


def _of_tuple(value: object, expected: tuple[Any, ...], where: str) -> Iterable[str]:
    if not isinstance(value, list) or len(value) != len(expected):
        yield f"{where} must be a list of {len(expected)}"
        return
    for at, (item, kind) in enumerate(zip(value, expected, strict=True)):
        yield problem(item, kind, f"{where}[{at}]")


def _of_values(value: object, expected: Any, where: str) -> Iterable[str]:
    if not isinstance(value, dict):
        yield f"{where} must be an object"
        return
    for key, item in value.items():
        yield problem(item, expected, f"{where}.{key}")


@cache
def _parts(expected: Any) -> dict[str, tuple[Any, bool]]:
    """Return the types of a TypedDict's parts, and whether each must be there."""
    # Its own __required_keys__ are wrong where annotations are text.
    hints = get_type_hints(expected, include_extras=True)
    return {
        key: (get_args(hint)[0], False) if get_origin(hint) is NotRequired else (hint, True)
        for key, hint in hints.items()
    }
