"""Ownership of values: whether anybody may still change what psnb got or returns. Pure.

Others may refill an array, as generators do for each batch, or change it in place, as steps do.
Code that keeps a value for later, or shares it, takes it as `owned`: nobody else changes the
result. It reaches into dicts, lists, tuples, and objects, and copies nothing that cannot be
changed. Values that are sent immediately, or pickled, need no copy. Columns that psnb hands out to
several readers are `read_only`.
"""

from __future__ import annotations

import copy
import pickle
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from psnb._src.utils.text import error_text
from psnb.errors import ConfigurationError

_ATOMIC = frozenset(
    {
        *(bool, bytes, complex, float, int, str, type(None), type, range, slice),
        *(BuiltinFunctionType, FunctionType, ModuleType),
    }
)


def may_change(array: np.ndarray) -> bool:
    """Return whether others may write what an array shows.

    Memory without a buffer, such as an array of JAX, is taken for unchanging.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return True
        base = base.base
    while base is not None and type(base) is not bytes:
        try:
            view = memoryview(base)
        except TypeError:
            # Windows of an array, and what else strides make, have an object in between.
            base = getattr(base, "base", None)
            return isinstance(base, np.ndarray) and may_change(base)
        if not view.readonly:
            return True
        base = view.obj if view.obj is not base else None
    return False


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view that cannot be written, although others may write what it shows."""
    view = array.view()
    view.flags.writeable = False
    return view


def owned(value: Any) -> Any:
    """Return a value that nobody else can change: changeable parts of it are copied.

    Raises
    ------
    ConfigurationError
        If there is something that cannot be copied.
    """
    return _owned(value, {})


def _copied(array: np.ndarray) -> np.ndarray:
    return array.copy() if may_change(array) else array


def _owned(value: Any, made: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _ATOMIC or (isinstance(value, np.generic) and kind is not np.void):
        return value
    if id(value) in made:  # by another way, or by itself
        return made[id(value)]
    found: Any
    if kind is np.ndarray and value.dtype.kind not in "OV":
        found = _copied(value)
    elif kind is np.ndarray and value.dtype == object:
        found = _objects(value, made)
    elif kind is dict:
        found = made[id(value)] = {}
        found.update((key, _owned(each, made)) for key, each in value.items())
    elif kind is list:
        found = made[id(value)] = []
        found.extend(_owned(each, made) for each in value)
    elif kind is tuple:
        found = tuple(_owned(each, made) for each in value)
    elif (arrays := getattr(kind, "__psnb_arrays__", None)) is not None:
        found = arrays(value, _copied)
    else:
        found = _copy_of(value, made)
    made[id(value)] = found
    return found


def _objects(array: np.ndarray, made: dict[int, Any]) -> np.ndarray:
    if _ATOMIC.issuperset(map(type, array.flat)):  # texts, as most are
        return _copied(array)
    found = array.copy()
    for at in np.ndindex(array.shape):
        found[at] = _owned(array[at], made)
    return found


def _copy_of(value: Any, made: dict[int, Any]) -> Any:
    try:
        if type(value).__module__.partition(".")[0] == "pandas":  # its deep copies share objects
            return pickle.loads(pickle.dumps(value, protocol=5))
        return copy.deepcopy(value, made)
    except Exception as error:  # whatever the class does
        raise ConfigurationError(
            f"a {type(value).__name__} is kept for later, and may be changed meanwhile, as it "
            f"cannot be copied ({error_text(error)}): give arrays or tensors without a gradient "
            "in its place"
        ) from error
