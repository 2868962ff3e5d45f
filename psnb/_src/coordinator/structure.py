"""Nested structures of Python: pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


def map_structure(function: Callable[[Any], Any], structure: Any) -> Any:
    """Apply a function to every leaf of nested tuples, named tuples, lists, dicts and dataclasses.

    Returns
    -------
    object
        The same nesting, made anew; the argument is not changed.
    """
    if isinstance(structure, tuple):
        items = [map_structure(function, item) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    if isinstance(structure, list):
        return [map_structure(function, item) for item in structure]
    if isinstance(structure, dict):
        return {key: map_structure(function, item) for key, item in structure.items()}
    if dataclasses.is_dataclass(structure) and not isinstance(structure, type):
        values = {
            field.name: map_structure(function, getattr(structure, field.name))
            for field in dataclasses.fields(structure)
            if field.init
        }
        return dataclasses.replace(structure, **values)
    return function(structure)
