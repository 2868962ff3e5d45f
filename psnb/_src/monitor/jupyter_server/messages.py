"""Decodes bytes from the network into messages of the wire contract. Pure.

Compiled code (msgspec) reads and checks in one pass, by the contract's own types, so a large body
blocks the event loop for milliseconds only. Unknown fields are left out. The callers limit the
size before they call this.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, TypedDict

import msgspec

from psnb._src.monitor import protocol
from psnb._src.utils.text import truncate


class MalformedError(ValueError):
    """It is not a valid message; says why, in plain words, with short quotes."""


class VersionError(MalformedError):
    """It is a message of another version of the contract."""


class _Head(TypedDict):
    version: object


class _Asked(TypedDict):
    id: str


class _Message(TypedDict):
    type: Literal["hello", "command", "attach", "detach"]


_KINDS = {
    "hello": protocol.Hello,
    "command": protocol.Command,
    "attach": protocol.Attach,
    "detach": protocol.Attach,
}


def read(text: str | bytes, kind: type) -> Any:
    """Return a message of a kind.

    Parameters
    ----------
    text : str or bytes
        JSON.
    kind : type
        A TypedDict of the contract.

    Raises
    ------
    VersionError
        If it has another version.
    MalformedError
        If it is no such message.
    """
    try:
        found = _decoded(text, kind)
    except MalformedError:
        # First the version: another version may have other fields, which would explain the error.
        _require_version(_decoded(text, _Head))
        raise
    _require_version(found)
    return found


def read_from_panel(text: str | bytes) -> Any:
    """Return a panel's message: a `Hello`, a `Command` or an `Attach`; raises as `read` does."""
    return read(text, _KINDS[_decoded(text, _Message)["type"]])


def asked(text: str | bytes) -> str:
    """Return the id of a message that is refused; empty if it has no id that is a text."""
    try:
        return truncate(_decoded(text, _Asked)["id"])
    except MalformedError:
        return ""


def _require_version(found: Any) -> None:
    if found["version"] != protocol.VERSION:
        version = truncate(repr(found["version"]), 100)
        raise VersionError(f"version {version} of psnb's protocol instead of {protocol.VERSION}")


_decoder = cache(msgspec.json.Decoder)


def _decoded(text: str | bytes, kind: type) -> Any:
    try:
        return _decoder(kind).decode(text)
    except msgspec.ValidationError as error:
        raise MalformedError(truncate(str(error))) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise MalformedError(f"it is not JSON: {truncate(str(error))}") from None
    except RecursionError:
        raise MalformedError("it is nested too deeply") from None
