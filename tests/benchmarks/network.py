"""What a training step costs when its server is on another host: bytes, and CPU time for them.

``python -m tests.benchmarks.network``. Notebook and worker are in one network and the server in
another, as `tests.integration.cluster.two_hosts` has them, so nothing goes through shared memory.
Bytes are what the device between them counts, in both directions, with all headers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from distributed import Client
from rich.console import Console
from rich.table import Table

import psnb
from tests.benchmarks import clicks
from tests.benchmarks.profiling import cpu_seconds, roles
from tests.benchmarks.running import run_for
from tests.conftest import DEADLINE, connected
from tests.integration.helpers import CommandLine
from tests.integration.namespaces import APART, HERE, OWN_PROCESSES, THERE, linked

SIZES = (512, 4096)
SECONDS = 4.0


def crossed() -> int:
    """Return how many bytes have gone through the device, both ways."""
    device = psutil.net_io_counters(pernic=True)["here"]
    return device.bytes_recv + device.bytes_sent


def measure(client: Client, size: int, wire_dtype: str | None) -> tuple[str, ...]:
    """Train for some seconds; return a row of the table."""
    with psnb.ParameterServerStrategy(client, wire_dtype=wire_dtype) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        data = coordinator.create_per_worker_resource(
            lambda: clicks.batches(size, psnb.worker_index())
        )
        step = clicks.jax_step(strategy)

        run_for(2, coordinator, step, data)  # compiles
        # The server's process has another number here than where it runs.
        ours = {pid: role for pid, role in roles(client, strategy).items() if role != "server"}
        server = strategy.server_addresses[0]
        before, cpu = crossed(), sum(cpu_seconds(ours).values())
        cpu_there = client.run(time.process_time, workers=[server])[server]
        steps = run_for(SECONDS, coordinator, step, data)
        there = client.run(time.process_time, workers=[server])[server] - cpu_there
        here, size_ = sum(cpu_seconds(ours).values()) - cpu, crossed() - before
        return (
            f"{size}",
            wire_dtype or "float32",
            f"{size_ / steps / 1e6:.2f}",
            f"{here / steps * 1e3:.2f}",
            f"{there / steps * 1e3:.2f}",
        )


def main(folder: Path) -> None:
    """Make the two networks and measure."""
    table = Table(
        *("batch", "on the wire", "MB a step", "worker and notebook, ms", "server, ms"),
        title="wide & deep, one worker, a server on another host: CPU time a step",
    )
    with linked(*OWN_PROCESSES) as link:
        cluster = CommandLine(folder, HERE)
        with (
            cluster.scheduler(),
            cluster.worker(
                *("--resources", "ps=1", "--no-nanny"), where=("--host", THERE), before=link.enter
            ),
            cluster.worker("--no-nanny", where=("--host", HERE)),
            connected(cluster.file) as client,
        ):
            client.wait_for_workers(2, timeout=DEADLINE)
            for size in SIZES:
                for wire_dtype in (None, "float16"):
                    table.add_row(*measure(client, size, wire_dtype))
    Console().print(table)


if __name__ == "__main__":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            subprocess.run([*APART, sys.executable, "-m", __spec__.name, temporary], check=True)
