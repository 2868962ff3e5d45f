"""Nesting: the structure of an element; flattening it to leaves, and building it again. Pure.

Tuples, named tuples, dicts and dataclasses nest; everything else is a leaf. Lists are leaves
(arrays), as in tf.data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from psnb._src.data.ragged import Ragged
from psnb._src.utils.arrays import array_of
from psnb._src.utils.text import with_article
from psnb.errors import DatasetError


class Nest(NamedTuple):
    """A tuple, dict or dataclass without its leaves.

    Attributes
    ----------
    kind : type
        Its class.
    keys : tuple
        The keys of a dict; otherwise the names or numbers of the fields.
    children : tuple
        For each key another nest, or None for a leaf.
    """

    kind: type
    keys: tuple[Any, ...]
    children: tuple[Any, ...]


Nesting = Nest | None
"""How leaves are nested; None if the element is a single leaf."""


def _items(structure: Any) -> tuple[type, tuple[Any, ...], tuple[Any, ...]] | None:
    """Return class, keys and parts of a structure; None for a leaf."""
    kind = type(structure)
    if isinstance(structure, tuple):
        return kind, tuple(getattr(kind, "_fields", range(len(structure)))), tuple(structure)
    if isinstance(structure, dict):
        return dict, tuple(structure), tuple(structure.values())
    # A description of a leaf is a leaf, even if it is a dataclass.
    if dataclasses.is_dataclass(kind) and not getattr(kind, "describes_leaf", False):
        names = tuple(field.name for field in dataclasses.fields(kind))
        return kind, names, tuple(getattr(structure, name) for name in names)
    return None


def flatten(structure: Any) -> tuple[list[Any], Nesting]:
    """Return the leaves of a structure, in order, and how they are nested."""
    leaves: list[Any] = []
    return leaves, _flatten(structure, leaves)


def _flatten(structure: Any, leaves: list[Any]) -> Nesting:
    found = _items(structure)
    if found is None:
        leaves.append(structure)
        return None
    kind, keys, parts = found
    return Nest(kind, keys, tuple(_flatten(part, leaves) for part in parts))


def flatten_like(nesting: Nesting, structure: Any, path: str = "") -> list[Any]:
    """Return the leaves of a structure that must have a given nesting.

    A value in the place of a leaf is taken whole, and the order of dicts does not matter.

    Raises
    ------
    DatasetError
        If its nesting differs; the error says where.
    """
    if nesting is None:
        return [structure]
    kind = type(structure)
    if not any(nesting.children) and kind is nesting.kind:
        # The usual cases, in a tenth of the time.
        if kind is tuple and len(structure) == len(nesting.keys):
            return list(structure)
        if kind is dict and structure.keys() == set(nesting.keys):
            return [structure[key] for key in nesting.keys]
    found = _items(structure)
    wanted = f"{_at(path)}expected a {nesting.kind.__name__} of {_listed(nesting.keys)}, found"
    if found is None or (found[0] is not nesting.kind):
        raise DatasetError(f"{wanted} {_shown(structure)}")
    _, keys, parts = found
    if keys != nesting.keys:
        by_key = dict(zip(keys, parts, strict=True))
        if by_key.keys() != set(nesting.keys):
            raise DatasetError(f"{wanted} one of {_listed(keys)}")
        parts = tuple(by_key[key] for key in nesting.keys)
    leaves: list[Any] = []
    for key, child, part in zip(nesting.keys, nesting.children, parts, strict=True):
        if child is None:
            leaves.append(part)
        else:
            leaves += flatten_like(child, part, path + _step(nesting.kind, key))
    return leaves


def unflatten(nesting: Nesting, leaves: Iterator[Any]) -> Any:
    """Build a structure from leaves, in order."""
    if nesting is None:
        return next(leaves)
    kind, keys, children = nesting
    parts = [next(leaves) if child is None else unflatten(child, leaves) for child in children]
    if kind is tuple:
        return tuple(parts)
    if kind is dict:
        return dict(zip(keys, parts, strict=True))
    if issubclass(kind, tuple):
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    made = object.__new__(kind)  # calling the class may compute fields, or refuse arrays
    for key, part in zip(keys, parts, strict=True):
        object.__setattr__(made, key, part)
    return made


def compose(nesting: Nesting, children: Iterator[Nesting]) -> Nesting:
    """Replace each leaf of a nesting by another nesting, in order."""
    if nesting is None:
        return next(children)
    return Nest(
        nesting.kind, nesting.keys, tuple(compose(child, children) for child in nesting.children)
    )


def map_leaves(function: Callable[[Any], Any], structure: Any) -> Any:
    """Apply a function to each leaf; returns a new structure."""
    leaves, nesting = flatten(structure)
    return unflatten(nesting, iter([function(leaf) for leaf in leaves]))


def paths(nesting: Nesting, path: str = "") -> list[str]:
    """Return the name of each leaf in messages, such as ``['x'][0]``; a single leaf is ``""``."""
    if nesting is None:
        return [path]
    return [
        name
        for key, child in zip(nesting.keys, nesting.children, strict=True)
        for name in paths(child, path + _step(nesting.kind, key))
    ]


def is_text(leaf: Any) -> bool:
    """Return whether a leaf is text; None is, in the place of one that is missing."""
    return leaf is None or isinstance(leaf, (str, bytes))


def as_leaf(value: Any, path: str = "") -> Any:
    """Return a leaf in the form that elements have it.

    Arrays, `Ragged`, str and bytes stay unchanged, and so does None within a structure, which is a
    text that is missing: alone it is what a function returns that forgets to. Python's numbers
    become NumPy's (int64, uint64 if needed, float64, bool), lists become arrays, and arrays without
    axes become scalars.

    Raises
    ------
    DatasetError
        If it is of another type; the error says where.
    """
    if isinstance(value, np.ndarray):
        if value.ndim:
            return value
        value = value[()]
    if isinstance(value, np.void):
        return value.copy()  # unlike other scalars it is a view, of a record that may change
    if isinstance(value, (np.generic, str, bytes, Ragged)) or (value is None and path):
        return value
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            return np.int64(value)
        if 0 <= value < 1 << 64:
            return np.uint64(value)
        raise DatasetError(f"{_at(path)}the integer {value} does not fit 64 bits")
    if isinstance(value, float):
        return np.float64(value)
    if getattr(type(value), "describes_elements", False):  # a dataset, from `window`
        return value
    if value is not None and _items(value) is None:
        try:
            array = as_array(value)
        except (TypeError, ValueError) as error:
            raise DatasetError(f"{_at(path)}{_shown(value)} is not an array: {error}") from error
        if array.dtype != object or isinstance(value, list) or array.ndim:
            return array if array.ndim else array[()]
    raise DatasetError(
        f"{_at(path)}expected arrays, numbers, str or bytes, nested in tuples, dicts or "
        f"dataclasses; found {_shown(value)}"
    )


def as_array(value: Any) -> np.ndarray:
    """Return an array; a list of text becomes an array of Python's str or bytes."""
    array = array_of(value)
    if not isinstance(value, np.ndarray) and array.dtype.kind in "SU":
        # NumPy's strings would lose zeros at their ends.
        array = np.array(value, object)
    return array.view(np.ndarray)


def _step(kind: type, key: Any) -> str:
    if kind is dict or kind is tuple:
        return f"[{key!r}]"
    return f".{key}" if isinstance(key, str) else f"[{key!r}]"


def _at(path: str) -> str:
    return f"at {path}: " if path else ""


def _listed(keys: tuple[Any, ...]) -> str:
    return "(" + ", ".join(repr(key) for key in keys[:8]) + (", …)" if len(keys) > 8 else ")")


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} of {value.dtype}"
    return with_article(type(value).__name__)
