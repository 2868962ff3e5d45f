"""Work goes to whoever is free, whatever was thought of its length."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import psnb
from psnb import errors
from psnb._src.coordinator.scheduling import load
from tests.conftest import DEADLINE, wait_until


def _wait_for(path: Path) -> None:
    pause = threading.Event()
    for _ in range(3000):
        if path.exists():
            return
        pause.wait(0.01)
    raise TimeoutError(str(path))


def test_short_closures_behind_one_that_turns_out_long_run_elsewhere(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"

    def step(stall: bool) -> str:
        if stall:
            _wait_for(go_on)
        return psnb.worker_context().worker_name

    for _ in range(500):  # so the function is known as a short one
        coordinator.schedule(step, (False,))
    coordinator.join(DEADLINE)
    remotes = [coordinator.schedule(step, (number == 100,)) for number in range(400)]
    wait_until(lambda: sum(r.done() for r in remotes) == 399, "all but the long one have ended")
    assert not remotes[100].done()
    go_on.touch()
    coordinator.join(DEADLINE)
    assert coordinator.statistics().retried == 0


def test_a_result_is_not_held_back_by_a_longer_closure_behind_it(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"

    def step(stall: bool) -> None:
        if stall:
            _wait_for(go_on)

    for _ in range(500):
        coordinator.schedule(step, (False,))
    coordinator.join(DEADLINE)
    first = coordinator.schedule(step, (False,), worker=0)
    coordinator.schedule(step, (True,), worker=0)
    first.fetch(DEADLINE)
    go_on.touch()
    coordinator.join(DEADLINE)


def test_closures_sent_ahead_are_cancelled_when_another_fails(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They stay there for as long as this test needs to see that they are.
    monkeypatch.setattr(load, "RECALL_SECONDS", 2 * DEADLINE)
    begun, go_on = tmp_path / "begun", tmp_path / "go on"

    def step(kind: str) -> None:
        if kind == "stall":
            begun.touch()
            _wait_for(go_on)
        if kind == "fail":
            raise ValueError("boo")

    for _ in range(500):
        coordinator.schedule(step, ("",))
    coordinator.join(DEADLINE)
    stalled = coordinator.schedule(step, ("stall",), worker=0)
    behind = [coordinator.schedule(step, ("",), worker=0) for _ in range(5)]
    wait_until(lambda: coordinator.statistics().in_flight > 1, "some were sent ahead")
    wait_until(begun.exists, "the first one has begun")
    coordinator.schedule(step, ("fail",), worker=1)
    for remote in behind:  # while the first one runs still
        with pytest.raises(errors.ClosureCancelledError):
            remote.fetch(DEADLINE)
    assert not stalled.done()
    go_on.touch()
    with pytest.raises(ValueError, match="boo"):
        coordinator.join(DEADLINE)
    stalled.fetch(DEADLINE)
