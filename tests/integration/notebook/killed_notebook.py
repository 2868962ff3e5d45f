"""A notebook that trains with two servers, to be killed and started again.

``python -m tests.integration.notebook.killed_notebook KIND DIRECTORY RESULT WORKERS`` goes on from
what is in the directory, on a local cluster of as many workers; it prints a line when it trains,
and writes the parameters when it is done. It does not end while there is a file `unfinished`: so it
can be killed while it trains, however fast it is.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

import psnb
from psnb import data

STEPS = 96
ROWS = 600
EPOCHS = 2


Learned = dict[str, Any]


def placed(strategy: psnb.ParameterServerStrategy) -> tuple[psnb.Variable, psnb.Embedding]:
    """Make the parameters."""
    schedule = psnb.CosineDecay(0.05, STEPS)
    return (
        strategy.variable(np.zeros((5, 3)), name="w", optimizer=psnb.Adam(schedule)),
        strategy.embedding("ads", 4, optimizer=psnb.Adagrad(0.1), dtype=np.float64),
    )


def unfinished(directory: Path) -> Path:
    """Return the file that lets training in a directory wait at its end."""
    return directory.with_name(f"{directory.name} unfinished")


def waiting(directory: Path) -> Path:
    """Return the file that says that it does."""
    return directory.with_name(f"{directory.name} waiting")


def ends(directory: Path) -> None:
    """Wait, in one of the last closures, until training may end."""
    while unfinished(directory).exists():
        waiting(directory).touch()
        time.sleep(0.01)


def train(w: psnb.Variable, ads: psnb.Embedding, number: int) -> None:
    """Make a step of what was read, so that any difference grows."""
    random = np.random.default_rng(number)
    ids, noise = random.integers(50, size=6), random.normal(size=w.shape)
    value, rows = w.read(), ads.lookup(ids)
    w.push(np.sin(3 * value) + noise)
    ads.push(ids, np.cos(5 * rows) * value.sum() / 7)
    time.sleep(0.005)


def learned(w: psnb.Variable, ads: psnb.Embedding) -> Learned:
    """Return all that was learned."""
    rows = ads.lookup(np.arange(50), training=False)
    return {"w": w.read().tolist(), "ads": rows.tolist()}


def synchronous_epoch(client: Client, directory: Path) -> Learned:
    """Train one epoch of leased data in rounds of three; `psnb.resume` makes all again."""
    if any(directory.glob("ckpt-*")):
        resumed = psnb.resume(directory, client)
        strategy, epochs = resumed.strategy, list(resumed.epochs)
    else:
        strategy, epochs = psnb.ParameterServerStrategy(client, mode=psnb.Sync(3)), [None]
        placed(strategy)
    with strategy:
        w, ads = strategy.parameters["w"], strategy.parameters["ads"]
        assert isinstance(w, psnb.Variable)
        assert isinstance(ads, psnb.Embedding)

        def step(iterator: Iterator[Any]) -> None:
            ids = next(iterator)
            if 2 * ROWS - 1 in ids:
                ends(directory)
            train(w, ads, int(ids[0]) + psnb.worker_context().closure)

        coordinator = psnb.ClusterCoordinator(strategy)
        psnb.CheckpointManager(coordinator, directory, steps=8)
        numbers = data.Dataset.range(2 * ROWS).shuffle(99, seed=5).batch(5)
        dataset = coordinator.create_per_worker_dataset(numbers, sharding="dynamic")
        print("trains", flush=True)
        for state in epochs:  # none, if it was over
            coordinator.run_epoch(step, dataset.iterator(state))
        return learned(w, ads)


def asynchronous_trainer(client: Client, directory: Path) -> dict[str, Any]:
    """Train asynchronously with a trainer; each example counts itself."""
    with psnb.ParameterServerStrategy(client) as strategy:
        visits = strategy.embedding("visits", 1, ROWS, initializer=0.0, optimizer=psnb.SGD(1.0))
        coordinator = psnb.ClusterCoordinator(strategy)

        def step(iterator: Iterator[Any]) -> None:
            ids = next(iterator)
            if ROWS - 1 in ids:
                ends(directory)
            visits.push(ids, -np.ones((len(ids), 1), np.float32))
            psnb.report(examples=len(ids), loss=float(ids.mean()))
            time.sleep(0.01)

        manager = psnb.CheckpointManager(coordinator, directory, every="0.1 s")
        trainer = psnb.Trainer(coordinator, step, checkpoint=manager, resume=True)
        print("trains", flush=True)
        history = trainer.train_from_dataset(data.Dataset.range(ROWS).shuffle(99).batch(5), EPOCHS)
        return {
            "visits": visits.lookup(np.arange(ROWS))[:, 0].tolist(),
            "examples": history["examples"],
            "loss": history["loss"],
        }


KINDS = {each.__name__: each for each in (synchronous_epoch, asynchronous_trainer)}


def main() -> None:
    _, kind, directory, result, workers = sys.argv
    with psnb.local_cluster(int(workers), 2) as client:
        found = KINDS[kind](client, Path(directory))
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
