"""The examples of the wire contract fit its types; TypeScript's types are made of these."""

from __future__ import annotations

import base64
import json
import types
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from extension.write_protocol import FILE, contract
from psnb._src.monitor import protocol

EXAMPLES = json.loads((Path(__file__).parent / "fixtures" / "protocol.json").read_text())
TYPES: dict[str, Any] = {
    "update_full": protocol.Update,
    "update_small": protocol.Update,
    "hello": protocol.Hello,
    "command": protocol.Command,
    "reply_ok": protocol.CommandReply,
    "reply_described": protocol.CommandReply,
    "reply_found": protocol.CommandReply,
    "reply_error": protocol.CommandReply,
    "sources": protocol.Sources,
    "attach": protocol.Attach,
    "detach": protocol.Attach,
    "batch": protocol.HubPost,
    "orders": protocol.PendingCommands,
}


def fits(value: object, kind: Any) -> bool:
    """Whether a value from JSON fits a type; members of a TypedDict are neither missing nor new.

    pydantic would do this from Python 3.12 on; before, it refuses ``typing.TypedDict``.
    """
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (NotRequired, Annotated):
        return fits(value, inside[0])
    if origin in (Union, types.UnionType):
        return any(fits(value, choice) for choice in inside)
    if origin is Literal:
        return value in inside
    if origin is list:
        return isinstance(value, list) and all(fits(item, inside[0]) for item in value)
    if origin is tuple:  # JSON has lists only
        return (
            isinstance(value, list) and len(value) == len(inside) and all(map(fits, value, inside))
        )
    if origin is dict:
        return isinstance(value, dict) and all(
            fits(name, inside[0]) and fits(item, inside[1]) for name, item in value.items()
        )
    if isinstance(kind, type) and hasattr(kind, "__required_keys__"):
        return isinstance(value, dict) and fits_members(value, kind)
    if kind is float:  # JSON does not tell 1.0 from 1
        return isinstance(value, float | int) and not isinstance(value, bool)
    return type(value) is kind


def fits_members(value: dict[str, object], kind: type) -> bool:
    # Annotations are text, so that TypedDict itself does not see what is not required.
    members = get_type_hints(kind, include_extras=True)
    required = {name for name, hint in members.items() if get_origin(hint) is not NotRequired}
    if not required <= value.keys() <= members.keys():
        return False
    return all(fits(item, members[name]) for name, item in value.items())


@pytest.mark.parametrize("name", TYPES)
def test_each_example_fits_its_type(name: str) -> None:
    assert fits(EXAMPLES[name], TYPES[name])


def test_every_example_has_a_type() -> None:
    assert EXAMPLES.keys() == TYPES.keys()


def test_every_message_has_an_example() -> None:
    messages = {protocol.Update, protocol.Hello, protocol.Command, protocol.CommandReply}
    messages |= {protocol.Sources, protocol.Attach, protocol.HubPost, protocol.PendingCommands}
    assert messages == set(TYPES.values())


def test_the_full_update_has_every_part() -> None:
    assert EXAMPLES["update_full"].keys() == get_type_hints(protocol.Update).keys()


def test_the_full_update_has_every_command() -> None:
    assert EXAMPLES["update_full"]["controls"].keys() == set(get_args(protocol.CommandName))


@pytest.mark.parametrize(
    "change",
    [
        {"version": "1"},
        {"summary": {}},
        {"type": "updated"},
        {"surprise": 1},
        {"notice": None},
        {"depth": [[1.0, 2]]},
        {"workers": [{"index": 0}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_update_that_differs_does_not_fit(change: dict[str, object]) -> None:
    assert not fits(EXAMPLES["update_full"] | change, protocol.Update)


def test_an_update_without_a_summary_does_not_fit() -> None:
    update = {name: part for name, part in EXAMPLES["update_small"].items() if name != "summary"}
    assert not fits(update, protocol.Update)


def test_a_packed_series_is_little_endian_float64() -> None:
    metric = EXAMPLES["update_full"]["metrics"][1]
    values = np.frombuffer(base64.b64decode(metric["values"]), "<f8")
    np.testing.assert_array_equal(values, [1.0, np.inf, np.nan])


def test_the_examples_carry_the_version() -> None:
    assert {example["version"] for example in EXAMPLES.values()} == {protocol.VERSION}


def test_the_types_of_typescript_are_those_of_python() -> None:
    assert FILE.read_text() == contract(), "run: python -m extension.write_protocol"
