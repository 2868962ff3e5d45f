"""Ray: tasks, and two actors that call a third one, which has the parameters."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}

import numpy as np
import ray

from tests.benchmarks.beside import cores, parameters
from tests.benchmarks.beside.talking import Done, Some, serve


@ray.remote
def nothing() -> None:
    """The task that does nothing."""


@ray.remote
class Worker:
    """A worker that keeps the parameters' actor busy."""

    def __init__(self, server: Any) -> None:
        self._server, self._rng = server, np.random.default_rng()

    def pid(self) -> int:
        """Return the process that it is in."""
        return os.getpid()

    def nothing(self) -> None:
        """Do nothing."""

    def dense(self) -> None:
        """Read the variable and add to it."""
        change = ray.get(self._server.read.remote()) * -parameters.RATE
        ray.get(self._server.add.remote(change))

    def rows(self) -> None:
        """Look up rows and take something away from them."""
        ids = parameters.random_ids(self._rng)
        found = ray.get(self._server.lookup.remote(ids)) * np.float32(parameters.RATE)
        ray.get(self._server.subtract.remote(ids, found))


def main() -> None:
    """Start Ray on this machine, and answer."""
    ray.init(
        num_cpus=2,  # for tasks: actors need none once they run
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=2 * 10**9,
    )
    server = ray.remote(parameters.Server).remote()
    workers = [Worker.remote(server) for _ in range(2)]
    pids = ray.get([each.pid.remote() for each in (server, *workers)])
    roles = dict(zip(pids, (cores.SERVER, cores.WORKER, cores.WORKER), strict=True))

    def tasks() -> Done:
        ray.get([nothing.remote() for _ in range(parameters.AT_ONCE)])
        return Done(parameters.AT_ONCE)

    def calls(method: str, count: int, amount: float) -> Done:
        ray.get([getattr(workers[number % 2], method).remote() for number in range(count)])
        return Done(count * amount)

    given = {
        "actor calls": ("nothing", parameters.AT_ONCE, 1),
        "dense": ("dense", parameters.DENSE_STEPS, parameters.DENSE_MB),
        "rows": ("rows", parameters.ROW_STEPS, parameters.IDS),
    }
    works: dict[str, Callable[[], Some]] = {"closures": lambda: tasks}
    works |= {name: partial(partial, calls, *each) for name, each in given.items()}
    serve("ray", works, lambda: roles)


if __name__ == "__main__":
    main()
