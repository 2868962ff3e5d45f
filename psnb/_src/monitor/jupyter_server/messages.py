"""Decodes bytes from the network into messages of the wire contract. Pure.

Compiled code (msgspec) reads and checks in one pass, by the contract's own types, so a large body
blocks the event loop for milliseconds only. Unknown fields are left out. The callers limit the
size before they call this.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import msgspec

from psnb._src.monitor import protocol
from psnb._src.monitor.backlog import Extracts
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


_HEAD = msgspec.json.Decoder(_Head)
_BATCH = msgspec.json.Decoder(protocol.HubPost)
_EXTRACTS = msgspec.json.Decoder(Extracts)
_ASKED = msgspec.json.Decoder(_Asked)
_MESSAGE = msgspec.json.Decoder(_Message)

_MESSAGE_BY_TYPE: dict[str, msgspec.json.Decoder[Any]] = {
    "hello": msgspec.json.Decoder(protocol.Hello),
    "command": msgspec.json.Decoder(protocol.Command),
    "attach": msgspec.json.Decoder(protocol.Attach),
    "detach": msgspec.json.Decoder(protocol.Attach),
}


def batch(body: bytes) -> protocol.HubPost:
    """Return the body of a kernel's post.

    Raises
    ------
    VersionError
        If it has another version.
    MalformedError
        If it is not a `protocol.HubPost`.
    """
    found: protocol.HubPost = _read(body, _BATCH)
    return found


def extracts(body: bytes) -> Extracts:
    """Return the answer of a scheduler's route; raises as `batch` does."""
    found: Extracts = _read(body, _EXTRACTS)
    return found


def decode(text: str | bytes) -> protocol.Hello | protocol.Command | protocol.Attach:
    """Return a panel's message; raises as `batch` does."""
    kind = _decoded(text, _MESSAGE)["type"]
    found: protocol.Hello | protocol.Command | protocol.Attach = _read(text, _MESSAGE_BY_TYPE[kind])
    return found


def asked(text: str | bytes) -> str:
    """Return the id of a message that `decode` refuses; empty if it has no id that is a text."""
    try:
        return truncate(_decoded(text, _ASKED)["id"])
    except MalformedError:
        return ""


def _read(text: str | bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        found = _decoded(text, decoder)
    except MalformedError:
        # First the version: another version may have other fields, which would explain the error.
        _require_version(_decoded(text, _HEAD))
        raise
    _require_version(found)
    return found


def _require_version(found: Any) -> None:
    if found["version"] != protocol.VERSION:
        version = truncate(repr(found["version"]), 100)
        raise VersionError(f"version {version} of psnb's protocol instead of {protocol.VERSION}")


def _decoded(text: str | bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise MalformedError(truncate(str(error))) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise MalformedError(f"it is not JSON: {truncate(str(error))}") from None
    except RecursionError:
        raise MalformedError("it is nested too deeply") from None
