"""Epochs over data in the memory of workers that die, or of Dask: each example once an epoch."""

from __future__ import annotations

import time
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd

import psnb
from psnb import errors
from psnb.data import Dataset, InMemoryDataset
from tests.soak.chaos import Chaos
from tests.soak.notebook import PATIENCE, ViolationError
from tests.soak.processes import LocalProcesses
from tests.soak.table import Row

_EXAMPLES, _BATCH = 10_000, 16


def run_epochs(row: Row, rng: np.random.Generator, seconds: float) -> None:
    """Run epochs for so long, and count the examples; half of them over a frame of Dask."""
    with (
        psnb.local_cluster(workers=3, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy, heartbeat_timeout=PATIENCE)
        # Half width of 11 bits has all numbers up to 2,048.
        visits = strategy.embedding(
            *("visits", 1, _EXAMPLES, 0.0, psnb.SGD(1.0)),
            dtype=str(rng.choice(["float32", "float16"])),
            storage=str(rng.choice(["memory", "disk"])),
        )
        dataset: Any = coordinator.create_per_worker_dataset(
            InMemoryDataset.of(Dataset.range(_EXAMPLES), _BATCH)
        )

        def step(iterator: Any) -> None:
            batch = next(iterator)
            ids = batch["id"] if isinstance(batch, dict) else batch
            visits.push(ids, -np.ones((len(ids), 1), np.float32))

        def insist(act: Any) -> None:
            while True:
                try:
                    return act()
                except errors.WorkerLostError:
                    continue  # by chance too often for its retries

        begin, number = time.monotonic(), 0
        harm = {"worker": 2.0, "freeze worker": 4.0}
        with Chaos(LocalProcesses(client), rng.spawn(1)[0], harm, row):
            insist(dataset.load_into_memory)
            while time.monotonic() < begin + seconds:
                if rng.random() < 0.5:
                    iterator = iter(_of_dask(coordinator, rng))
                else:
                    insist(dataset.global_shuffle)
                    iterator = iter(dataset)
                insist(lambda it=iterator: coordinator.run_epoch(step, it))
                number += 1
                counts = np.unique(visits.lookup(np.arange(_EXAMPLES))).tolist()
                if counts != [number]:
                    raise ViolationError(f"after {number} epochs examples were used {counts} times")
        row.seconds += time.monotonic() - begin
        row.closures += coordinator.statistics().completed
        row.note = f"{number} epochs"


def _of_dask(coordinator: psnb.ClusterCoordinator, rng: np.random.Generator) -> Any:
    """Return a dataset of a frame that is persisted or not, often in parts of partitions."""
    ids = pd.DataFrame({"id": np.arange(_EXAMPLES)})
    frame = dd.from_pandas(ids, npartitions=int(rng.integers(1, 13)))
    strategy = coordinator.strategy
    if rng.random() < 0.5:
        workers = strategy.worker_addresses or None  # all may be dead at the moment
        frame = strategy.client.persist(frame, workers=workers, allow_other_workers=True)
    rows: Any = Dataset.from_dask(frame)
    if rng.random() < 0.5:
        rows = rows.shuffle(50)
    splits = int(rng.choice([3, 30, 300]))
    return coordinator.create_per_worker_dataset(
        rows.batch(_BATCH), sharding="dynamic", splits=splits
    )
