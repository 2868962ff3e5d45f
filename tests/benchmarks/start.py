"""How long a local cluster takes to start and to close, forked and spawned, in pairs.

``python -m tests.benchmarks.start`` prints the table of docs/performance/start.md; with an argument
it takes the median of so many pairs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

# Each a notebook of its own: what is imported once stays. CPU time is that of all its processes.
NOTEBOOK = """
import importlib, json, sys, time

fork, framework = json.loads(sys.argv[1])
if framework:
    importlib.import_module(framework)
begin = time.perf_counter()
import psutil

import psnb
from psnb._src.cluster import forking

forking.FORKS = fork


def first():
    if framework:
        importlib.import_module(framework)


def cost():
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return time.perf_counter() - begin, sum(each.user + each.system for each in times)


client = psnb.local_cluster(workers=2, servers=1)
strategy = psnb.ParameterServerStrategy(client)
coordinator = psnb.ClusterCoordinator(strategy)
coordinator.schedule(first).fetch()
closure = cost()
table = strategy.embedding("table", 8, optimizer=psnb.SGD(0.1))
coordinator.schedule(lambda: table.push([1, 2], table.lookup([1, 2]))).fetch()
trained = cost()
strategy.close()
end = time.perf_counter()
client.close()
print(json.dumps([*closure, *trained, time.perf_counter() - end]))
"""

ROWS = (
    "wall time to the first closure's result",
    "CPU time of all processes until then",
    "wall time to the first trained row",
    "CPU time of all processes until then",
    "wall time of close",
)


def run(fork: bool, framework: str) -> list[float]:
    """Return seconds, one for each of `ROWS`."""
    command = [sys.executable, "-c", NOTEBOOK, json.dumps([fork, framework])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds: list[float] = json.loads(done.stdout)
    return seconds


def main(pairs: int = 5) -> None:
    """Print the table."""
    for framework in ("", "torch"):
        run(True, framework), run(False, framework)  # what is read from disks is read
        runs = [(run(True, framework), run(False, framework)) for _ in range(pairs)]
        print(f"\n| {framework or 'no framework'} | forked | spawned | ratio |")
        print("| --- | --- | --- | --- |")
        for row, name in enumerate(ROWS):
            forked, spawned = ([arms[arm][row] for arms in runs] for arm in (0, 1))
            ratio = statistics.median(a / b for a, b in zip(forked, spawned, strict=True))
            medians = [f"{statistics.median(each):.2f} s" for each in (forked, spawned)]
            print(f"| {name} | {' | '.join(medians)} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
