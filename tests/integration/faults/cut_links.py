"""Links of hosts that are cut while closures run: what `test_network.py` runs apart.

Run it after `namespaces.APART`: ``python -m tests.integration.faults.cut_links FOLDER WHO
SECONDS``. The one that it names is alone on its side of the link, in a namespace of its own: a
server, a worker, the scheduler, or the notebook, whose connection breaks as well. ``dead`` is a
server whose link is not mended while it matters, ``beyond`` a scheduler that is cut off for longer
than its processes wait.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import dask
import numpy as np
from distributed import Client

import psnb
from psnb import ClosureStatus, EventKind, errors
from tests.conftest import DEADLINE, connected, wait_until
from tests.integration.counting import wait_until_copied
from tests.integration.helpers import CommandLine, wait_until_ready
from tests.integration.namespaces import HERE, THERE, Link, linked

PATIENCE = 2.0
SOON = 4 * PATIENCE
"""Seconds that are enough on a busy machine too, and less than Dask ever waits."""


class Counted:
    """Closures that count themselves, each in a row of its own."""

    def __init__(self, strategy: psnb.ParameterServerStrategy) -> None:
        self.coordinator = psnb.ClusterCoordinator(strategy, heartbeat_timeout=PATIENCE)
        self._counter = strategy.variable(np.int64(0))
        self._visits = strategy.embedding(
            "visits", dim=1, rows=100_000, initializer=0.0, optimizer=psnb.SGD(1.0)
        )
        self._remotes: list[psnb.RemoteValue] = []
        counter, visits = self._counter, self._visits

        def step(row: int) -> None:
            visits.push([row], -np.ones((1, 1), np.float32))
            counter.assign_add(np.int64(1))
            threading.Event().wait(0.02)

        self._step = step

    def completed(self) -> int:
        """Return how many have ended."""
        return self.coordinator.statistics().completed

    def schedule(self, until: float) -> None:
        """Schedule closures until a time."""
        while time.monotonic() < until:
            try:
                if self.coordinator.statistics().queued < 10:
                    row = len(self._remotes)
                    self._remotes.append(self.coordinator.schedule(self._step, (row,)))
            except errors.ServerUnresponsiveError:
                pass
            threading.Event().wait(0.005)

    def go_on(self) -> None:
        """Schedule closures until some more have ended."""
        before = self.completed()

        def some() -> bool:
            self.schedule(time.monotonic() + 0.1)
            return self.completed() > before + 20

        wait_until(some, "closures go on", 3 * DEADLINE)

    def is_told_of_loss(self) -> bool:
        """Schedule a closure, and return whether it is said that parameters are lost."""
        try:
            self.coordinator.schedule(self._step, (0,))
            self.coordinator.join(1)
        except (TimeoutError, errors.ServerUnresponsiveError):
            return False
        except errors.ServerLostError as error:
            return "strategy.recover(" in str(error)
        return False

    def check(self) -> None:
        """Each that has ended has counted once, and no other."""

        def joined() -> bool:
            try:
                self.coordinator.join(DEADLINE)
            except errors.ServerUnresponsiveError:
                return False
            return True

        wait_until(joined, "all have ended", 3 * DEADLINE)
        ended = [each.status is ClosureStatus.COMPLETED for each in self._remotes]
        rows = self._visits.lookup(np.arange(len(ended)))[:, 0]
        assert rows.tolist() == [float(each) for each in ended]
        assert int(self._counter.read()) == sum(ended)


def started(stack: ExitStack, folder: Path, who: str, link: Link) -> Client:
    """Start a cluster of two servers and two workers; one host is there, the others here."""

    def placed(name: str) -> tuple[tuple[str, ...], str]:
        is_there = (name == who) != (who == "notebook")
        return (link.enter, THERE) if is_there else ((), HERE)

    before, host = placed("scheduler")
    cluster = CommandLine(folder, host)
    stack.enter_context(cluster.scheduler(before=before))
    for name in ("server", "other-server", "worker", "other-worker"):
        before, host = placed(name)
        resources = ("--resources", "ps=1") if "server" in name else ()
        options = ("--name", name, "--no-nanny", *resources)
        stack.enter_context(cluster.worker(*options, where=("--host", host), before=before))
    # As in a notebook, whose Dask has its own settings.
    dask.config.set({"distributed.comm.timeouts.tcp": "30s"})
    client = stack.enter_context(connected(cluster.file))
    client.wait_for_workers(4, timeout=DEADLINE)
    return client


def main(folder: Path, who: str, seconds: float) -> None:
    """Cut the link, mend it, and count."""
    dead, beyond = who == "dead", who == "beyond"
    if beyond:  # the least that Dask takes, for processes that are not started yet
        os.environ["DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP"] = "12s"
    with ExitStack() as stack:
        link = stack.enter_context(linked())
        alone = {"dead": "server", "beyond": "scheduler"}.get(who, who)
        client = started(stack, folder, alone, link)
        strategy = stack.enter_context(
            psnb.ParameterServerStrategy(client, replicas=int(dead), heartbeat_timeout=PATIENCE)
        )
        counted = Counted(strategy)
        wait_until_ready(counted.coordinator, "worker", "other-worker")
        if dead:
            wait_until_copied(strategy)
        counted.go_on()
        link.set("down")
        cut = time.monotonic()
        if dead:
            counted.go_on()
            assert time.monotonic() - cut < SOON
            counted.check()
            with psnb.ParameterServerStrategy(client, num_servers=1) as another:
                another.variable(np.zeros(1))
            link.set("up")
            return
        if beyond:
            wait_until(counted.is_told_of_loss, "it is said that all is lost", 4 * DEADLINE)
            link.set("up")
            return
        if who == "notebook":
            client.loop.add_callback(client.scheduler_comm.comm.abort)
        counted.schedule(cut + seconds)
        link.set("up")
        wait_until_ready(counted.coordinator, "worker", "other-worker")
        counted.go_on()
        counted.check()
        kinds = {event.kind for event in counted.coordinator.events()}
        assert not kinds & {EventKind.SERVER_LOST, EventKind.SHARDS_LOST}, kinds


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
