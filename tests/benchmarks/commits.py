"""`make bench`: what it costs that a closure's writes are applied on all servers or on none.

One worker, two servers. A closure adds to one variable or to two, on servers of their own. "Apart"
is the same two additions without that promise: a message to each server at the same time, which
know nothing of each other, as psnb did it before. All three take turns; the medians count.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

import psnb
from psnb._src.client.requests import Request
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.operations import CommitParts
from psnb._src.server.tables.operations import AddValues, on_table

CLOSURES, TURNS = 200, 7
SIZES = {"8 bytes": 1, "1 MB": 131_072}


def rates(
    coordinator: psnb.ClusterCoordinator, first: psnb.Variable, second: psnb.Variable
) -> dict[str, float]:
    """Return the closures a second of each way to write."""
    one = np.ones(first.shape)

    def to_one() -> None:
        first.assign_add(one)

    def to_both() -> None:
        first.assign_add(one)
        second.assign_add(one)

    def apart() -> None:
        requests = []
        for variable in (first, second):
            (to,) = variable._shards.parts
            commit = Commit(f"process {uuid.uuid4().hex}", 0, shards=(to.shard,))
            parts = {to.shard.number: Part([on_table(to.table, AddValues(one.copy()))])}
            requests.append(Request(to.shard, CommitParts(commit, parts)))
        first._shards.server_client.call(requests)

    ways: dict[str, Callable[[], None]] = {"one": to_one, "apart": apart, "both": to_both}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, way in ways.items():
            begin = time.perf_counter()
            for _ in range(CLOSURES):
                coordinator.schedule(way)
            coordinator.join()
            found[name].append(CLOSURES / (time.perf_counter() - begin))
    return {name: statistics.median(each) for name, each in found.items()}


def main() -> None:
    """Measure and print."""
    table = Table(
        "of each variable",
        "to one server",
        "to two, apart",
        "to two, wholly",
        "wholly / apart",
        title="closures/s that write, one worker, two servers",
    )
    with (
        psnb.local_cluster(workers=1, servers=2) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        for size, length in SIZES.items():
            first, second = (strategy.variable(np.zeros(length)) for _ in range(2))
            found = rates(coordinator, first, second)
            assert np.array_equal(second.read(), np.full(length, 2.0 * TURNS * CLOSURES))
            table.add_row(
                size,
                *(f"{found[way]:,.0f}" for way in ("one", "apart", "both")),
                f"{found['both'] / found['apart']:.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
