"""The states of a coordinator: one table, of which the first that holds counts."""

from __future__ import annotations

from typing import Any

import pytest

from psnb._src.coordinator.scheduling.states import ConnectionState
from psnb._src.monitor.states import (
    WORKER_TONES,
    coordinator_state,
    coordinator_tone,
    meaning,
)

BUSY = {"queued": 242, "in_flight": 2}


@pytest.mark.parametrize(
    ("state", "tone", "situation"),
    [
        ("idle", "good", {}),
        ("idle", "good", {"workers": 0}),
        ("running", "busy", {**BUSY}),
        ("running", "busy", {"in_flight": 1}),
        ("running", "busy", {"in_flight": 1, "workers": 0}),
        ("no workers", "bad", {"queued": 242, "workers": 0}),
        ("paused", "waiting", {"paused": True}),
        ("paused", "waiting", {"paused": True, "queued": 3, "workers": 0}),
        ("draining", "waiting", {"paused": True, **BUSY}),
        ("parameters lost", "bad", {"parameters_lost": True}),
        ("parameters lost", "bad", {"parameters_lost": True, "paused": True, **BUSY}),
        ("failing", "bad", {"failing": True, "parameters_lost": True, **BUSY}),
        ("closed", "quiet", {"closed": True, "failing": True, "parameters_lost": True, **BUSY}),
    ],
)
def test_the_first_state_that_holds_is_shown_with_its_tone_and_meaning(
    state: str, tone: str, situation: dict[str, Any]
) -> None:
    assert coordinator_state(**situation) == state
    assert coordinator_tone(state) == tone
    assert meaning(state).endswith(".")


def test_an_unknown_state_is_quiet_and_means_nothing() -> None:
    assert (coordinator_tone("unknown"), meaning("unknown")) == ("quiet", "")


def test_every_state_of_a_connection_has_a_tone() -> None:
    assert {state.value for state in ConnectionState} <= set(WORKER_TONES)
