"""Whether what came over the network is a message of the wire contract."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from psnb._src.monitor.backlog import Extracts
from psnb._src.monitor.jupyter_server import messages
from psnb._src.monitor.jupyter_server.messages import MalformedError, VersionError
from psnb._src.monitor.protocol import HubPost
from tests.monitor.hub.updates import batch, identity, update

EXAMPLES = json.loads((Path(__file__).parents[1] / "fixtures" / "protocol.json").read_text())


_read = partial(messages.read, kind=HubPost)


def _batch(**changes: Any) -> bytes:
    whole = update(0, True, identity=identity(), depth=[[1.0, 2, 3]], controls={"pause": ""})
    return json.dumps({**batch(), "updates": [{**whole, **changes}]}).encode()


def test_every_example_of_the_contract_is_read_as_it_is() -> None:
    whole = {**EXAMPLES["batch"], "updates": [EXAMPLES["update_full"], EXAMPLES["update_small"]]}
    read = _read(json.dumps(whole).encode())
    assert json.loads(json.dumps(read)) == whole  # in JSON, a tuple is a list
    for name in ("hello", "command", "attach", "detach"):
        assert messages.read_from_panel(json.dumps(EXAMPLES[name])) == EXAMPLES[name]


def test_what_a_type_does_not_have_is_left_out() -> None:
    assert _read(_batch(something="later")) == _read(_batch())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"full": 1}, "Expected `bool`, got `int` - at `$.updates[0].full`"),
        ({"sequence": True}, "got `bool` - at `$.updates[0].sequence`"),
        ({"sequence": 1.5}, "got `float` - at `$.updates[0].sequence`"),
        ({"type": "reply"}, "Invalid enum value 'reply' - at `$.updates[0].type`"),
        ({"summary": []}, "Expected `object`, got `array`"),
        ({"workers": {}}, "Expected `array`, got `object`"),
        ({"workers": [{"index": 0}]}, "missing required field `name`"),
        ({"depth": [[1.0, 2]]}, "Expected `array` of length 3"),
        ({"controls": {"pause": 1}}, "Expected `str`, got `int`"),
        ({"identity": None}, "Expected `object`, got `null`"),
        ({"summary": {**update(0)["summary"], "staleness_mean": "many"}}, "staleness_mean"),
        ({"type": "x" * 100_000}, "characters are cut out"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_is_wrong_is_reported_with_its_place(change: dict[str, Any], said: str) -> None:
    with pytest.raises(MalformedError) as caught:
        _read(_batch(**change))
    assert said in str(caught.value)
    assert len(str(caught.value)) <= 300


def test_a_figure_may_be_a_word_for_what_json_lacks() -> None:
    for value in (1, 1.5, "nan", "-inf", "inf"):
        summary = {**update(0)["summary"], "examples": value, "eta": value}
        (told,) = _read(_batch(summary=summary))["updates"]
        assert told["summary"]["examples"] == value


@pytest.mark.parametrize(
    "text",
    [
        *(b"NaN", b"1e999", b"{", b"[" * 100_000, b"1" * 5000, b"", b"null", b"[]"),
        *(b'{"type": "\xff"}', b'{"version": "\xff"}', b'{"type": "\\ud800"}', b'{"type": []}'),
        b'{"type": "command", "version": 1, "arguments": {"a":' + b"[" * 100_000,
        b'{"version": 1, "updates": NaN, "replies": []}',
        b'{"version": 1, "version": 1, "updates": []}',
    ],
    ids=lambda text: str(text[:30]),
)
def test_what_is_no_message_is_refused_whatever_it_is(text: bytes) -> None:
    for read in (_read, messages.read_from_panel, partial(messages.read, kind=Extracts)):
        with pytest.raises(MalformedError):
            read(text)


def test_another_version_is_reported_whatever_else_is_different() -> None:
    for changed in ({"version": 99}, {"version": "x" * 9000}, {"version": 2, "updates": 7}):
        with pytest.raises(VersionError, match="instead of 1"):
            _read(json.dumps({**batch(), **changed}).encode())


def test_who_asked_is_known_also_if_it_is_not_known_what() -> None:
    assert messages.asked('{"type": 1, "id": "7"}') == "7"
    for text in ('{"type": 1}', '{"id": 7}', "{", "[" * 5000):
        assert messages.asked(text) == ""
