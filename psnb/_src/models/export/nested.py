"""Nested structures of arrays as JSON can hold them: numbers in place of the arrays. Pure.

A leaf is its number; ``{"list": [...]}``, ``{"tuple": [...]}``, ``{"dict": {...}}`` and, of a
named tuple, ``{"named": {"Name": {"field": ...}}}`` are the structures, None is None.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
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
        case tuple() if hasattr(structure, "_fields"):
            fields = zip(structure._fields, structure, strict=True)
            form = {name: check_nested(each) for name, each in fields}
            return {"named": {type(structure).__name__: form}}
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
        case {"named": named}:
            (fields,) = named.values()
            yield from leaves_of({"dict": fields}, name)
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
        case {"named": dict(named), **rest} if not rest and len(named) == 1:
            ((kind, fields),) = named.items()
            if isinstance(fields, dict):
                return _named(kind, tuple(fields), [nested(e, leaves) for e in fields.values()])
        case {"list": list(several), **rest} if not rest:
            return [nested(each, leaves) for each in several]
        case {"dict": dict(several), **rest} if not rest:
            return {key: nested(each, leaves) for key, each in several.items()}
    raise ValueError(f"its outputs have no structure: {form!r:.80}")


def _named(kind: str, fields: tuple[str, ...], values: Iterable[Any]) -> Any:
    return _named_tuple(kind, fields)._make(values)


@lru_cache
def _named_tuple(kind: str, fields: tuple[str, ...]) -> Any:
    """Return a class of named tuples, which can be pickled though no module has it."""
    plain = namedtuple(kind, fields, rename=True)  # type: ignore[misc]  # as the model's may be

    def reduce(self: tuple[Any, ...]) -> tuple[Any, ...]:
        return _named, (kind, fields, tuple(self))

    return type(kind, (plain,), {"__slots__": (), "__reduce__": reduce})
