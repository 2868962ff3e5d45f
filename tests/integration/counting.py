"""Closures whose effect on the parameters can be counted, for tests of lost servers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import numpy as np
from distributed import Client

import psnb
from tests.conftest import DEADLINE, wait_until

IDS = np.arange(40)

signalled: list[int] = []
"""The processes that were asked to end or killed, until a fixture has waited for them."""


class Counter:
    """A variable and an embedding that every closure adds one to; what they say must agree.

    Parameters
    ----------
    strategy : ParameterServerStrategy
        Where they are.
    """

    def __init__(self, strategy: psnb.ParameterServerStrategy) -> None:
        self.coordinator = psnb.ClusterCoordinator(strategy)
        self._v = strategy.variable(np.zeros(3), "count", psnb.SGD(1.0))
        self._e = strategy.embedding("counts", 2, optimizer=psnb.SGD(1.0), initializer=0.0)
        self.scheduled = 0

    def schedule(self, times: int) -> None:
        """Schedule so many closures."""
        v, e = self._v, self._e

        def count() -> None:
            psnb.push({v: -np.ones(3), e: (IDS, np.full((IDS.size, 2), -1, np.float32))})

        for _ in range(times):
            self.coordinator.schedule(count)
        self.scheduled += times

    def count_here(self) -> None:
        """Add one from the notebook."""
        self._v.assign_add(np.ones(3))
        self._e.push(IDS, np.full((IDS.size, 2), -1, np.float32))
        self.scheduled += 1

    def counted(self) -> set[float]:
        """Return all numbers that are there."""
        return {*self._v.read().tolist(), *np.unique(self._e.lookup(IDS)).tolist()}

    def wait_for(self, more: int) -> None:
        """Schedule so many more, and wait until as many have completed."""
        goal = self.coordinator.statistics().completed + more  # before: some end at once
        self.schedule(more)
        wait_until(lambda: self.coordinator.statistics().completed >= goal, f"{more} more")

    def require_all(self) -> None:
        """Wait for all closures; each must have counted once, and none failed."""
        self.coordinator.join(2 * DEADLINE)
        assert self.coordinator.statistics().failed == 0
        assert self.counted() == {float(self.scheduled)}


def wait_until_copied(strategy: psnb.ParameterServerStrategy) -> None:
    """Wait until each shard has its copies: before, a server that dies takes its shards along."""
    wait_until(lambda: strategy.replicas_complete, "each shard has a copy", 2 * DEADLINE)


def _signal(number: signal.Signals, client: Client, addresses: tuple[str, ...]) -> None:
    pids = client.run(os.getpid, workers=list(addresses))  # of all first: the dead do not answer
    for address in addresses:
        os.kill(pids[address], number)
        signalled.append(pids[address])


def kill(client: Client, *addresses: str) -> None:
    """End processes with no word to anybody."""
    _signal(signal.SIGKILL, client, addresses)


def terminate(client: Client, *addresses: str) -> None:
    """Ask processes to end."""
    _signal(signal.SIGTERM, client, addresses)


Lose = Callable[..., None]
