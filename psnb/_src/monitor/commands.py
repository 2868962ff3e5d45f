"""Commands of views: checked, and run.

Each command runs on a thread of its own, ``psnb-command``: a checkpoint takes seconds, and
neither the page nor the thread that delivers messages may wait for it. The thread ends with the
command.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Any, cast, get_args

from psnb._src.monitor import protocol
from psnb._src.monitor.events import EventKind
from psnb._src.monitor.protocol import VERSION, Command, CommandName, CommandReply
from psnb._src.monitor.updates import plain
from psnb._src.monitor.viewed import Viewed
from psnb._src.utils.text import NAME, counted, error_text, truncate
from psnb.errors import ConfigurationError, PsnbError

_log = logging.getLogger("psnb")

DRAIN_TIMEOUT = 600.0
"""Seconds after which a view's drain stops waiting; the coordinator stays paused."""


def execute(
    viewed: Viewed, message: object, by: str, reply: Callable[[CommandReply], object]
) -> None:
    """Check and run a command.

    Parameters
    ----------
    viewed : Viewed
        The coordinator.
    message : object
        A `Command`, or any other message.
    by : str
        Where it comes from, for the event log: ``"the widget"``.
    reply : callable
        Called once, with the outcome; from the command's thread, or immediately if the message is
        not a command.
    """
    identity = truncate(str(message.get("id", "")), NAME) if isinstance(message, dict) else ""

    def answer(error: str, result: str = "", **found: Any) -> None:
        made = protocol.reply(identity, viewed.id, truncate(error), truncate(result))
        reply(plain({**made, **found}))

    try:
        command = checked(message)
    except ConfigurationError as error:
        answer(str(error))
        return

    def run() -> None:
        try:
            result, found = _done(viewed, command, by)
        except (PsnbError, TimeoutError, OSError) as error:
            answer(str(error) or type(error).__name__)
        except Exception as error:  # a boundary: the user must see it, and the log
            _log.exception("the command %s failed", command["command"])
            answer(error_text(error))
        else:
            answer("", result, **found)

    threading.Thread(target=run, name="psnb-command", daemon=True).start()


_ARGUMENTS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "set_learning_rate": {"parameter": str, "value": (int, float)},
    "retire_worker": {"worker": str},
    "describe_table": {"table": str},
    "look_up_row": {"table": str, "row_id": str},
    "worker_output": {"worker": str},
}

_LOOKS = {"describe_table": "described", "look_up_row": "found", "worker_output": "output"}
"""Commands that change nothing, and the part of the reply that has what they found."""


def checked(message: object) -> Command:
    """Return a message as a command.

    Raises
    ------
    ConfigurationError
        If it is not a command, or lacks something.
    """
    if not isinstance(message, dict) or message.get("type") != "command":
        raise ConfigurationError(f"this is not a command: {str(message)[:200]}")
    if message.get("version") != VERSION:
        raise ConfigurationError(
            f"the view speaks version {message.get('version')} of psnb's protocol, the kernel "
            f"{VERSION}: reload the page, or install the same psnb in both places"
        )
    name, arguments = str(message.get("command")), message.get("arguments")
    if name not in get_args(CommandName):
        raise ConfigurationError(f"there is no command {name[:50]!r}")
    wanted = _ARGUMENTS.get(name, {})
    if not isinstance(arguments, dict) or set(arguments) != set(wanted):
        raise ConfigurationError(f"{name} takes {', '.join(wanted) or 'no arguments'}")
    for key, kind in wanted.items():
        if not isinstance(arguments[key], kind) or isinstance(arguments[key], bool):
            raise ConfigurationError(f"{key} of {name} cannot be {arguments[key]!r}")
    return cast(Command, message)


def _done(viewed: Viewed, command: Command, by: str) -> tuple[str, dict[str, Any]]:
    """Return a text for people, and what was found."""
    name, arguments = command["command"], command["arguments"]
    reason = viewed.controls().get(name, "")
    if reason:
        raise ConfigurationError(reason)
    if name not in _LOOKS:
        return _do(viewed, command, by), {}
    found = viewed.command(name)(**arguments)
    return _TEXTS[name], {_LOOKS[name]: found}


def _do(viewed: Viewed, command: Command, by: str) -> str:
    name, arguments = command["command"], command["arguments"]
    answer = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    text = f"{name.replace('_', ' ')}{f' ({answer})' if answer else ''}, by {by}"
    viewed.records.events.add(EventKind.COMMAND_GIVEN, text)
    given: dict[str, Any] = {"timeout": DRAIN_TIMEOUT} if name == "drain" else {**arguments}
    if name == "set_learning_rate":
        if not math.isfinite(value := given["value"]):
            raise ConfigurationError(f"a learning rate must be a finite number, found {value}")
        given["value"] = float(value)
    done = viewed.command(name)(**given)
    match name:
        case "cancel_queued":
            return f"{counted(done, 'closure')} cancelled"
        case "checkpoint":
            return str(done)
        case "set_learning_rate":
            return f"learning rate of {given['parameter']}: {given['value']:g}"
        case "retire_worker":
            return f"worker {given['worker']} leaves when it has finished"
    return _TEXTS[name]


_TEXTS = {
    "pause": "paused",
    "resume": "resumed",
    "drain": "drained: nothing runs",
    "rewind": "parameters have gone back",
    "stop_training": "it ends when what runs has ended",
    "add_worker": "a worker is being started",
    "describe_table": "described",
    "look_up_row": "found",
    "worker_output": "shown below the workers",
}
