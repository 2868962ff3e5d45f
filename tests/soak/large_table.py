"""A large table with a copy, saved while closures run: nobody is given up, and small reads wait."""

from __future__ import annotations

import tempfile
import threading
import time

import numpy as np
import psutil

import psnb
from tests.soak.notebook import DEADLINE, ViolationError
from tests.soak.table import Row

_BYTES, _DIM = 2e9, 64
_TIMES = 6
"""It is in two servers' memory, in the notebook's and in the cache of what is written."""


def save_a_large_table(row: Row, rng: np.random.Generator, seconds: float) -> None:
    """Save it once, however long that takes."""
    nbytes = min(_BYTES, (psutil.virtual_memory().available - 1e9) / _TIMES)
    if nbytes < _BYTES / 10:
        row.note = "left out: there is too little memory"
        return
    rows = int(nbytes) // (4 * _DIM)
    with (
        tempfile.TemporaryDirectory() as folder,
        psnb.local_cluster(workers=1, servers=2) as client,
        psnb.ParameterServerStrategy(client, replicas=1) as strategy,
    ):
        small = strategy.variable(np.int64(0))
        table = strategy.embedding("table", _DIM, rows=rows, optimizer=psnb.SGD(1.0))
        end = time.monotonic() + DEADLINE
        while not all(place.synced for place in strategy._core.layout.placements):
            if time.monotonic() > end:
                raise ViolationError(f"no copy is filled: {strategy.server_events()}")
            threading.Event().wait(0.1)
        coordinator = psnb.ClusterCoordinator(strategy)

        def step(seed: int) -> None:
            ids = np.random.default_rng(seed).integers(rows, size=100)
            table.push(ids, np.ones((100, _DIM), np.float32))
            small.assign_add(np.int64(1))

        saved = threading.Event()
        begin = time.monotonic()
        waits: list[float] = []

        def train() -> None:
            while not saved.is_set():
                coordinator.schedule(step, (int(rng.integers(2**32)),)).fetch(DEADLINE)
                asked = time.monotonic()
                small.read()
                waits.append(time.monotonic() - asked)

        training = threading.Thread(target=train)
        training.start()
        try:
            psnb.CheckpointManager(coordinator, folder).save()
        finally:
            saved.set()
            training.join()
        coordinator.join(DEADLINE, progress=False)
        row.seconds += time.monotonic() - begin
        row.saves += 1
        row.closures += coordinator.statistics().completed
        row.stall = max(row.stall, *waits)
        row.note = f"{nbytes / 1e9:.1f} GB; the longest stall is that of a small read"
        if int(small.read()) != coordinator.statistics().completed:
            row.violations.append("closures do not count once")
        if events := strategy.server_events():
            row.violations.append(f"servers were given up: {[e.message for e in events]}")
