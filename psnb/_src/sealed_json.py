"""Sealed JSON: an object with its format and a checksum of itself. Pure.

The checksum is XXH3 with 64 bits: it misses accidental damage once in 2**64 times, and does not
protect against attacks. So whoever reads one checks everything else in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_hexdigest

_MOST_BYTES = 1 << 28
"""A manifest has some hundred bytes for each parameter; a larger file is not read."""


def sealed(content: Mapping[str, Any], form: int) -> str:
    """Return the text of an object, with its format and checksum.

    Raises
    ------
    ValueError, TypeError, RecursionError
        If JSON cannot hold it.
    """
    # As it will be read: for example, keys that are numbers become texts.
    plain = plain_json({"format": form, **content})
    return json.dumps({**plain, "xxh3": _sum(plain)}, indent=1)


def read_sealed(file: Path, form: int) -> dict[str, Any]:
    """Return the object in a file, without format and checksum.

    Raises
    ------
    OSError, ValueError, RecursionError
        If it is not there, is damaged, or has another format.
    """
    with open(file, "rb") as opened:
        data = opened.read(_MOST_BYTES + 1)
    require(len(data) <= _MOST_BYTES, f"its manifest has more than {_MOST_BYTES} bytes")
    content = _parsed(data.decode())
    require(isinstance(content, dict), "its manifest is no JSON object")
    found = content.pop("format", None)
    if found != form:
        raise FormatError(f"has format {found!r:.80}, this psnb reads {form}")
    content = {"format": form, **content}
    sum_ = content.pop("xxh3", None)
    require(sum_ == _sum(content), "its manifest does not have the checksum that it says")
    del content["format"]
    return content


class FormatError(ValueError):
    """It is written in another version of its format."""


def plain_json(content: Any) -> Any:
    """Return what JSON makes of an object.

    Raises
    ------
    ValueError, TypeError, RecursionError
        If JSON cannot hold it, for example NaN.
    """
    return _parsed(_json(content))


def keys(what: str, found: Mapping[str, Any], expected: set[str]) -> None:
    """Raise ValueError unless an object has these keys."""
    require(found.keys() == expected, f"{what}: expected {sorted(expected)}, found {sorted(found)}")


def require(condition: bool, otherwise: str) -> None:
    """Raise ValueError unless a condition holds."""
    if not condition:
        raise ValueError(otherwise)


def _sum(content: Mapping[str, Any]) -> str:
    return xxh3_64_hexdigest(_json(content).encode())


def _json(content: Any) -> str:
    return json.dumps(content, allow_nan=False)


def _parsed(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    require(len(made) == len(pairs), f"a key is there twice among {[key for key, _ in pairs]}")
    return made


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON's")
