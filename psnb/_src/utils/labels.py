"""Readable names of strategies and coordinators, no two of a process the same. Pure.

Any thread takes one; it is free again when its coordinator is closed or collected.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import weakref
from collections.abc import Container
from typing import Any

from psnb._src.jupyter_compat import notebook_name
from psnb._src.utils.text import NAME, shown
from psnb.errors import ConfigurationError

_ADJECTIVES = (
    *("amber", "azure", "bold", "brave", "bright", "calm", "clear", "clever", "coral"),
    *("crisp", "eager", "early", "fleet", "gentle", "glad", "golden", "green", "keen"),
    *("kind", "light", "lively", "lucky", "mellow", "merry", "neat", "noble", "proud"),
    *("quick", "quiet", "rapid", "royal", "silver", "steady", "sunny", "swift", "tidy"),
    *("vivid", "warm", "wise", "witty"),
)
_NOUNS = (
    *("acorn", "badger", "beacon", "birch", "brook", "cedar", "comet", "cove", "crane"),
    *("dune", "falcon", "fern", "finch", "forest", "fox", "glacier", "harbor", "hazel"),
    *("heron", "island", "lagoon", "lark", "lynx", "maple", "meadow", "otter", "pebble"),
    *("pine", "planet", "raven", "reef", "river", "robin", "sparrow", "spruce", "summit"),
    *("swan", "thistle", "tulip", "willow"),
)


def check_label(value: object) -> str:
    """Return a name that a user has given; None becomes empty.

    Raises
    ------
    ConfigurationError
        If it is not text, empty or too long.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or not value.strip() or len(value) > NAME:
        raise ConfigurationError(
            f"name must be a text of 1 to {NAME} characters, found {shown(value)}"
        )
    return value.strip()


def made_up_label() -> str:
    """Return a name for an object without one: the notebook's, or two words."""
    if notebook := notebook_name():
        return notebook[:NAME]
    # Not `random`, whose state is the user's.
    return f"{secrets.choice(_ADJECTIVES)} {secrets.choice(_NOUNS)}"


def numbered(label: str, taken: Container[str]) -> str:
    """Return a label, with a number if it is taken."""
    names = itertools.chain((label,), (f"{label} {number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


class Labels:
    """The labels in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # two threads do not take the same
        self._owners: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    def take(self, wanted: str, owner: object) -> str:
        """Return the wanted label, or one with a number, for as long as ``owner`` lives."""
        with self._lock:
            label = numbered(wanted, self._owners)
            self._owners[label] = owner
            return label

    def give_back(self, label: str) -> None:
        """Let others have a label."""
        with self._lock:
            self._owners.pop(label, None)
