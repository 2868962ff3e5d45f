"""Finds functions that change what they refer to: state that would be that of one worker. Pure.

A compiled function runs in Python only while it is traced, so a counter that it keeps counts
programs, and another one on each worker. What it draws from `random` or reads from a clock cannot
be noticed: it is traced into the program as a constant.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from psnb.errors import ConfigurationError


@contextmanager
def pure(function: Callable[..., Any]) -> Iterator[None]:
    """Raise ConfigurationError at the end if a name of the function has another value, or content.

    Of its own globals and closure cells, and of the items of lists, sets and dicts.
    """
    before = _referred(function)
    yield
    after = _referred(function)
    changed = [name for name, (ids, _) in after.items() if ids != before.get(name, ([], []))[0]]
    if changed:
        name = getattr(function, "__qualname__", function)
        raise ConfigurationError(
            f"the function {name!r} changes {', '.join(map(repr, changed))}: that would be "
            "the state of one worker, changed only when a program is compiled. Return it "
            "(has_aux=True), or keep it in params or in a variable of the strategy"
        )


def _referred(function: Any) -> dict[str, tuple[list[int], list[Any]]]:
    """Return for each name the ids of its value and of its items; and these, to keep them alive."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        return {}
    try:
        names = inspect.getclosurevars(function)
    except ValueError:  # one of its names has no value yet
        return {}
    found = {}
    for name, value in {**names.globals, **names.nonlocals}.items():
        parts = [value]
        if isinstance(value, dict):
            parts += [*value, *value.values()]
        elif isinstance(value, list | set):
            parts += value
        found[name] = [*map(id, parts)], parts
    return found
