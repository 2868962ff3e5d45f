"""Datasets in the memory of workers that die, leave, join, or have no room."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.data.memory.memory import Memory
from psnb.data import Dataset, InMemoryDataset
from psnb.errors import DatasetError
from tests.conftest import DEADLINE, wait_until
from tests.integration.data.test_leases import numbers, visits_of
from tests.integration.helpers import Ending

COUNT = 2000


def examples(source: Dataset | None = None, **more: Any) -> InMemoryDataset:
    return InMemoryDataset.of(Dataset.range(COUNT) if source is None else source, 10, **more)


def run_epoch(coordinator: psnb.ClusterCoordinator, made: Any, step: Callable[..., None]) -> None:
    assert coordinator.run_epoch(step, iter(made)).over


def counting(visits: psnb.Embedding) -> Callable[..., None]:
    def step(iterator: Any) -> None:
        ids = next(iterator)
        visits.push(ids, -np.ones((len(ids), 1), np.float32))

    return step


@pytest.fixture
def ending(whole: Client, tmp_path: Path) -> Any:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        yield Ending(coordinator, tmp_path, "killed"), strategy, coordinator


def test_a_worker_that_goes_in_an_epoch_costs_no_example_and_doubles_none(ending: Any) -> None:
    end, strategy, coordinator = ending
    wait = end.wait
    visits = visits_of(strategy, COUNT)
    made = coordinator.create_per_worker_dataset(examples())
    made.load_into_memory()
    made.global_shuffle(1)
    made.local_shuffle(2)

    def step(iterator: Any) -> None:
        ids = next(iterator)
        visits.push(ids, -np.ones((len(ids), 1), np.float32))
        if 1000 in ids:
            wait()

    with end:
        run_epoch(coordinator, made, step)
    assert numbers(visits, COUNT) == [1] * COUNT
    # What it had is made again, for good.
    run_epoch(coordinator, made, counting(visits))
    assert numbers(visits, COUNT) == [2] * COUNT
    assert made.statistics().missing == 0


def test_a_worker_that_goes_while_it_loads_costs_nothing(ending: Any) -> None:
    end, strategy, coordinator = ending
    wait = end.wait
    visits = visits_of(strategy, COUNT)

    def read(n: int) -> int:
        if n == 1234:
            wait()
        return n

    made = coordinator.create_per_worker_dataset(examples(Dataset.range(COUNT).map(read)))
    with end:
        made.load_into_memory()
    run_epoch(coordinator, made, counting(visits))
    assert numbers(visits, COUNT) == [1] * COUNT


def test_a_worker_that_goes_in_a_shuffle_costs_nothing(ending: Any) -> None:
    end, strategy, coordinator = ending
    wait = end.wait
    visits = visits_of(strategy, COUNT)
    made = coordinator.create_per_worker_dataset(examples())
    made.load_into_memory()

    def wait_in_a_shuffle(mine: Memory) -> None:
        real = mine._store.chunks

        def chunks(*arguments: Any) -> Any:
            wait()
            return real(*arguments)

        mine._store.chunks = chunks  # type: ignore[method-assign]

    coordinator.schedule(wait_in_a_shuffle, (made._memory,), worker=0).fetch(DEADLINE)
    with end:
        made.global_shuffle()
    assert made.statistics().examples == COUNT
    run_epoch(coordinator, made, counting(visits))
    assert numbers(visits, COUNT) == [1] * COUNT


def test_a_worker_that_was_started_again_before_a_step_of_a_shuffle_costs_nothing(
    whole: Client,
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        visits = visits_of(strategy, COUNT)
        made: Any = coordinator.create_per_worker_dataset(examples())
        made.load_into_memory()
        real, killed = made._stores.ask, []

        def ask(calls: Any) -> Any:
            calls = list(calls)
            if calls[0][1].__name__ == "scatter" and not killed:
                killed.append(coordinator.schedule(os.getpid, worker=0).fetch(DEADLINE))
                os.kill(killed[0], signal.SIGKILL)
                wait_until(
                    lambda: (
                        killed[0] not in whole.run(os.getpid, on_error="ignore").values()
                        and [each.state for each in coordinator.statistics().workers]
                        == ["ready"] * 2
                    ),
                    "the worker was started again",
                )
            return real(calls)

        made._stores.ask = ask
        made.global_shuffle()
        assert killed
        run_epoch(coordinator, made, counting(visits))
        assert numbers(visits, COUNT) == [1] * COUNT


def test_what_was_lost_between_epochs_is_made_again(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        visits = visits_of(strategy, COUNT)
        made: Any = coordinator.create_per_worker_dataset(examples())
        made.load_into_memory()
        made.global_shuffle(3)
        held = made.statistics()
        pid = coordinator.schedule(os.getpid, worker=0).fetch(DEADLINE)
        os.kill(pid, signal.SIGKILL)
        run_epoch(coordinator, made, counting(visits))
        assert numbers(visits, COUNT) == [1] * COUNT
        assert made.statistics().examples == held.examples == COUNT


def test_a_shuffle_without_room_says_so_and_changes_nothing(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, COUNT)
    made: Any = coordinator.create_per_worker_dataset(examples())
    made.load_into_memory()

    def change_room(mine: Memory, limit: int) -> None:
        store = mine._store
        # A folder that cannot be made.
        nowhere = "/no/such/place"
        parent = store._parent.removesuffix(nowhere)
        store._parent = parent + nowhere if limit == 1 else parent
        store._limit = limit

    coordinator.schedule(change_room, (made._memory, 1), worker=1).fetch(DEADLINE)
    with pytest.raises(DatasetError, match="raise memory_limit"):
        made.global_shuffle()
    coordinator.schedule(change_room, (made._memory, 1 << 30), worker=1).fetch(DEADLINE)
    run_epoch(coordinator, made, counting(visits))
    assert numbers(visits, COUNT) == [1] * COUNT
    made.global_shuffle()
    run_epoch(coordinator, made, counting(visits))
    assert numbers(visits, COUNT) == [2] * COUNT


def test_a_global_shuffle_spreads_over_workers_that_have_joined() -> None:
    with (
        psnb.local_cluster(workers=2, servers=1, processes=False) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        made: Any = coordinator.create_per_worker_dataset(examples(), splits=6)
        made.load_into_memory()
        coordinator.add_worker()
        wait_until(lambda: len(coordinator.statistics().workers) == 3, "a third worker")
        made.global_shuffle()
        now = made.statistics()
        assert [len(each.partitions) for each in now.workers.values()] == [2, 2, 2]
        assert now.examples == COUNT


def test_nothing_is_left_on_the_workers_when_the_dataset_is_gone(
    cluster: Client, coordinator: psnb.ClusterCoordinator
) -> None:
    def folders() -> set[str]:
        def find(dask_worker: Any) -> list[str]:
            return [str(path) for path in Path(dask_worker.local_directory).glob("psnb-dataset-*")]

        return {path for found in cluster.run(find).values() for path in found}

    before = folders()  # of other tests: they go when the workers collect garbage
    made: Any = coordinator.create_per_worker_dataset(examples(memory_limit=1000))
    made.load_into_memory()
    made.global_shuffle()
    assert made.statistics().bytes_on_disk > 0
    assert len(folders() - before) == 2
    del made
    wait_until(lambda: not folders() - before, "the folders are gone")
