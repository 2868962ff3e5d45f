"""Scheduling the closures of an epoch."""

from __future__ import annotations

import threading
from typing import Any

from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.closures.status import ClosureStatus
from psnb._src.coordinator.datasets.epoch import run_epoch
from psnb._src.threads.locks import Condition
from tests.conftest import wait_until
from tests.coordinator.queues import TIMEOUT, in_thread


class Epoch:
    """An epoch that is over when it is told so, and what was scheduled for it."""

    def __init__(self) -> None:
        self.settled = Condition()
        self.over = False
        self.scheduled: list[RemoteValue] = []
        self.withdrawn: list[str] = []
        self.woken = threading.Event()

    def progress(self) -> Any:
        return self

    def unread(self) -> bool:
        return not self.over

    def suits(self, worker: object) -> bool:
        return True

    def schedule(self, chooser: object) -> RemoteValue:
        self.scheduled.append(RemoteValue(self.settled))
        return self.scheduled[-1]

    def end(self, *numbers: int) -> None:
        with self.settled:
            for number in numbers:
                self.scheduled[number].set_status(ClosureStatus.RUNNING)
                self.scheduled[number].set_status(ClosureStatus.COMPLETED)
            self.settled.notify_all()

    def run(self) -> None:
        run_epoch(
            self,  # type: ignore[arg-type]
            self.schedule,
            lambda chooser, why: self.withdrawn.append(why),
            lambda: 2,
            self.woken.set,
            self.settled,
        )


def test_a_long_closure_does_not_hold_up_the_others() -> None:
    epoch = Epoch()
    running = in_thread(epoch.run)
    wait_until(lambda: len(epoch.scheduled) == 8, "four for each worker")
    epoch.end(*range(1, 8))
    wait_until(lambda: len(epoch.scheduled) == 15, "one for each that has ended")
    epoch.over = True
    epoch.end(0)
    running.result(TIMEOUT)
    assert epoch.withdrawn == ["the epoch is over"]


def test_idle_workers_are_asked_again_from_time_to_time() -> None:
    epoch = Epoch()
    running = in_thread(epoch.run)
    assert epoch.woken.wait(TIMEOUT)
    epoch.over = True
    running.result(TIMEOUT)
