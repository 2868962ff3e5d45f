"""DependencyFingerprint: what a function refers to, to notice a change when it is scheduled again.

Pure. Things are compared by identity: of the globals, closure cells and defaults that a function
uses, and those of the functions and classes that are pickled with it; of the items of small lists,
sets and dicts, and the attributes of plain objects (of others what their `__psnb_referred__`
returns, if they have one); small arrays by their bytes. Larger ones that change in place are not
noticed. It takes a microsecond or two for each function.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from operator import attrgetter, call, is_not
from types import (
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from psnb._src.protocol.modules import is_local

_MOST_ITEMS = 256


_MOST_IN_ALL = 2048


_MOST_BYTES = 1 << 12


_MISSING = object()


Read = Callable[[Any], Iterable[object]]
"""Returns the parts of a value that may be replaced."""


class _Parts(NamedTuple):
    """The parts of a value, as they were.

    Attributes
    ----------
    of, at : int
        The value is part ``at`` of parts ``of``; the function itself is part 0 of parts -1.
    read : callable
        Returns the parts.
    ids : list of int
        The parts' identities.
    """

    of: int
    at: int
    read: Read
    ids: list[int]


class DependencyFingerprint:
    """What a function refers to at this moment.

    It may be kept for as long as the function lives, and keeps neither that nor what may refer to
    it: functions, classes and objects are held weakly, and dicts and other collections not at all.
    They are found again from the function on, and compared by what is in them.

    Parameters
    ----------
    function : callable
        Any.

    Attributes
    ----------
    imported : dict
        The code of functions of local modules, which the workers import, by module and name.
    """

    __slots__ = ("_alive", "_bytes", "_function", "_kept", "_large", "_parts", "imported")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.imported: dict[tuple[str, str], CodeType] = {}
        self._function: Callable[[], Any]
        try:
            self._function = weakref.ref(function)
        except TypeError:  # no registry keeps it, either
            self._function = lambda: function
        self._parts: list[_Parts] = []
        self._bytes: list[tuple[int, int, bytes]] = []  # of arrays: where they are, and what
        # Two things have the same id only if they live at the same time.
        self._alive: list[weakref.ref[Any]] = []
        self._kept: list[object] = []
        self._large = False  # a collection that is not looked into has the function in it
        self._walk(function)

    def is_unchanged(self) -> bool:
        """Return whether all of it is as it was."""
        if self._large or not all(map(is_not, map(call, self._alive), repeat(None))):
            return False
        found: list[tuple[Any, ...]] = []
        root = (self._function(),)
        if root[0] is None:
            return False
        for of, at, read, ids in self._parts:
            parts = tuple(read(root[0] if of < 0 else found[of][at]))
            if [*map(id, parts)] != ids:
                return False
            found.append(parts)
        return all(
            (root[0] if of < 0 else found[of][at]).tobytes() == data for of, at, data in self._bytes
        )

    def _walk(self, function: Callable[..., Any]) -> None:
        seen: set[int] = set()
        todo: deque[tuple[object, int, int]] = deque([(function, -1, 0)])
        left = _MOST_IN_ALL
        while todo:
            value, of, at = todo.popleft()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, FunctionType) and is_imported(value) and is_local(_module(value)):
                self.imported[_module(value), value.__qualname__] = value.__code__
            if isinstance(value, np.ndarray):
                if value.nbytes <= _MOST_BYTES and not value.dtype.hasobject:
                    self._bytes.append((of, at, value.tobytes()))
                self._hold(value, compared=False)
                continue
            reads = _reads_of(value)
            compared = bool(reads)
            for read in reads:
                found = tuple(read(value))
                if len(found) > min(left, _MOST_ITEMS):
                    compared = False
                    self._large |= any(each is function for each in found)
                    continue
                left -= len(found)
                number = len(self._parts)
                self._parts.append(_Parts(of, at, read, [*map(id, found)]))
                todo += ((each, number, index) for index, each in enumerate(found))
            if value is not function:
                self._hold(value, compared)

    def _hold(self, value: object, compared: bool) -> None:
        try:
            self._alive.append(weakref.ref(value))
        except TypeError:
            if not compared and not self._large:
                self._kept.append(value)


def _reads_of(value: object) -> list[Read]:
    """Return what reads the parts of a value."""
    match value:
        case FunctionType():
            return _reads_of_function(value)
        case MethodType():
            return [attrgetter("__func__", "__self__")]
        case MethodWrapperType():
            return [_attributes_of("__self__")]
        case classmethod() | staticmethod():
            return [_attributes_of("__func__")]
        case property():
            return [_attributes_of("fget")]
        case functools.partial():
            return [attrgetter("func", "args", "keywords")]
        case list() | set() | tuple() | frozenset():
            return [tuple]
        case dict() | MappingProxyType():
            return [_items]
        case GetSetDescriptorType() | MemberDescriptorType():  # parts of a class
            return [_attributes_of()]
        case type():
            own = is_local(value.__module__) or not is_imported(value)
            return [_attributes] if own else []
        case ModuleType() | CodeType() | str() | bytes() | int() | float() | None:
            return []
    return _reads_of_object(value)


def _reads_of_object(value: object) -> list[Read]:
    kind = type(value)
    if hasattr(kind, "__psnb_referred__"):
        return [kind.__psnb_referred__]
    wrapped = getattr(value, "__wrapped__", None) if callable(value) else None
    reads = [_attributes_of("__wrapped__")] if isinstance(wrapped, FunctionType) else []  # jax.jit
    methods = ("__reduce_ex__", "__reduce__", "__getstate__")
    plain = all(getattr(kind, each) is getattr(object, each) for each in methods)
    if plain or kind is SimpleNamespace:  # it is pickled by its attributes
        if hasattr(value, "__dict__"):
            reads.append(_attributes)
        if slots := _slots(kind):
            reads.append(_attributes_of(*slots))
        if reads:
            reads.append(_attributes_of("__class__"))
    return reads


def _reads_of_function(function: FunctionType) -> list[Read]:
    names = sorted(_names(function.__code__))
    scope = function.__globals__
    if is_imported(function):
        if not is_local(_module(function)):
            return []
        names = _code_among(names, scope)  # its module's data are the workers' own
    reads: list[Read] = [functools.partial(_parts_of_function, names)]
    for name in names:
        module = scope.get(name)
        if isinstance(module, ModuleType) and is_local(module.__name__):
            reads.append(functools.partial(_values, name, _code_among(names, vars(module))))
    return reads


def _code_among(names: list[str], scope: dict[str, Any]) -> list[str]:
    return [each for each in names if isinstance(scope.get(each), FunctionType | type | ModuleType)]


def _parts_of_function(names: list[str], function: FunctionType) -> Iterable[object]:
    own: list[object] = [function.__code__, function.__defaults__, function.__kwdefaults__]
    if function.__closure__ is not None:
        own += map(_content, function.__closure__)
    own += map(function.__globals__.get, names, repeat(_MISSING))
    return own


def _values(name: str, names: list[str], function: FunctionType) -> Iterable[object]:
    """Return what a module has under some names that a function knows as ``name``."""
    return map(vars(function.__globals__[name]).get, names, repeat(_MISSING))


def _attributes_of(*names: str) -> Read:
    return lambda value: map(getattr, repeat(value), names, repeat(_MISSING))


def _attributes(value: Any) -> Iterable[object]:
    return _items(value.__dict__)


def _slots(kind: type) -> list[str]:
    several = [each.__dict__.get("__slots__", ()) for each in kind.__mro__]
    names = [name for each in several for name in ([each] if isinstance(each, str) else each)]
    return [name for name in names if not name.startswith("__")]


def _items(scope: Mapping[Any, Any]) -> Iterable[object]:
    return *scope, *scope.values()


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def _names(code: CodeType) -> set[str]:
    """Return the names of globals, and of attributes, in a function and in those within it."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _module(value: Any) -> str:
    return value.__module__ or ""


def is_imported(value: Any) -> bool:
    """Return whether the workers import a function or class, as cloudpickle decides."""
    name = _module(value)
    if name == "__main__" or name not in sys.modules:
        return False
    by_value = cloudpickle.list_registry_pickle_by_value()
    if any(f"{name}.".startswith(f"{each}.") for each in by_value):
        return False
    found: Any = sys.modules[name]
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value
