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
from tests.integration.helpers import Ending
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


def test_it_is_the_same_when_a_worker_goes_in_the_middle(
    cluster: Client, whole: Client, tmp_path: Path
) -> None:
    ending: list[Ending] = []

    def ends(coordinator: psnb.ClusterCoordinator) -> Between:
        ending.append(Ending(coordinator, tmp_path, "killed").__enter__())
        wait = ending[0].wait

        def meet(number: int, batch: list[int]) -> None:
            if 115 in batch:
                wait()

        return meet

    undisturbed = trained(cluster)
    assert trained(whole, ends) == undisturbed
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
