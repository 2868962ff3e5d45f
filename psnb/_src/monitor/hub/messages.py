"""What came over the network, read as the messages of the wire contract. Pure.

Compiled code reads and checks in one go, by the contract's own types, so that a large body holds up
the event loop for milliseconds. Parts that a type does not have are left out. Bounds on size are
for whoever takes bytes in, before they come here.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import msgspec

from psnb._src.excerpt import excerpt
from psnb._src.monitor.told import Extracts, protocol


class MalformedError(ValueError):
    """It is no message: why, in plain words; what is quoted of it is short."""


class VersionError(MalformedError):
    """It is one of another version of the contract."""


class _Head(TypedDict):
    version: object


class _Asked(TypedDict):
    id: str


class _Said(TypedDict):
    type: Literal["hello", "command", "attach", "detach"]


_HEAD = msgspec.json.Decoder(_Head)
_BATCH = msgspec.json.Decoder(protocol.HubPost)
_EXTRACTS = msgspec.json.Decoder(Extracts)
_ASKED = msgspec.json.Decoder(_Asked)
_SAID = msgspec.json.Decoder(_Said)
_SAID_BY_TYPE: dict[str, msgspec.json.Decoder[Any]] = {
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
        If it speaks another version.
    MalformedError
        If it is no `protocol.Batch`.
    """
    found: protocol.HubPost = _read(body, _BATCH)
    return found


def extracts(body: bytes) -> Extracts:
    """Return the answer of a scheduler's route; raises as `batch`."""
    found: Extracts = _read(body, _EXTRACTS)
    return found


def said(text: str | bytes) -> protocol.Hello | protocol.Command | protocol.Attach:
    """Return what a panel says; raises as `batch`."""
    kind = _decoded(text, _SAID)["type"]
    found: protocol.Hello | protocol.Command | protocol.Attach = _read(text, _SAID_BY_TYPE[kind])
    return found


def asked(text: str | bytes) -> str:
    """Return the id of something that `said` refuses; empty if it has none that is a text."""
    try:
        return excerpt(_decoded(text, _ASKED)["id"])
    except MalformedError:
        return ""


def _read(text: str | bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        found = _decoded(text, decoder)
    except MalformedError:
        # Another version may well have other parts: that explains them.
        _require_version(_decoded(text, _HEAD))
        raise
    _require_version(found)
    return found


def _require_version(found: Any) -> None:
    if found["version"] != protocol.VERSION:
        version = excerpt(repr(found["version"]), 100)
        raise VersionError(f"version {version} of psnb's protocol instead of {protocol.VERSION}")


def _decoded(text: str | bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise MalformedError(excerpt(str(error))) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise MalformedError(f"it is no JSON: {excerpt(str(error))}") from None
    except RecursionError:
        raise MalformedError("it is nested too deeply") from None
