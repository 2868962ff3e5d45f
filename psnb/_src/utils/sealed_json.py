"""Sealed JSON: an object with its format and a checksum of itself. Pure.

The checksum is XXH3 with 64 bits: it misses accidental damage once in 2**64 times, and does not
protect against attacks. So a reader checks all else in it with the type that it must have
(`typed`), whose errors name the place. Python parses the text: msgspec's own decoder keeps the last
of two equal keys, and its integers end at 64 bits, but metadata are the caller's.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Meta
from xxhash import xxh3_64_hexdigest

Typed = TypeVar("Typed")

MOST_BYTES = 1 << 28
"""A manifest has some hundred bytes for each parameter; a larger file is not read."""


def sealed(content: Mapping[str, Any], form: int) -> str:
    """Return the text of an object, with its format and checksum.

    Raises
    ------
    ValueError, TypeError, RecursionError
        If JSON cannot hold it.
    """
    # In the form in which it will be read: for example, keys that are numbers become texts.
    plain = plain_json({"format": form, **content})
    # Without an indent, for which Python's own encoder takes forty times as long as that in C.
    return json.dumps({**plain, "xxh3": _sum(plain)})


def read_sealed(file: Path, form: int) -> dict[str, Any]:
    """Return the object in a file, without format and checksum.

    Raises
    ------
    OSError, ValueError, RecursionError
        If it is not there, is damaged, or has another format.
    """
    # A pipe of that name would never be read to its end; links are followed.
    with open(
        file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
    ) as opened:
        if os.fstat(opened.fileno()).st_size > MOST_BYTES:
            raise ValueError(f"its manifest has more than {MOST_BYTES} bytes")
        data = opened.read()
    content = typed(_parsed(data.decode()), dict[str, Any])
    found = content.pop("format", None)
    if type(found) is not int:
        raise ValueError("its manifest does not say its format")
    if found != form:
        raise FormatError(f"has format {found!r:.80}, this psnb reads {form}")
    content = {"format": form, **content}
    if content.pop("xxh3", None) != _sum(content):
        raise ValueError("its manifest does not have the checksum that it says")
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


def typed(content: object, kind: type[Typed]) -> Typed:
    """Return what JSON holds as a type of msgspec's.

    Raises
    ------
    ValueError
        If it is of another type; it says where. (msgspec's own error is none in its 0.20.)
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def one_of(*words: str) -> Meta:
    """Return what has `msgspec` check that a text is one of some words.

    Not `Literal`: mypy would then require that type wherever one is written.
    """
    return Meta(pattern=rf"\A({'|'.join(map(re.escape, words))})\Z")


def require(condition: bool, otherwise: str) -> None:
    """Raise ValueError unless a condition holds, such as one between two values of an object."""
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
    if len(made) != len(pairs):
        raise ValueError(f"a key is there twice among {[key for key, _ in pairs]}")
    return made


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON's")
