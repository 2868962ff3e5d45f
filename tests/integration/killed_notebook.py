"""A notebook that trains with two workers and two servers, to be killed and started again.

``python -m tests.integration.killed_notebook KIND DIRECTORY RESULT`` goes on from what is in the
directory; it prints a line when it trains, and writes the parameters when it is done.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client

import psnb
from psnb import data

STEPS = 240
ROWS = 600
EPOCHS = 2


def gradients(number: int, w: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what a step makes of what it has read: any difference grows."""
    noise = np.random.default_rng(number).normal(size=w.shape)
    return np.sin(3 * w) + noise, np.cos(5 * rows) * w.sum() / 7


def ids_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(1 << 40, size=6) % 50


def rounds(client: Client, directory: Path) -> dict[str, Any]:
    """Train in rounds, with closures that have their numbers; `psnb.resume` makes all again."""
    if any(directory.glob("ckpt-*")):
        resumed = psnb.resume(directory, client)
        coordinator, done = resumed.coordinator, resumed.closures
        parameters = resumed.strategy.parameters
        w, ads = parameters["w"], parameters["ads"]
        assert isinstance(w, psnb.Variable)
        assert isinstance(ads, psnb.Embedding)
    else:
        strategy = psnb.ParameterServerStrategy(client, mode=psnb.Sync(2))
        schedule = psnb.CosineDecay(0.05, STEPS)
        w = strategy.variable(np.zeros((5, 3)), name="w", optimizer=psnb.Adam(schedule))
        ads = strategy.embedding("ads", 4, optimizer=psnb.Adagrad(0.1), dtype=np.float64)
        coordinator, done = psnb.ClusterCoordinator(strategy), 0
    psnb.CheckpointManager(coordinator, directory, steps=6)

    def step(number: int) -> None:
        ids = ids_of(number)
        dense, sparse = gradients(number, w.read(), ads.lookup(ids))
        w.push(dense)
        ads.push(ids, sparse)
        time.sleep(0.005)

    coordinator.map(step, range(done, STEPS))
    print("trains", done, flush=True)
    while not coordinator.done():
        time.sleep(0.01)
    return {"w": w.read().tolist(), "ads": ads.lookup(np.arange(50), training=False).tolist()}


def trainer(client: Client, directory: Path) -> dict[str, Any]:
    """Train asynchronously with a trainer; each example counts itself."""
    strategy = psnb.ParameterServerStrategy(client)
    visits = strategy.embedding("visits", 1, ROWS, initializer=0.0, optimizer=psnb.SGD(1.0))
    coordinator = psnb.ClusterCoordinator(strategy)

    def step(iterator: Iterator[Any]) -> None:
        ids = next(iterator)
        visits.push(ids, -np.ones((len(ids), 1), np.float32))
        psnb.report(examples=len(ids), loss=float(ids.mean()))
        time.sleep(0.01)

    manager = psnb.CheckpointManager(coordinator, directory, every="0.1 s")
    trains = psnb.Trainer(coordinator, step, checkpoint=manager, resume=True)

    class Telling(psnb.Callback):
        def on_begin(self, trainer: psnb.Trainer) -> None:
            print("trains", trainer.history.state["epoch"], flush=True)

    history = trains.train_from_dataset(
        data.Dataset.range(ROWS).shuffle(100).batch(5), EPOCHS, callbacks=[Telling()]
    )
    print("stopped" if history.stopped else "ended", flush=True)
    return {
        "visits": visits.lookup(np.arange(ROWS))[:, 0].tolist(),
        "examples": history["examples"],
        "loss": history["loss"],
    }


def synchronous_trainer(client: Client, directory: Path) -> dict[str, Any]:
    """Train in rounds with a trainer, on data that one worker has in its memory."""
    strategy = psnb.ParameterServerStrategy(client, mode=psnb.Sync(2))
    w = strategy.variable(np.zeros((5, 3)), name="w", optimizer=psnb.Adam(0.05))
    ads = strategy.embedding("ads", 4, optimizer=psnb.Adagrad(0.1), dtype=np.float64)
    coordinator = psnb.ClusterCoordinator(strategy)

    def step(iterator: Iterator[Any]) -> None:
        number = int(next(iterator)[0])
        ids = ids_of(number)
        dense, sparse = gradients(number, w.read(), ads.lookup(ids))
        w.push(dense)
        ads.push(ids, sparse)
        psnb.report(examples=1, loss=float(abs(dense).sum()))
        time.sleep(0.005)

    source = data.InMemoryDataset.of(data.Dataset.range(STEPS // EPOCHS), 1)
    dataset = coordinator.create_per_worker_dataset(source, splits=1)
    dataset.load_into_memory()
    dataset.global_shuffle(7)
    manager = psnb.CheckpointManager(coordinator, directory, steps=6)
    trains = psnb.Trainer(coordinator, step, checkpoint=manager, resume=True)
    print("trains", flush=True)
    history = trains.train_from_dataset(dataset, EPOCHS)
    return {
        "w": w.read().tolist(),
        "ads": ads.lookup(np.arange(50), training=False).tolist(),
        "examples": history["examples"],
    }


KINDS = {each.__name__: each for each in (rounds, trainer, synchronous_trainer)}


def main() -> None:
    kind, directory, result = KINDS[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3])
    with psnb.local_cluster(2, 2) as client:
        found = kind(client, directory)
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        main()
