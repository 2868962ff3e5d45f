"""Where the CPU time of a training step goes: ``make profile``.

Trains wide & deep with `psnb.jax` on two workers and a server, one step a closure, while py-spy
samples the stacks of all processes. What each process really used is read from the system, and the
samples only divide it: a thread that waits for a core counts as working in them. The folder
``profile`` gets a flame graph for each size of batches, and the stacks. Printed is a table for each
process: milliseconds a step by the Python function that was running, or that had called C.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import psutil
from distributed import Client
from rich.console import Console
from rich.table import Table

import psnb
from tests.benchmarks import clicks
from tests.benchmarks.running import run_for

SIZES = (512, 4096)
FOLDER = Path("profile")
SECONDS, RATE = 10, 200
SHOWN = 0.02
"""Milliseconds a step from which a function or a thread is listed."""

_PROCESS = re.compile(r"process (\d+):")
_THREAD = re.compile(r"thread \((\d+)\): (.*)")
_LINE = re.compile(r":\d+\)$")
_WAITING = ("EpollSelector.select", "DeferInterrupts.sleep", "Condition.wait", "Connection._recv")
"""Functions that wait; py-spy cannot always tell. Their own cost is divided among the others."""


def roles(client: Client, strategy: psnb.ParameterServerStrategy) -> dict[int, str]:
    """Return what each process is."""
    servers = strategy.server_addresses
    found = {
        pid: "server" if address in servers else "worker"
        for address, pid in client.run(os.getpid).items()
    }
    return {os.getpid(): "notebook and scheduler", **found}


def cpu_seconds(pids: dict[int, str]) -> dict[int, float]:
    """Return the CPU time of each thread of some processes."""
    return {
        thread.id: thread.user_time + thread.system_time
        for pid in pids
        for thread in psutil.Process(pid).threads()
    }


class Thread:
    """What was seen of the threads of one name, in processes of one kind."""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.functions: Counter[str] = Counter()


def threads(stacks: Path, pids: dict[int, str]) -> dict[str, Thread]:
    """Return what was running, by process and thread."""
    found: dict[str, Thread] = defaultdict(Thread)
    for line in stacks.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        # A process that has another one as its parent comes after that one.
        pid = [int(match[1]) for frame in frames if (match := _PROCESS.match(frame))][-1]
        name = next(match for frame in frames if (match := _THREAD.match(frame)))
        if pid in pids:
            thread = found[f"{pids[pid]}, {re.sub(r'[-_ ]?[0-9]+$', '', name[2])}"]
            thread.ids.add(int(name[1]))
            function = _LINE.sub(")", frames[-1])
            if not function.startswith(_WAITING):
                thread.functions[function] += int(count)
    return found


def profile(size: int, console: Console) -> None:
    """Train on batches of a size, and print the tables."""
    with (
        psnb.local_cluster(workers=2, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        data = coordinator.create_per_worker_resource(
            lambda: clicks.batches(size, psnb.worker_index())
        )
        step = clicks.jax_step(strategy)

        def train(seconds: float) -> int:
            return run_for(seconds, coordinator, step, data, together=40)

        train(3)
        pids = roles(client, strategy)
        before, begin = cpu_seconds(pids), time.monotonic()
        steps = train(SECONDS)
        elapsed, after = time.monotonic() - begin, cpu_seconds(pids)
        stacks = {}
        for form, suffix in ("raw", "txt"), ("flamegraph", "svg"):
            stacks[form] = FOLDER / f"step-{size}.{suffix}"
            command = ["py-spy", "record", "--pid", str(os.getpid()), "--subprocesses"]
            command += ["--format", form, "--duration", str(SECONDS), "--rate", str(RATE)]
            with subprocess.Popen(
                [*command, "--threads", "--output", str(stacks[form])],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as recording:
                while recording.poll() is None:
                    train(0.1)
    used = {tid: (now - before.get(tid, 0.0)) / steps * 1e3 for tid, now in after.items()}
    total = sum(used.values())
    table = Table(
        *("ms a step", "thread", "function"),
        title=f"batch {size}: {steps / elapsed:,.0f} steps/s, {total:.2f} ms of CPU time a step",
    )
    for name, thread in threads(stacks["raw"], pids).items():
        own = sum(used.pop(tid, 0.0) for tid in thread.ids)
        for function, count in thread.functions.most_common():
            share = own * count / thread.functions.total()
            if share >= SHOWN:
                table.add_row(f"{share:.2f}", name, function)
        if own >= SHOWN:
            table.add_row(f"{own:.2f}", name, "all", end_section=True)
    table.add_row(f"{sum(used.values()):.2f}", "threads that run no Python", "")
    console.print(table, f"see {stacks['flamegraph']}")


def main() -> None:
    """Profile each size that is named."""
    # A thread for each worker: two of them would take two cores from each other and the server.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    FOLDER.mkdir(exist_ok=True)
    for size in [int(each) for each in sys.argv[1:]] or SIZES:
        profile(size, Console(width=140))


if __name__ == "__main__":
    main()
