"""A worker in a network of its own whose link is cut: what `test_network.py` runs apart.

Run it after `namespaces.APART`: ``python -m tests.integration.faults.cut_link FOLDER``. The worker
gets another namespace; a pair of virtual devices joins the two.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import psnb
from psnb import EventKind
from tests.conftest import DEADLINE, connected
from tests.integration.helpers import CommandLine, Steps, kinds_of, wait_until_ready, worker_name
from tests.integration.namespaces import HERE, THERE, linked

HEARTBEAT_TIMEOUT = 2.0


def main(folder: Path) -> None:
    """Cut the link in the middle of a closure, and mend it."""
    with ExitStack() as stack:
        link = stack.enter_context(linked())
        cluster = CommandLine(folder, HERE)
        stack.enter_context(cluster.scheduler())
        stack.enter_context(cluster.worker("--resources", "ps=1", where=("--host", HERE)))
        stack.enter_context(
            cluster.worker(
                "--name", "far", "--no-nanny", where=("--host", THERE), before=link.enter
            )
        )
        client = stack.enter_context(connected(cluster.file))
        client.wait_for_workers(2, timeout=DEADLINE)
        strategy = stack.enter_context(psnb.ParameterServerStrategy(client))
        coordinator = psnb.ClusterCoordinator(strategy, heartbeat_timeout=HEARTBEAT_TIMEOUT)
        counter = strategy.variable(np.int64(0))
        steps = Steps(folder)

        def count() -> str:
            counter.assign_add(np.int64(1))
            return steps()

        remote = coordinator.schedule(count)
        assert steps.begun() == ["far"]
        stack.enter_context(cluster.worker("--name", "near", "--no-nanny", where=("--host", HERE)))
        wait_until_ready(coordinator, "near")

        cut = time.monotonic()
        link.set("down")
        assert steps.begun(2) == ["far", "near"]
        noticed = time.monotonic() - cut
        # Half a timeout of grace: the clock ticks four times in one.
        assert noticed > HEARTBEAT_TIMEOUT / 2
        assert kinds_of(coordinator, "far")[:2] == [EventKind.WORKER_JOINED, EventKind.WORKER_LOST]
        (lost,) = [e for e in coordinator.events() if e.kind is EventKind.WORKER_LOST]
        assert "no heartbeat" in lost.message  # and not that a connection broke, much later
        steps.end()
        assert remote.fetch(DEADLINE) == "near"

        link.set("up")
        wait_until_ready(coordinator, "far")
        assert coordinator.schedule(worker_name, worker="far").fetch(DEADLINE) == "far"
        assert (int(counter.read()), coordinator.statistics().retried) == (1, 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
