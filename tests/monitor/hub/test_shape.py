"""Whether a message is what the wire contract says."""

from __future__ import annotations

from typing import Any

import pytest

from psnb.monitor.hub.shape import parsed, problem
from psnb.monitor.protocol import Command, Sources, Update
from tests.monitor.hub.updates import identity, update


def test_what_coordinators_send_is_as_it_should_be() -> None:
    whole = update(0, True, identity=identity(), depth=[[1.0, 2, 3]], controls={"pause": ""})
    assert problem(whole, Update) == ""
    assert problem({**whole, "something": "later"}, Update) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"full": 1}, "the message.full must be true or false"),
        ({"sequence": True}, "the message.sequence must be a whole number"),
        ({"sequence": 1.5}, "the message.sequence must be a whole number"),
        ({"type": "reply"}, "the message.type must be one of update"),
        ({"summary": []}, "the message.summary must be an object"),
        ({"workers": {}}, "the message.workers must be a list"),
        ({"workers": [{"index": 0}]}, "the message.workers[0].name is missing"),
        ({"depth": [[1.0, 2]]}, "the message.depth[0] must be a list of 3"),
        ({"controls": {"pause": 1}}, "the message.controls.pause must be text"),
        ({"identity": None}, "the message.identity must be an object"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(change: dict[str, Any], said: str) -> None:
    assert problem({**update(0), **change}, Update) == said


@pytest.mark.parametrize("message", [None, 1, "text", [], [1]])
def test_what_is_no_object_is_no_message(message: object) -> None:
    assert problem(message, Sources) == "the message must be an object"


def test_a_number_may_be_one_of_the_words_for_what_json_lacks() -> None:
    for value in (1, 1.5, "nan", "-inf"):
        summary = {**update(0)["summary"], "staleness_mean": value}
        assert problem({**update(0), "summary": summary}, Update) == ""
    summary = {**update(0)["summary"], "staleness_mean": "many"}
    assert problem({**update(0), "summary": summary}, Update) != ""


def test_an_unhashable_name_is_a_wrong_name() -> None:
    assert "command must be one of" in problem(
        {"type": "command", "version": 1, "id": "", "coordinator": "", "command": []}, Command
    )


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e999", "{", "[" * 100_000, "1" * 5000])
def test_only_what_every_reader_takes_is_json(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 # of whichever kind
        parsed(text)
