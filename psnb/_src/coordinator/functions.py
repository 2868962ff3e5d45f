"""Referred: what a function refers to, so that a change is noticed when it is scheduled again.

Pure. Things are compared by identity: of the globals, closure cells and defaults that a function
uses, and those of the functions and classes that are pickled with it; of the items of small lists,
sets and dicts, and the attributes of plain objects (of others what their `__psnb_referred__`
returns, if they have one); small arrays by their bytes. Larger ones that
change in place are not noticed. It takes a microsecond
or two for each function.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
import textwrap
import tokenize
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from operator import call, is_not
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np

from psnb._src.protocol.modules import is_local

_MOST_ITEMS = 256
_MOST_IN_ALL = 2048
_MOST_BYTES = 1 << 12
_MISSING = object()

Read = Callable[[], Iterable[object]]


class DependencyFingerprint:
    """What a function refers to at this moment.

    It holds functions, classes and objects weakly, so that it may be kept for as long as the
    function lives.

    Parameters
    ----------
    function : callable
        Any.

    Attributes
    ----------
    imported : dict
        The code of functions of local modules, which the workers import, by module and name.
    """

    __slots__ = ("_alive", "_bytes", "_ids", "_kept", "imported")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.imported: dict[tuple[str, str], CodeType] = {}
        self._ids: list[tuple[Read, list[int]]] = []
        self._bytes: list[tuple[Callable[[], bytes], bytes]] = []
        # Two things have the same id only if they live at the same time.
        self._alive: list[weakref.ref[Any]] = []
        self._kept: list[object] = []
        self._walk(function)

    def is_unchanged(self) -> bool:
        """Return whether all of it is as it was."""
        for read, ids in self._ids:
            if [*map(id, read())] != ids:
                return False
        return all(map(is_not, map(call, self._alive), repeat(None))) and all(
            read() == data for read, data in self._bytes
        )

    def _walk(self, function: Callable[..., Any]) -> None:
        seen: set[int] = set()
        todo: deque[object] = deque([function])
        left = _MOST_IN_ALL
        while todo:
            value = todo.popleft()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, np.ndarray):
                if value.nbytes <= _MOST_BYTES and not value.dtype.hasobject:
                    self._bytes.append((value.tobytes, value.tobytes()))
                continue
            if isinstance(value, FunctionType) and is_imported(value) and is_local(_module(value)):
                self.imported[_module(value), value.__qualname__] = value.__code__
            reads, fixed = _reads_of(value)
            todo += fixed
            for read in reads:
                found = tuple(read())
                if len(found) > min(left, _MOST_ITEMS):
                    continue
                left -= len(found)
                self._ids.append((read, [*map(id, found)]))
                todo += found
                for each in found:
                    self._hold(each)

    def _hold(self, value: object) -> None:
        try:
            self._alive.append(weakref.ref(value))
        except TypeError:
            self._kept.append(value)


def _reads_of(value: object) -> tuple[list[Read], Iterable[object]]:
    """Return what reads the parts of a value that may be replaced, and those that may not be."""
    match value:
        case FunctionType():
            return _reads_of_function(value), ()
        case MethodType():
            return [], (value.__func__, value.__self__)
        case classmethod() | staticmethod():
            return [], (value.__func__,)
        case property():
            return [], (value.fget,)
        case functools.partial():
            return [], (value.func, value.args, value.keywords)
        case tuple() | frozenset():
            return [], value if len(value) <= _MOST_ITEMS else ()
        case list() | set():
            return [functools.partial(tuple, value)], ()
        case dict():
            return [functools.partial(_items, value)], ()
        case type():
            own = is_local(value.__module__) or not is_imported(value)
            return [functools.partial(_attributes, _weakly(value))] if own else [], ()
        case ModuleType() | CodeType() | str() | bytes() | int() | float() | None:
            return [], ()
    return _reads_of_object(value)


def _reads_of_object(value: object) -> tuple[list[Read], Iterable[object]]:
    kind = type(value)
    if hasattr(kind, "__psnb_referred__"):
        return [functools.partial(_referred, _weakly(value))], ()
    wrapped = getattr(value, "__wrapped__", None) if callable(value) else None
    fixed = [wrapped] if isinstance(wrapped, FunctionType) else []  # of jax.jit, numba and others
    pickled_plainly = kind is SimpleNamespace or (
        kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and kind.__getstate__ is object.__getstate__
    )
    if not pickled_plainly or not hasattr(value, "__dict__"):
        return [], fixed
    return [functools.partial(_attributes, _weakly(value))], [*fixed, kind]


def _reads_of_function(function: FunctionType) -> list[Read]:
    names = sorted(_names(function.__code__))
    scope = function.__globals__
    if is_imported(function):
        if not is_local(_module(function)):
            return []
        names = _code_among(names, scope)  # its module's data are the workers' own
    reads: list[Read] = [functools.partial(_parts, _weakly(function), names)]
    for module in {each for name in names if _is_own(each := scope.get(name))}:
        own = vars(module)
        reads.append(functools.partial(_values, own, _code_among(names, own)))
    return reads


def _code_among(names: list[str], scope: dict[str, Any]) -> list[str]:
    return [each for each in names if isinstance(scope.get(each), FunctionType | type | ModuleType)]


def _is_own(value: object) -> bool:
    return isinstance(value, ModuleType) and is_local(value.__name__)


def _weakly(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _parts(get: Callable[[], FunctionType | None], names: list[str]) -> Iterable[object]:
    function = get()
    if function is None:
        return ()
    own: list[object] = [function.__code__, function.__defaults__, function.__kwdefaults__]
    if function.__closure__ is not None:
        own += map(_content, function.__closure__)
    own += map(function.__globals__.get, names, repeat(_MISSING))
    return own


def _attributes(get: Callable[[], Any]) -> Iterable[object]:
    return _items(getattr(get(), "__dict__", {}))


def _referred(get: Callable[[], Any]) -> Iterable[object]:
    value = get()
    return () if value is None else value.__psnb_referred__()


def _values(scope: dict[str, Any], names: list[str]) -> Iterable[object]:
    return map(scope.get, names, repeat(_MISSING))


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


# changed_elsewhere: what a function changes that stays as it is in the notebook. Pure.
#
# A closure has a copy of what its function refers to, so ``results.append(x)`` and ``global total``
# change nothing in the notebook. That is found in the function's source: to compare what it refers
# to before and after each call, on the workers, would cost every closure time.

_CHANGING = {
    *("append", "extend", "insert", "appendleft", "extendleft"),
    *("add", "update", "setdefault", "pop", "popleft", "popitem", "remove", "discard", "clear"),
}
"""Methods of collections that change them."""

_COLLECTIONS = (list, dict, set, deque, np.ndarray)


def changed_elsewhere(function: Callable[..., Any]) -> list[str]:
    """Return the names of collections and globals that a function of the notebook changes.

    Those that its source shows; if there is none, as of what was made by ``exec``, no names.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, FunctionType) or is_imported(function):
        return []
    changed, stored = _written(function.__code__)
    if not changed and not stored:
        return []
    shared = _shared(function)
    of_collections = {n for n in changed if isinstance(shared.get(n), _COLLECTIONS)}
    return sorted(of_collections | (stored & shared.keys()))


