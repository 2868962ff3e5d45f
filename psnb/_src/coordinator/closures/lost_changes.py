"""changed_elsewhere: what a function changes that stays as it is in the notebook. Pure.

A closure has a copy of what its function refers to, so ``results.append(x)`` and ``global total``
change nothing in the notebook. That is found in the function's source: to compare what it refers to
before and after each call, on the workers, would cost every closure time.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import textwrap
import tokenize
from collections import deque
from collections.abc import Callable
from types import (
    CodeType,
    FunctionType,
)
from typing import Any

import numpy as np

from psnb._src.coordinator.closures.fingerprint import is_imported

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
    # `inspect.getsource` would look where each module's file is: 50 ms, twice that with torch.
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    try:
        tree = ast.parse(textwrap.dedent("".join(inspect.getblock(lines))))
    except (SyntaxError, ValueError, tokenize.TokenError):
        # Its file holds something else by now; or it is a lambda within a statement.
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
