"""Errors that nobody expects, in loops of the notebook: they are logged, and all goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.coordinator.scheduling.figures import WorkerFigures
from psnb._src.coordinator.workers.membership import Membership
from psnb._src.strategy import control, reconciler, scheduler_life
from tests.conftest import DEADLINE, wait_until


class Once:
    """Raises the first time, and is the function that it stands for from then on."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self._real = real
        self.raised, self.again = threading.Event(), threading.Event()

    def __get__(self, instance: object, kind: object) -> Callable[..., Any]:
        return lambda *arguments, **more: self(instance, *arguments, **more)

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        if not self.raised.is_set():
            self.raised.set()
            raise KeyError("nobody expects this")
        self.again.set()
        return self._real(*arguments, **more)


LOOPS = {
    "polls": (Membership, "_follow"),
    "late work": (Membership, "_fail_what_waited_too_long"),
    "heartbeats of servers": (control.ServerControl, "heartbeat"),
    "rounds of the reconciler": (reconciler, "next_layout"),
    "life of the scheduler": (scheduler_life, "is_connected"),
}


@pytest.mark.parametrize("where", LOOPS.values(), ids=LOOPS)
def test_a_loop_of_the_notebook_goes_on_and_its_error_is_logged(
    cluster: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: tuple[Any, str],
) -> None:
    once = Once(getattr(*where))
    with psnb.ParameterServerStrategy(cluster, heartbeat_timeout=3) as strategy:
        counter = strategy.variable(np.int64(0))
        coordinator = psnb.ClusterCoordinator(strategy)
        monkeypatch.setattr(*where, once)
        assert once.raised.wait(DEADLINE)
        wait_until(lambda: "nobody expects this" in caplog.text, "it is logged")
        for _ in range(3):
            coordinator.schedule(counter.assign_add, (np.int64(1),))
        coordinator.join(DEADLINE)
        assert int(counter.read()) == 3
        assert once.again.wait(DEADLINE)


def test_a_closed_client_ends_the_polls_without_an_error_in_the_log(
    cluster: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.schedule(int).fetch(DEADLINE)
        with monkeypatch.context() as closed:
            closed.setattr(cluster, "status", "closed")  # as at the end of a program
            with pytest.raises(psnb.errors.CoordinatorClosedError):
                wait_until(lambda: coordinator.schedule(int) is None, "the polls have ended")
    assert "Looking for workers" not in caplog.text


def test_outcomes_are_settled_whatever_their_figures_raise(
    cluster: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        counter = strategy.variable(np.int64(0))
        coordinator = psnb.ClusterCoordinator(strategy)
        monkeypatch.setattr(WorkerFigures, "add_phases", Once(WorkerFigures.add_phases))
        coordinator.schedule(counter.assign_add, (np.int64(1),)).fetch(DEADLINE)
        coordinator.join(DEADLINE)
        assert int(counter.read()) == 1
        assert coordinator.statistics().retried == 0
        wait_until(lambda: "nobody expects this" in caplog.text, "it is logged")