@functools.lru_cache(256)  # a lambda in a loop is a new function each time, of the same code
def _written(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of what may be a collection and is changed, and those that are assigned."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    # The last: what its file holds by now; or a lambda within a statement.
    except (OSError, SyntaxError, ValueError, tokenize.TokenError):
        return frozenset(), frozenset()
    nodes = [*ast.walk(tree)]
    if code.co_name == "<lambda>":  # its source is all of the statement that it is in
        lambdas = [node for node in nodes if isinstance(node, ast.Lambda)]
        nodes = [node for each in lambdas for node in ast.walk(each)]
    declared = {
        name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names
    }
    changed, stored = set[str](), set[str]()
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=of, attr=method)) if method in _CHANGING:
                changed |= _collection(of)
            case ast.Subscript(value=of, ctx=ast.Store() | ast.Del()):
                changed |= _collection(of)
            case ast.Name(id=name, ctx=ast.Store()) if name in declared:
                stored.add(name)
    return frozenset(changed), frozenset(stored)


def _collection(node: ast.expr) -> set[str]:
    """Return the name of what an expression is, or is within: ``groups`` of ``groups[word]``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _shared(function: FunctionType) -> dict[str, Any]:
    """Return what a function refers to outside of itself, by name."""
    code = function.__code__
    found = {n: function.__globals__[n] for n in code.co_names if n in function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it has no value yet
            found[name] = cell.cell_contents
    return found
