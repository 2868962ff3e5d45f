"""Finds objects to which functions and others refer, as pickling them would. Pure."""

from __future__ import annotations

import dis
import io
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

NameOf = Callable[[Any], str | None]
"""Returns the name of an object, if it is a wanted one."""


def leads_to(value: object, known: NameOf, skipped: tuple[type, ...] = ()) -> str | None:
    """Return the name of a wanted object that a value leads to; None if it leads to none.

    Classes are not followed, nor objects of the classes that are skipped.

    Raises
    ------
    Exception
        Whatever is raised by what cannot be pickled.
    """
    try:
        _Searching(known, (type, ModuleType, *skipped)).dump(value)
    except _FoundError as found:
        return found.what
    return None


def used_global(function: FunctionType, known: NameOf) -> tuple[str, str] | None:
    """Return a wanted global that a function itself uses, by its name and value."""
    for code in _codes(function.__code__):
        for name in code.co_names:  # attributes are among them
            if (what := known(function.__globals__.get(name))) is None:
                continue
            operations = dis.get_instructions(code)
            if any("GLOBAL" in each.opname and each.argval == name for each in operations):
                return name, what
    return None


def functions_of(kind: type) -> Iterator[FunctionType]:
    """Yield the functions that classes define, from a class to its bases."""
    for base in kind.__mro__:
        for value in vars(base).values():
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                yield function


class _FoundError(Exception):
    def __init__(self, what: str) -> None:
        self.what = what


class _Searching(cloudpickle.Pickler):
    def __init__(self, known: NameOf, skipped: tuple[type, ...]) -> None:
        super().__init__(io.BytesIO(), protocol=5)
        self._known, self._skipped = known, skipped

    def persistent_id(self, obj: Any) -> int | None:
        if (what := self._known(obj)) is not None:
            raise _FoundError(what)
        return 0 if isinstance(obj, self._skipped) else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of those within it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)
