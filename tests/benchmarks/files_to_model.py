"""From MultiSlot files to trained parameters: psnb's Trainer beside Paddle's.

``python -m tests.benchmarks.files_to_model [512 4096]``. The network is that of `clicks`, with
Adagrad; text is parsed in the same run. Paddle 3.3 trains with two Hogwild threads in one process,
without a server, in the environment that `tests.benchmarks.beside` makes; see `paddle_peer`. psnb
has two workers and a server, and every batch counts exactly once. Both take each epoch's time by
the clock on the wall, after an epoch to warm up; Paddle runs before and after psnb. Printed too:
how long the CPUs of psnb's processes worked for an example, and on what closures spent their time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import psnb
from psnb.data import QueueDataset, Slot
from tests.benchmarks import clicks
from tests.benchmarks.beside import environments, plan
from tests.benchmarks.beside.talking import ROOT, PeerError

SIZES = (512, 4096)
FILES, EPOCHS = 4, 4
FIELDS = [f"s{number}" for number in range(clicks.FIELDS)]
SLOTS = [
    *(Slot(name, shape=(1,)) for name in FIELDS),
    Slot("numbers", "float32", (clicks.NUMBERS,)),
    Slot("label", shape=()),
]


def write(folder: Path) -> list[Path]:
    """Write the examples as MultiSlot text."""
    ids, numbers, labels = clicks.clicks(clicks.EXAMPLES, 3)
    files = [folder / f"part-{number}" for number in range(FILES)]
    for number, file in enumerate(files):
        with file.open("w") as out:
            for row in range(number, clicks.EXAMPLES, FILES):
                sparse = " ".join(f"1 {each}" for each in ids[row])
                dense = " ".join(f"{each:.5f}" for each in numbers[row])
                out.write(f"{sparse} {clicks.NUMBERS} {dense} 1 {labels[row]:.0f}\n")
    return files


def features(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a batch as the network takes it."""
    return {
        "ids": np.hstack([batch[name] for name in FIELDS]),
        "numbers": batch["numbers"],
        "label": batch["label"].astype(np.float32),
    }


def loss(weights: Any, rows: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
    """Return the mean loss of a batch, for JAX."""
    import jax
    import jax.numpy as jnp

    deep, wide, label = rows["deep"], rows["wide"], batch["label"]
    hidden = jnp.concatenate([deep.reshape(deep.shape[0], -1), batch["numbers"]], 1)
    hidden = jax.nn.relu(hidden @ weights[0] + weights[1])
    hidden = jax.nn.relu(hidden @ weights[2] + weights[3])
    logit = (hidden @ weights[4] + weights[5])[:, 0] + wide.sum((1, 2))
    return jnp.mean(jnp.maximum(logit, 0) - logit * label + jnp.log1p(jnp.exp(-abs(logit))))


def trainer(coordinator: psnb.ClusterCoordinator, threads: int) -> psnb.Trainer:
    """Place the parameters, and return what trains them."""
    strategy, adagrad = coordinator.strategy, psnb.Adagrad(clicks.RATE)
    start = psnb.Normal(0, 0.01)
    tables = {
        "deep": strategy.embedding("deep", clicks.DIM, clicks.ROWS, start, adagrad),
        "wide": strategy.embedding("wide", 1, clicks.ROWS, 0.0, adagrad),
    }
    weights = psnb.jax.variables(strategy, clicks.initial_weights(), adagrad)
    step = psnb.jax.step(
        loss, params=weights, tables=tables, ids=lambda b: {"deep": b["ids"], "wide": b["ids"]}
    )
    return psnb.Trainer(coordinator, step, psnb.Hogwild(threads))


def cpu_seconds() -> dict[str, float]:
    """Return the CPU time of this process and of each one that it has started."""
    me = psutil.Process()
    found: dict[str, float] = {}
    for each in (me, *me.children(recursive=True)):
        times = each.cpu_times()
        found[f"{each.name()} {each.pid}"] = times.user + times.system
    return found


def ours(size: int, files: list[Path], threads: int, console: Console) -> float:
    """Return examples a second of psnb."""
    with (
        psnb.local_cluster(workers=2, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        made = trainer(psnb.ClusterCoordinator(strategy), threads)
        dataset = QueueDataset(files, SLOTS, size).dataset.map(features)
        made.train_from_dataset(dataset)
        before = cpu_seconds()
        history = made.train_from_dataset(dataset, EPOCHS)
        used = {name: now - before.get(name, 0.0) for name, now in cpu_seconds().items()}
        if os.environ.get("PROFILE"):
            console.print(made.coordinator.phases(), made.coordinator.stages())
    done = EPOCHS * clicks.EXAMPLES
    shares = ", ".join(f"{value / done * 1e6:.1f}" for value in sorted(used.values())[::-1])
    console.print(
        f"  CPU for an example: {sum(used.values()) / done * 1e6:.1f} µs, by process {shares}"
    )
    rates = [clicks.EXAMPLES / seconds for seconds in history["seconds"]]
    console.print(f"  epochs: {', '.join(f'{rate:,.0f}' for rate in rates)}; {history['loss']}")
    return max(rates)


def paddle(size: int, folder: str) -> float | None:
    """Return examples a second of Paddle; None if it cannot be installed."""
    packages = next(peer.packages for peer in plan.PEERS if peer.module == "paddle")
    try:
        python = environments.python("paddle", packages)
    except PeerError:
        return None
    done = subprocess.run(
        [python, "-m", "tests.benchmarks.paddle_peer", f"{size} {folder}"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=600,
        env={key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"},
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Run all and print a table."""
    # A thread for each worker: two of them would take two cores from each other and the server.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    sizes = [int(each) for each in sys.argv[1:]] or SIZES
    console = Console()
    table = Table("batch", "psnb", "Paddle", "ratio", title="examples/s, text parsing included")
    with tempfile.TemporaryDirectory() as folder:
        files = write(Path(folder))
        for size in sizes:
            theirs = [paddle(size, folder)]
            begin = time.perf_counter()
            rate = max(ours(size, files, threads, console) for threads in (1, 2))
            console.print(f"  {time.perf_counter() - begin:.0f} s")
            theirs.append(paddle(size, folder))
            best = max((each for each in theirs if each is not None), default=None)
            table.add_row(
                f"{size:,}",
                f"{rate:,.0f}",
                "not installed" if best is None else f"{best:,.0f}",
                "" if best is None else f"{rate / best:.2f}",
            )
    console.print(table)


if __name__ == "__main__":
    main()
