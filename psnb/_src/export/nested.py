"""Nested structures of arrays as JSON can hold them: numbers in place of the arrays. Pure.

A leaf is its number; ``{"list": [...]}``, ``{"tuple": [...]}`` and ``{"dict": {...}}`` are the
structures, None is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from psnb.errors import ConfigurationError


def check_nested(structure: Any) -> Any:
    """Return the form of a structure whose leaves are their numbers.

    Raises
    ------
    ConfigurationError
        If it has other structures than dicts with text keys, lists and tuples.
    """
    match structure:
        case None | int():
            return structure
        case tuple():
            return {"tuple": [check_nested(each) for each in structure]}
        case list():
            return {"list": [check_nested(each) for each in structure]}
        case Mapping() if all(isinstance(key, str) for key in structure):
            return {"dict": {key: check_nested(each) for key, each in structure.items()}}
    raise ConfigurationError(
        "an exported model returns arrays in dicts, lists and tuples, found "
        f"{type(structure).__name__}"
    )


def leaves_of(form: Any, name: str = "") -> Iterator[tuple[int, str]]:
    """Yield the numbers of the leaves of a form, and their names: keys, with dots between."""
    match form:
        case int():
            yield form, name or "output"
        case {"tuple": several} | {"list": several}:
            for number, each in enumerate(several):
                yield from leaves_of(each, f"{name}.{number}" if name else str(number))
        case {"dict": several}:
            for key, each in several.items():
                yield from leaves_of(each, f"{name}.{key}" if name else key)


def nested(form: Any, leaves: Sequence[Any]) -> Any:
    """Return the structure with its leaves.

    Raises
    ------
    ValueError
        If the form is none, or has another leaf.
    """
    match form:
        case None:
            return None
        case bool():
            pass
        case int() if 0 <= form < len(leaves):
            return leaves[form]
        case {"tuple": list(several), **rest} if not rest:
            return tuple(nested(each, leaves) for each in several)
        case {"list": list(several), **rest} if not rest:
            return [nested(each, leaves) for each in several]
        case {"dict": dict(several), **rest} if not rest:
            return {key: nested(each, leaves) for key, each in several.items()}
    raise ValueError(f"its outputs have no structure: {form!r:.80}")
