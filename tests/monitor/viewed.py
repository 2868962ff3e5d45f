"""Coordinators for the views' tests: figures that tests set, and nothing behind them."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from psnb._src.monitor.counters import Staleness
from psnb._src.monitor.events import Event, EventKind
from psnb._src.monitor.protocol import CommandName, Identity
from psnb._src.monitor.statistics import ServerStatistics, Statistics, WorkerStatistics
from psnb._src.monitor.viewed import OptimizerState, Records

DEADLINE = 30.0

WORKER = WorkerStatistics("alice", "tcp://127.0.0.1:1", 0, "ready", 2, 10, 1, 3.5)
SERVER = ServerStatistics("server 0", "tcp://127.0.0.1:9", "serving", 1, 1000)
STATISTICS = Statistics(
    "idle", 7.0, 5, 2, 10, 1, 3, 4, (WORKER,), (SERVER,), {}, Staleness().statistics()
)


class FakeViewed:
    """A coordinator's outside, with figures that tests set, noting what it is told to do."""

    id = "c0ffee"

    def __init__(self, **changes: Any) -> None:
        self.records = Records.empty(pickle.loads)
        self.now = replace(STATISTICS, **changes)
        self.error: Exception | None = None
        self.asked = threading.Semaphore(0)  # Released at each look at it.
        self.done: list[tuple[Any, ...]] = []
        self.refused: dict[CommandName, str] = {}
        self.rates: dict[str, OptimizerState] = {"users": OptimizerState("Adagrad", 0.5)}

    def statistics(self) -> Statistics:
        self.asked.release()
        if self.error is not None:
            raise self.error
        return replace(self.now, metrics=self.records.history.metrics())

    def events(self, since: float = 0.0) -> tuple[Event, ...]:
        return self.records.events.since(since)

    def identity(self) -> Identity:
        return Identity(
            name="abc",
            kernel="",
            process=1,
            host="here",
            cluster="tcp://127.0.0.1:2",
            cluster_id="Scheduler-1",
            cluster_started=0.0,
            dashboard="",
            started=0.0,
        )

    def optimizers(self) -> Mapping[str, OptimizerState]:
        return self.rates

    def tables(self) -> list[str]:
        return ["users"]

    def controls(self) -> dict[CommandName, str]:
        return self.refused

    def watch(self) -> None:
        pass

    def command(self, name: CommandName) -> Callable[..., Any]:
        def do(timeout: float | None = None, **arguments: Any) -> Any:
            if self.error is not None:
                raise self.error
            self.done.append((name, *arguments.values()))
            found = {"table": arguments.get("table", "")}
            return {
                "cancel_queued": 1234,
                "checkpoint": Path("here") / "checkpoint-1",
                "describe_table": found,
                "look_up_row": found,
                "worker_output": found,
            }.get(name)

        return do

    @property
    def told(self) -> list[str]:
        """The commands that were noted."""
        every = self.records.events.all()
        return [each.message for each in every if each.kind is EventKind.COMMAND_GIVEN]

    def set(self, **changes: Any) -> None:
        self.now = replace(self.now, **changes)

    def wait_for_looks(self, count: int) -> None:
        """Wait until the publisher has looked so many times more."""
        while self.asked.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self.asked.acquire(timeout=DEADLINE), "the publisher does not look"


def reporting(*values: float) -> FakeViewed:
    viewed = FakeViewed()
    for step, value in enumerate(values):
        viewed.records.history.add(float(step), {"loss": value})
    return viewed
