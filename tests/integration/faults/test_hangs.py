"""Workers that stop answering without leaving."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from msgspec.structs import replace

import psnb
from psnb import EventKind, errors
from psnb._src.coordinator.workers.knowledge import WorkerKnowledge
from psnb._src.protocol.messages import RunClosures
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import frozen, wait_for_file
from tests.transport.test_stream import Unreadable


def _kinds(coordinator: psnb.ClusterCoordinator) -> list[EventKind]:
    return [event.kind for event in coordinator.events()]


def _states(coordinator: psnb.ClusterCoordinator) -> list[str]:
    return [worker.state for worker in coordinator.statistics().workers]


def test_closures_of_a_frozen_worker_run_elsewhere_and_it_is_used_again(
    whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        # The other worker must answer in that time, also on a busy machine.
        coordinator = psnb.ClusterCoordinator(strategy, heartbeat_timeout=3)
        begun, go_on = tmp_path / "begun", tmp_path / "go on"
        counter = strategy.variable(np.int64(0))

        def wait_for_a_sign() -> int:
            with begun.open("a") as file:
                file.write(f"{os.getpid()}\n")
            wait_for_file(go_on)
            counter.assign_add(np.int64(1))
            return os.getpid()

        remote = coordinator.schedule(wait_for_a_sign)
        wait_until(lambda: begun.exists() and begun.read_text(), "it runs")
        pid = int(begun.read_text())
        with frozen(pid):
            wait_until(lambda: len(begun.read_text().split()) == 2, "it runs elsewhere")
            go_on.touch()
            assert remote.fetch(DEADLINE) != pid
        lost = [e for e in coordinator.events() if e.kind is EventKind.WORKER_LOST]
        assert [len(event.closures) for event in lost] == [1]
        assert "wait_for_a_sign" in lost[0].closures[0]
        assert "no heartbeat" in lost[0].message
        wait_until(lambda: _states(coordinator) == ["ready", "ready"], "it is used again")
        wait_until(
            lambda: pid in coordinator.fetch([coordinator.schedule(os.getpid) for _ in range(20)]),
            "it runs closures again",
        )
        s = coordinator.statistics()
        assert (s.retried, s.failed) == (1, 0)
        # The late attempt on the thawed worker committed nothing a second time.
        assert int(counter.read()) == 1


def test_a_closure_that_holds_the_interpreter_for_seconds_keeps_its_worker(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)

        def hold() -> None:
            import ctypes

            ctypes.PyDLL(None).sleep(4)  # PyDLL does not release the lock

        coordinator.schedule(hold)
        coordinator.join(DEADLINE)
        assert coordinator.statistics().retried == 0


def test_a_closure_longer_than_the_heartbeat_timeout_keeps_its_worker(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    coordinator = psnb.ClusterCoordinator(strategy, heartbeat_timeout=2)
    coordinator.schedule(lambda: threading.Event().wait(3))
    coordinator.join(DEADLINE)
    assert coordinator.statistics().retried == 0


@pytest.mark.parametrize("timeout", [0, -1, "ten", float("nan"), True])
@pytest.mark.parametrize("name", ["worker_timeout", "heartbeat_timeout", "drain_timeout"])
def test_a_timeout_that_makes_no_sense_is_refused(
    strategy: psnb.ParameterServerStrategy, name: str, timeout: object
) -> None:
    with pytest.raises(errors.ConfigurationError, match=f"{name} must be a positive number"):
        psnb.ClusterCoordinator(strategy, **{name: timeout})  # type: ignore[arg-type]


def test_other_timeouts_for_the_same_strategy_are_refused(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    coordinator = psnb.ClusterCoordinator(strategy, worker_timeout=3)
    assert psnb.ClusterCoordinator(strategy) is coordinator
    with pytest.raises(errors.ConfigurationError, match="timeouts=Timeouts"):
        psnb.ClusterCoordinator(strategy, worker_timeout=4)


def test_a_message_that_a_worker_cannot_unpickle_costs_its_session_and_says_so(
    coordinator: psnb.ClusterCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WorkerKnowledge.run
    bad = [Unreadable()]

    def once(known: WorkerKnowledge, closures: list[Any], workers: int) -> RunClosures:
        message = run(known, closures, workers)
        return replace(message, layout=bad.pop()) if bad else message

    monkeypatch.setattr(WorkerKnowledge, "run", once)
    assert coordinator.schedule(abs, args=(-1,)).fetch(DEADLINE) == 1
    (lost,) = [e for e in coordinator.events() if e.kind is EventKind.WORKER_LOST]
    assert "cannot be unpickled" in lost.message
    assert "'no_such_module'" in lost.message
