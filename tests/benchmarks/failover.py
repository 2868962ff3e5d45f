"""`make bench`: how long nothing can be written when a server with copies is killed.

Two servers, `replicas=1`. A server is killed with ``kill -9``; the figure is the time from there to
the end of the next write, which needs the copy.
"""

from __future__ import annotations

import os
import signal
import statistics
import time

import numpy as np
from rich.console import Console
from rich.table import Table

import psnb
from tests.conftest import wait_until

KILLS = 7


def outages() -> list[float]:
    """Return the seconds of each outage."""
    found = []
    with (
        psnb.local_cluster(workers=1, servers=2) as client,
        psnb.ParameterServerStrategy(client, replicas=1) as strategy,
    ):
        counter = strategy.variable(np.zeros(1))
        written = 0
        for _ in range(KILLS):
            wait_until(
                lambda: all(place.synced for place in strategy._core.layout.placements),
                "each shard has a copy",
            )
            primary = strategy._core.layout.placements[counter._shards.tables[0][0].number].primary
            assert primary is not None
            (pid,) = client.run(os.getpid, workers=[primary.address]).values()
            counter.assign_add(np.ones(1))
            begin = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            counter.assign_add(np.ones(1))
            found.append(time.perf_counter() - begin)
            written += 2
        assert counter.read() == written
    return found


def main() -> None:
    """Kill and print."""
    found = outages()
    table = Table("", "median", "longest", title=f"{KILLS} servers killed, replicas=1")
    table.add_row(
        "until the copy took over, s", f"{statistics.median(found):.2f}", f"{max(found):.2f}"
    )
    Console().print(table)


if __name__ == "__main__":
    main()
