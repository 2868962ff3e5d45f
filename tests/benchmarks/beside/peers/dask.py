"""Plain Dask: tasks by ``Client.submit``; two workers whose tasks use an actor on a third one."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from distributed import Client, LocalCluster, wait

from tests.benchmarks.beside import cores, parameters
from tests.benchmarks.beside.talking import Done, Some, serve


def nothing() -> None:
    """The task that does nothing."""


def dense(server: Any) -> None:
    """Read the variable and add to it."""
    server.add(server.read().result() * -parameters.RATE).result()


def rows(server: Any, seed: int) -> None:
    """Look up rows and take something away from them."""
    ids = parameters.random_ids(np.random.default_rng(seed))
    server.subtract(ids, server.lookup(ids).result() * np.float32(parameters.RATE)).result()


class Works:
    """What is measured, on a cluster with an actor."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._address, *self._workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
        self._server = client.submit(
            parameters.Server, actor=True, workers=[self._address]
        ).result()

    def roles(self) -> dict[int, str]:
        """Return what the processes are for; Dask's scheduler is in this one."""
        return {
            pid: cores.SERVER if address == self._address else cores.WORKER
            for address, pid in self._client.run(os.getpid).items()
        }

    def _some(self, amount: float, count: int, task: Callable[..., None], *args: Any) -> Done:
        seeds = [(seed,) if task is rows else () for seed in range(count)]
        submit = partial(self._client.submit, pure=False, workers=self._workers)
        wait([submit(task, *args, *seed) for seed in seeds])
        return Done(count * amount)

    def works(self) -> dict[str, Callable[[], Some]]:
        """Return them by name."""
        given: dict[str, tuple[Any, ...]] = {
            "closures": (1, parameters.AT_ONCE, nothing),
            "dense": (parameters.DENSE_MB, parameters.DENSE_STEPS, dense, self._server),
            "rows": (parameters.IDS, parameters.ROW_STEPS, rows, self._server),
        }
        return {name: partial(partial, self._some, *each) for name, each in given.items()}


def main() -> None:
    """Start the cluster and answer."""
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        works = Works(client)
        serve("distributed", works.works(), works.roles)


if __name__ == "__main__":
    main()
