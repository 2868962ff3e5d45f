"""What closures at once hide of the way to a server that is far away.

``python -m tests.benchmarks.delay``: a minute. One worker trains the model of
`tests.benchmarks.clicks` in batches of 512, and hears each answer of its server late.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from distributed import Client
from rich.console import Console
from rich.table import Table

import psnb
from psnb._src.client.connection import ServerConnection
from psnb._src.server.messages import ServerReply
from tests.benchmarks import clicks

SIZE = 512
DELAYS = (0.0, 0.001, 0.003, 0.010)
AT_ONCE = (1, 2, 4)


def delay_answers(seconds: float) -> None:
    """Have this process hear its servers so much later."""
    if not hasattr(ServerConnection, "late"):
        deliver = ServerConnection._deliver

        def later(connection: ServerConnection, reply: ServerReply) -> None:
            asyncio.get_running_loop().call_later(connection.late, deliver, connection, reply)

        ServerConnection._deliver = later
    ServerConnection.late = seconds


def seconds_a_step(coordinator: psnb.ClusterCoordinator, step: Any, batches: Any) -> float:
    """Return what a step of the second of two epochs takes."""
    coordinator.run_epoch(step, iter(batches))
    begin = time.perf_counter()
    steps = coordinator.run_epoch(step, iter(batches)).visits
    return (time.perf_counter() - begin) / steps


def main(client: Client) -> None:
    """Measure and print the table."""
    table = Table("each answer is late by", *(f"{count} at once" for count in AT_ONCE))
    with psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        rows = psnb.data.Dataset.from_tensor_slices(clicks.clicks(clicks.EXAMPLES, 3))
        batches = coordinator.create_per_worker_dataset(rows.batch(SIZE), sharding="dynamic")
        model = clicks.jax_step(strategy)

        def step(iterator: Any) -> None:
            model(iterator)

        for delay in DELAYS:
            client.run(delay_answers, delay)
            row = []
            for count in AT_ONCE:
                coordinator.use_threads(count)
                row.append(f"{seconds_a_step(coordinator, step, batches) * 1e3:.1f} ms")
            table.add_row(f"{delay * 1e3:.0f} ms", *row)
    Console().print(table)


if __name__ == "__main__":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    main(psnb.local_cluster(workers=1, servers=1))
