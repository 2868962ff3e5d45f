"""What stays in its process: what travels in its place raises where it is used."""

from __future__ import annotations

from typing import Any

import pytest

from psnb._src.protocol.notebook_only import leave_behind
from psnb._src.protocol.packing import dumps, loads
from psnb.errors import ConfigurationError


class Thing:
    """Anything."""

    def __init__(self) -> None:
        self.size = 3


def test_what_is_left_behind_travels_as_what_says_why_wherever_it_is_captured() -> None:
    thing = Thing()
    leave_behind(thing, "use the other one")
    both: Any = loads(dumps({"one": [thing], "two": lambda: thing.size, "size": 3}, "it"))
    assert both["size"] == 3
    again = loads(dumps(both["one"][0], "it"))
    for use in (both["two"], lambda: both["one"][0] * 2, lambda: again()):
        with pytest.raises(ConfigurationError, match="use the other one"):
            use()
    assert thing.size == 3


def test_what_is_gone_leaves_nothing_for_what_comes_to_its_place() -> None:
    for _ in range(50):  # of which most have the place of the one before
        thing = Thing()
        leave_behind(thing, "use the other one")
        del thing
        assert loads(dumps(Thing(), "it")).size == 3
