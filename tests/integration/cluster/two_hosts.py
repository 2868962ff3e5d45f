"""Tests of parameters where servers and notebook cannot see each other's memory.

What `test_hosts.py` runs: ``python -m tests.integration.cluster.two_hosts FOLDER hosts``, after
`namespaces.APART`, puts the servers and one worker into another network, with processes of its own;
``... containers``, after `namespaces.AS_ROOT`, into a container on this network.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from distributed import Client

import psnb
from tests.conftest import DEADLINE, OTHER_CLUSTER, connected
from tests.integration.helpers import CommandLine
from tests.integration.namespaces import HERE, OWN_PROCESSES, THERE, held, linked

SUITE = (
    "tests/client/test_comm_client.py",
    "tests/client/test_unreadable.py",
    "tests/integration/parameters/test_ctr.py",
)
SELECTED = "not network and not where_it_is_wanted"
"""Shared memory is wanted, though it cannot be had."""


class Lines(logging.Handler):
    """Keeps what psnb logs in this process."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def check_fallback(client: Client) -> None:
    """Use parameters, and see that it was said once for each server that memory is not shared."""
    logger, log = logging.getLogger("psnb"), Lines()
    logger.setLevel(logging.INFO)
    logger.addHandler(log)
    with psnb.ParameterServerStrategy(client) as strategy:
        v = strategy.variable(np.zeros(100_000))
        e = strategy.embedding("e", 200, optimizer=psnb.SGD(1.0))
        for i in range(5):
            v.assign(np.full(100_000, float(i)))
            assert (v.read() == i).all()
            e.push(range(1000), np.ones((1000, 200), np.float32))
        assert sorted(log.lines) == [
            f"parameters at {address} go over the network, not shared memory"
            for address in sorted(strategy.server_addresses)
        ]
        coordinator = psnb.ClusterCoordinator(strategy)
        workers = strategy.worker_names()
        assert workers == {"near", "far"}
        for name in workers:
            coordinator.schedule(v.assign_add, (np.ones(100_000),), worker=name)
        coordinator.join(DEADLINE)
        assert (v.read() == 6).all()
    logger.removeHandler(log)


def main(folder: Path, kind: str) -> None:
    """Make the cluster and run the tests on it."""
    with ExitStack() as stack:
        if kind == "hosts":
            before = stack.enter_context(linked(*OWN_PROCESSES)).enter
            here, there = HERE, THERE
        else:
            _, before = stack.enter_context(held(*OWN_PROCESSES))
            here = there = "127.0.0.1"
        cluster = CommandLine(folder, here)
        stack.enter_context(cluster.scheduler())
        for i in range(2):
            stack.enter_context(
                cluster.worker(
                    *("--resources", "ps=1", "--name", f"server-{i}", "--no-nanny"),
                    where=("--host", there),
                    before=before,
                )
            )
        options = ("--name", "far", "--no-nanny")
        stack.enter_context(cluster.worker(*options, where=("--host", there), before=before))
        options = ("--name", "near", "--no-nanny")
        stack.enter_context(cluster.worker(*options, where=("--host", here)))
        with connected(cluster.file) as client:
            client.wait_for_workers(4, timeout=DEADLINE)
            check_fallback(client)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-k",
                SELECTED,
                # Not where other runs clean up, which it may not.
                f"--basetemp={folder / 'pytest'}",
                *SUITE,
            ],
            env={**os.environ, OTHER_CLUSTER: cluster.file},
            check=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
