"""Workers die while they have partitions of Dask, and partitions that cannot be computed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from distributed.client import futures_of

import psnb
from psnb.data import Dataset
from psnb.errors import DatasetError
from tests.conftest import wait_until
from tests.integration.data.test_leases import numbers, visits_of
from tests.integration.helpers import closure_workers, kill_myself, pid_of, wait_until_gone

PARTITIONS, EACH = 8, 50
ROWS = PARTITIONS * EACH
PROCESSES = True

AGAIN = pytest.mark.second_tier("the same deaths, of the other kind of collection")


class Rows(list[int]):
    """Kill, once, the worker that sends them to another."""

    def __init__(self, rows: list[int], once: str) -> None:
        super().__init__(rows)
        self._once = once

    def __reduce__(self) -> Any:
        kill_once(self._once, "sends")
        return list, (list(self),)


def kill_once(folder: str, when: str) -> None:
    """Kill this process if a file says so, and no other was killed before."""
    with suppress(FileNotFoundError):  # two may come here at the same moment
        (Path(folder) / when).rename(Path(folder) / "killed")
        kill_myself()


def rows_of(number: int, folder: str) -> Rows:
    if number == 5:
        kill_once(folder, "computes")
    return Rows(list(range(number * EACH, (number + 1) * EACH)), folder)


def counting_step(visits: psnb.Embedding, folder: str) -> Callable[[Iterator[Any]], None]:
    def step(iterator: Iterator[Any]) -> None:
        ids = next(iterator)
        visits.push(ids, -np.ones((len(ids), 1), np.float32))
        if len(ids) < 20:  # in the middle of a partition
            kill_once(folder, "steps")

    return step


@pytest.mark.parametrize(
    ("when", "persisted"),
    [
        ("computes", False),
        ("sends", True),
        ("steps", True),
        pytest.param("computes", True, marks=AGAIN),
        pytest.param("steps", False, marks=AGAIN),
    ],
)
def test_every_row_is_used_once_though_a_worker_is_killed(
    whole: Client, tmp_path: Path, when: str, persisted: bool
) -> None:
    folder = str(tmp_path)
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        visits = visits_of(strategy, ROWS)
        rows: Any = [dask.delayed(rows_of)(number, folder) for number in range(PARTITIONS)]
        if persisted:
            # All on one worker, so that the other fetches some.
            first = strategy.worker_addresses[0]
            rows = whole.persist(rows, workers=[first], allow_other_workers=True)
            if when != "computes":
                wait_until(lambda: all(each.done() for each in futures_of(rows)), "persisted")
        data = Dataset.from_dask(rows).shuffle(10).batch(20)
        dataset = coordinator.create_per_worker_dataset(data, sharding="dynamic")
        (tmp_path / when).touch()
        step, iterator = counting_step(visits, folder), iter(dataset)
        if when == "sends":  # the other worker finds it busy, and fetches
            other = list(closure_workers(strategy).values())[1]

            def sent() -> bool:
                coordinator.schedule(step, (iterator,), worker=other)
                coordinator.join()
                return (tmp_path / "killed").exists()

            wait_until(sent, "a worker was killed that sends a partition")
        coordinator.run_epoch(step, iterator)
        assert (tmp_path / "killed").exists()
        assert numbers(visits, ROWS) == [1] * ROWS


def test_a_partition_that_comes_out_otherwise_when_computed_again_is_refused(
    whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        rows = dask.delayed(np.random.default_rng)  # without a seed
        address, name = next(iter(closure_workers(strategy).items()))
        (kept,) = whole.persist([rows().random(1000)], workers=[address], allow_other_workers=True)
        dataset = coordinator.create_per_worker_dataset(
            Dataset.from_dask([kept]).batch(10), sharding="dynamic", splits=1
        )

        def step(iterator: Iterator[Any]) -> None:
            next(iterator)

        iterator = iter(dataset)
        coordinator.schedule(step, (iterator,), worker=name).fetch()
        os.kill(pid_of(whole, name), 9)
        wait_until_gone(coordinator, name)
        with pytest.raises(DatasetError, match=r"computed again, and has other rows.*random_state"):
            coordinator.run_epoch(step, iterator)


def test_partitions_are_computed_again_where_all_workers_were_started_again(
    whole: Client, tmp_path: Path
) -> None:
    # Dask is told addresses, and a process that is started again has another one.
    folder = str(tmp_path)
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        visits = visits_of(strategy, ROWS)
        rows = [dask.delayed(rows_of)(number, folder) for number in range(PARTITIONS)]
        dataset = coordinator.create_per_worker_dataset(
            Dataset.from_dask(rows).batch(10), sharding="dynamic"
        )
        iterator = iter(dataset)
        step = counting_step(visits, folder)
        coordinator.schedule(step, (iterator,)).fetch()
        names = sorted(strategy.worker_names())
        for pid in [pid_of(whole, name) for name in names]:
            os.kill(pid, 9)
        wait_until_gone(coordinator, *names)
        coordinator.run_epoch(step, iterator)
        assert numbers(visits, ROWS) == [1] * ROWS


def test_an_error_of_a_partition_is_that_of_its_graph(whole: Client) -> None:
    rows = [dask.delayed(range)(3), dask.delayed(int)("x")]
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        dataset = coordinator.create_per_worker_dataset(Dataset.from_dask(rows), sharding="dynamic")
        with pytest.raises(DatasetError, match=r"could not compute partition 1: ValueError: .*'x'"):
            coordinator.run_epoch(next, iter(dataset))
