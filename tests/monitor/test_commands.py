"""What the controls of a view do."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from psnb._src.monitor.commands import execute
from psnb._src.monitor.protocol import VERSION, CommandReply
from psnb.errors import CheckpointError
from tests.monitor.viewed import DEADLINE, FakeViewed


def command(name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "type": "command",
        "version": VERSION,
        "id": "7",
        "coordinator": "c0ffee",
        "command": name,
        "arguments": arguments,
    }


def answer(viewed: FakeViewed, message: object) -> CommandReply:
    replies: list[CommandReply] = []
    came = threading.Event()

    def reply(each: CommandReply) -> None:
        replies.append(each)
        came.set()

    execute(viewed, message, "the test", reply)
    assert came.wait(DEADLINE)
    (only,) = replies
    return only


@pytest.mark.parametrize(
    ("name", "arguments", "done"),
    [
        ("pause", {}, ("pause",)),
        ("resume", {}, ("resume",)),
        ("drain", {}, ("drain",)),
        ("cancel_queued", {}, ("cancel_queued",)),
        ("stop_training", {}, ("stop_training",)),
        ("rewind", {}, ("rewind",)),
        ("checkpoint", {}, ("checkpoint",)),
        ("add_worker", {}, ("add_worker",)),
        ("retire_worker", {"worker": "alice"}, ("retire_worker", "alice")),
        (
            "set_learning_rate",
            {"parameter": "users", "value": 1},
            ("set_learning_rate", "users", 1.0),
        ),
    ],
)
def test_a_command_is_done_and_noted(
    name: str, arguments: dict[str, Any], done: tuple[Any, ...]
) -> None:
    viewed = FakeViewed()
    reply = answer(viewed, command(name, **arguments))
    assert (reply["id"], reply["error"]) == ("7", "")
    assert reply["result"]
    assert viewed.done == [done]
    (told,) = viewed.told
    assert name.replace("_", " ") in told
    assert "the test" in told


@pytest.mark.parametrize(
    ("name", "arguments", "part"),
    [
        ("describe_table", {"table": "users"}, "described"),
        ("look_up_row", {"table": "users", "row_id": "-1"}, "found"),
        ("worker_output", {"worker": "a"}, "output"),
    ],
)
def test_a_look_is_answered_and_is_no_event(
    name: str, arguments: dict[str, str], part: str
) -> None:
    viewed = FakeViewed()
    reply: Any = answer(viewed, command(name, **arguments))
    assert (reply["error"], reply[part]) == ("", {"table": arguments.get("table", "")})
    assert viewed.done == [(name, *arguments.values())]
    assert not viewed.told


def test_what_a_command_raises_comes_back() -> None:
    viewed = FakeViewed()
    viewed.error = CheckpointError("the disk is full")
    assert answer(viewed, command("checkpoint"))["error"] == "the disk is full"


def test_a_bug_comes_back_with_its_type(caplog: pytest.LogCaptureFixture) -> None:
    viewed = FakeViewed()
    viewed.error = KeyError("x")
    assert answer(viewed, command("pause"))["error"] == "KeyError: 'x'"
    assert "failed" in caplog.text


def test_a_control_that_cannot_be_used_says_why() -> None:
    viewed = FakeViewed()
    viewed.refused = {"pause": "it is paused already"}
    assert answer(viewed, command("pause"))["error"] == "it is paused already"
    assert viewed.done == []


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (None, "not a command"),
        ({"type": "hello"}, "not a command"),
        ({**command("pause"), "version": 99}, "reload"),
        (command("explode"), "explode"),
        (command("pause", now=True), "no arguments"),
        (command("retire_worker"), "worker"),
        (command("retire_worker", worker=3), "cannot be 3"),
        (command("set_learning_rate", parameter="users", value="x"), "cannot be 'x'"),
        (command("set_learning_rate", parameter="users", value=True), "cannot be True"),
        (command("set_learning_rate", parameter="users", value=float("nan")), "finite"),
    ],
)
def test_a_bad_message_gets_an_error_and_changes_nothing(message: object, says: str) -> None:
    viewed = FakeViewed()
    assert says in answer(viewed, message)["error"]
    assert viewed.done == []
