"""Whether a scheduler that is connected again is the one from before."""

from __future__ import annotations

import asyncio
from itertools import chain, repeat

import pytest

from psnb._src.strategy import scheduler_life
from psnb._src.strategy.scheduler_life import scheduler_ends
from psnb.errors import SchedulerLostError


def reconnected(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    """Run until a client that finds these ids, and then no others, is closed."""
    ids = chain(found, repeat(found[-1]))  # it is never seen that the connection is broken
    asked = 0

    def has_ended(_: object) -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    for name, value in {
        "has_ended": has_ended,
        "is_connected": lambda _: True,
        "scheduler_address": lambda _: "tcp://host:1",
        "scheduler_since": lambda _: (next(ids), 0.0),
    }.items():
        monkeypatch.setattr(scheduler_life, name, value)
    asyncio.run(scheduler_ends(None, interval=0.001))  # type: ignore[arg-type]


def test_a_connection_that_breaks_for_a_moment_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reconnected(monkeypatch, "a")


def test_a_scheduler_whose_id_comes_late_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    reconnected(monkeypatch, "", "", "a")


def test_another_scheduler_at_the_same_address_is_the_end_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SchedulerLostError, match=r"tcp://host:1 .* psnb\.resume"):
        reconnected(monkeypatch, "a", "a", "b")
