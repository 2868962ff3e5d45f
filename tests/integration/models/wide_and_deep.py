"""A wide & deep net with 26 tables, bags and repeated ids: what tests of all frameworks train.

A step is a round of two closures, of half of its batch each. So in mode `Sync` it must give what
one process gives that trains on the whole batch.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

import psnb
from psnb.data import Ragged
from tests.integration.counting import wait_until_copied
from tests.integration.helpers import kill_myself, wait_for_file

COLUMNS = tuple(f"c{number}" for number in range(24))
"""Features with one id an example, of tables of their own with `DIM` floats a row."""

TABLES = (*COLUMNS, "words", "wide")
"""``words`` are bags; ``wide`` is one weight for each of the ids of all columns."""

ROWS, DIM, DENSE, HIDDEN = 12, 3, 4, 6
STEPS, HALF = 50, 12
RATE, SPARSE_RATE = 0.01, 0.1

Batch = dict[str, Any]
Parameters = dict[str, np.ndarray]


def dim(table: str) -> int:
    """Return the floats a row of a table."""
    return 1 if table == "wide" else DIM


def initial_tables() -> Parameters:
    """Return the first rows of all tables."""
    rng = np.random.default_rng(3)
    return {name: rng.normal(0, 0.3, (ROWS, dim(name))).astype(np.float32) for name in TABLES}


def initial_network() -> Parameters:
    """Return the first weights of the network."""
    rng = np.random.default_rng(4)
    inputs = (len(COLUMNS) + 1) * DIM + DENSE
    return {
        "first": rng.normal(0, inputs**-0.5, (inputs, HIDDEN)).astype(np.float32),
        "bias": np.zeros(HIDDEN, np.float32),
        "last": rng.normal(0, HIDDEN**-0.5, (HIDDEN, 1)).astype(np.float32),
    }


def batches(steps: int = STEPS) -> list[Batch]:
    """Return the batches of the closures, two for each step."""
    rng = np.random.default_rng(5)
    found = []
    for _ in range(2 * steps):
        ids = rng.integers(ROWS, size=(HALF, len(COLUMNS)))
        words = [rng.integers(ROWS, size=rng.integers(4)) for _ in range(HALF)]
        x = rng.normal(size=(HALF, DENSE)).astype(np.float32)
        y = (ids[:, 0] + x[:, 0] > ROWS / 2).astype(np.float32)
        found.append({"ids": ids, "words": Ragged.from_rows(words, np.int64), "x": x, "y": y})
    return found


def joined(first: Batch, second: Batch) -> Batch:
    """Return two batches as one."""
    return {
        name: Ragged.concatenate([first[name], second[name]])
        if name == "words"
        else np.concatenate([first[name], second[name]])
        for name in first
    }


def ids_of(batch: Batch) -> dict[str, Any]:
    """Return the ids of each table."""
    ids = batch["ids"]
    columns = {name: ids[:, number] for number, name in enumerate(COLUMNS)}
    return {**columns, "words": batch["words"], "wide": ids}


@contextmanager
def synchronous(client: Client, **options: Any) -> Iterator[psnb.ParameterServerStrategy]:
    """Two closures a round on all servers of a cluster; with replicas, they are there."""
    with psnb.ParameterServerStrategy(client, mode=psnb.Sync(2), **options) as strategy:
        wait_until_copied(strategy)
        yield strategy


def trained(
    strategy: psnb.ParameterServerStrategy, step: Callable[[Iterator[Batch]], float], steps: int
) -> list[float]:
    """Train on the workers, and return the loss of each step."""
    coordinator = psnb.ClusterCoordinator(strategy)
    remotes = [coordinator.schedule(step, (iter([each]),)) for each in batches(steps)]
    coordinator.join()
    losses = np.array(coordinator.fetch(remotes))
    assert coordinator.statistics().completed == 2 * steps
    return losses.reshape(-1, 2).mean(1).tolist()


def tables_of(strategy: psnb.ParameterServerStrategy, prefix: str = "") -> Parameters:
    """Return all rows of all tables."""
    return {
        name: strategy.parameters[prefix + name].lookup(np.arange(ROWS))  # type: ignore[union-attr]
        for name in TABLES
    }


def assert_close(found: Parameters, expected: Parameters) -> None:
    """Assert that all parameters are the same to 1e-5, and that they have learned something."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


class KilledOnce:
    """Kills the process that calls it, the first time that it is called anywhere."""

    def __init__(self, folder: Path) -> None:
        self._mark = folder / "killed"

    def __call__(self) -> None:
        try:
            self._mark.touch(exist_ok=False)
        except FileExistsError:
            return
        kill_myself()

    def happened(self) -> bool:
        """Return whether it has."""
        return self._mark.exists()


class ServerKilled:
    """Kills the server at an address when a closure says `wait` for the first time."""

    def __init__(self, client: Client, address: str, folder: Path) -> None:
        begun, done = folder / "begun", folder / "done"

        def wait() -> None:
            try:
                begun.touch(exist_ok=False)
            except FileExistsError:
                return
            wait_for_file(done)

        def kill() -> None:
            wait_for_file(begun)
            os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)
            done.touch()

        self.wait, self._thread = wait, threading.Thread(target=kill)

    def __enter__(self) -> ServerKilled:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
