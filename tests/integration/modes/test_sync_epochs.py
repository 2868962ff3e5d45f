"""Epochs of leased data in rounds: the same to the bit, whoever is slow, dies, or is missing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import data
from psnb.errors import PsnbError
from tests.conftest import wait_until
from tests.integration.helpers import Ending, wait_for_file, wait_until_ready
from tests.integration.notebook.killed_notebook import Learned, learned, placed, train

BATCHES = data.Dataset.range(230).shuffle(40, seed=7).batch(5)

Between = Callable[[int, list[int]], None]
"""Is called in a closure, with its number and what it takes, before it pushes."""


def nothing(number: int, batch: list[int]) -> None:
    """Do nothing between."""


def trained(
    client: Client,
    between: Callable[[psnb.ClusterCoordinator], Between] = lambda coordinator: nothing,
    dataset: Any = BATCHES,
    round_size: int = 2,
    **how: Any,
) -> Learned:
    """Train two epochs with a trainer, and return all that was learned."""
    with psnb.ParameterServerStrategy(client, mode=psnb.Sync(round_size)) as strategy:
        w, ads = placed(strategy)
        coordinator = psnb.ClusterCoordinator(strategy)
        meet = between(coordinator)

        def step(iterator: Iterator[Any]) -> None:
            batch = list(map(int, next(iterator, ())))
            meet(psnb.worker_context().closure, batch)
            if batch:
                train(w, ads, batch[0])

        trainer = psnb.Trainer(coordinator, step, psnb.Hogwild(threads=2))
        trainer.train_from_dataset(dataset, 2, **how)
        return learned(w, ads)


def slowing(index: int, folder: Path) -> Callable[[psnb.ClusterCoordinator], Between]:
    """Have closures of a worker wait until the other one of their round has ended."""
    folder.mkdir()

    def meet(number: int, batch: list[int]) -> None:
        if psnb.worker_index() == index and number < 40:  # as long as both workers have a slot
            wait_for_file(folder / str(number ^ 1))
        (folder / str(number)).touch()

    def when_all_are_there(coordinator: psnb.ClusterCoordinator) -> Between:
        wait_until_ready(coordinator, "worker-0", "worker-1")
        return meet

    return when_all_are_there


@pytest.mark.second_tier("a worker that goes in the middle is in the first tier")
def test_it_is_the_same_whichever_worker_is_slow(cluster: Client, tmp_path: Path) -> None:
    found = [trained(cluster, slowing(index, tmp_path / str(index))) for index in (0, 1)]
    assert found[0] == found[1]


SECOND = pytest.mark.second_tier("the other ways to go, and test_in_memory_faults has deaths")


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("leased", "killed"),
        pytest.param("in memory", "retired", marks=SECOND),
        pytest.param("leased", "retired", marks=SECOND),
        pytest.param("in memory", "killed", marks=SECOND),
    ],
)
def test_it_is_the_same_when_a_worker_goes_in_the_middle(
    cluster: Client, whole: Client, tmp_path: Path, how: str, kind: str
) -> None:
    dataset: Any = data.InMemoryDataset.of(data.Dataset.range(230), 5)
    if kind == "leased":
        dataset = BATCHES
    ending: list[Ending] = []

    def ends(coordinator: psnb.ClusterCoordinator) -> Between:
        ending.append(Ending(coordinator, tmp_path, how).__enter__())
        wait = ending[0].wait

        def meet(number: int, batch: list[int]) -> None:
            if 115 in batch:
                wait()

        return meet

    undisturbed = trained(cluster, dataset=dataset)
    assert trained(whole, ends, dataset) == undisturbed
    ending[0].__exit__()


@pytest.mark.parametrize("rows", [3, 31])
def test_rounds_are_full_also_with_fewer_parts_than_lanes(
    cluster: Client, tmp_path: Path, rows: int
) -> None:
    (tmp_path / "numbers").write_text("number\n" * rows)
    lines = data.Dataset.text_lines([tmp_path / "numbers"]).batch(1)
    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(4)) as strategy:
        rounds = strategy.variable(np.zeros(()), optimizer=psnb.SGD(1.0))
        coordinator = psnb.ClusterCoordinator(strategy)
        dataset = coordinator.create_per_worker_dataset(lines, sharding="dynamic", splits=1)

        def step(iterator: Iterator[Any]) -> None:
            next(iterator)
            rounds.push(np.array(-1.0))

        assert coordinator.run_epoch(step, iter(dataset)).visits == rows
        assert rounds.read() == -(-rows // 4)


@pytest.mark.second_tier(
    "each moment of a round; a worker that goes in the middle is in the first tier"
)
def test_a_background_save_at_any_moment_ends_no_round_early(
    cluster: Client, tmp_path: Path
) -> None:
    undisturbed = trained(cluster)
    threads: list[threading.Thread] = []
    over = threading.Event()

    def enough() -> bool:
        return len([*tmp_path.glob("ckpt-*")]) >= 3

    def saves(coordinator: psnb.ClusterCoordinator) -> Between:
        manager = psnb.CheckpointManager(coordinator, tmp_path)

        def slowly(number: int, batch: list[int]) -> None:
            if not enough():
                threading.Event().wait(0.05)

        def save() -> None:
            with suppress(PsnbError):  # in the end the strategy is closed
                while not over.is_set():
                    manager.save()

        threads.extend(threading.Thread(target=save) for _ in range(2))
        for each in threads:
            each.start()
        return slowly

    class Waiting(psnb.Callback):
        def on_epoch(self, trainer: psnb.Trainer, row: psnb.EpochRow) -> None:
            wait_until(enough, "much is saved")

    try:
        assert trained(cluster, saves, callbacks=[Waiting()]) == undisturbed
    finally:
        over.set()
        for each in threads:
            each.join()


@pytest.mark.second_tier("a worker that goes in the middle is in the first tier")
# Last: it closes clusters of this process, after which closures of others cannot read ahead.
def test_it_is_the_same_with_other_numbers_of_workers(cluster: Client) -> None:
    found = [trained(cluster, round_size=3)]
    for workers in (1, 3):
        with psnb.local_cluster(workers, 2, processes=False) as client:
            found.append(trained(client, round_size=3))
    assert found[0] == found[1] == found[2]
