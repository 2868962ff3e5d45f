"""Leased epochs over many files, and over empty ones, on real clusters."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psnb
from psnb import data, errors
from tests.integration.data.test_leases import numbers, visits_of

FILES, LINES = 40, 10
ROWS = FILES * LINES
SLOTS = [data.Slot("id", "uint64", (1,))]


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Write a day's folder: parts of 10 lines, and the mark that they are there."""
    for part in range(FILES):
        lines = [f"1 {part * LINES + line:03}\n" for line in range(LINES)]
        (tmp_path / f"part-{part:03}").write_text("".join(lines))
    (tmp_path / "_SUCCESS").touch()
    return tmp_path


def lines(folder: Path) -> data.Dataset:
    def ids(batch: Any) -> Any:
        return np.array([int(each.split()[1]) for each in batch])

    return data.Dataset.text_lines(folder / "*").batch(32).map(ids)


def slots(threads: int) -> Callable[[Path], data.Dataset]:
    def made(folder: Path) -> data.Dataset:
        queue = data.QueueDataset(folder / "*", SLOTS, 32, threads)
        return queue.dataset.map(lambda batch: batch["id"][:, 0].astype(np.int64))

    return made


CHAINS = {"lines": lines, "slots": slots(1), "slots with threads": slots(2)}


def counting(table: psnb.Embedding) -> Callable[[Any], None]:
    def step(iterator: Any) -> None:
        ids = next(iterator)
        table.push(ids, -np.ones((len(ids), 1), np.float32))
        psnb.report(examples=len(ids), whole=float(len(ids) == 32))

    return step


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_only_the_last_batch_of_each_split_is_short(
    chain: Callable[[Path], data.Dataset],
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    parts: Path,
) -> None:
    visits = visits_of(strategy, ROWS)
    dataset = coordinator.create_per_worker_dataset(chain(parts), sharding="dynamic", splits=4)
    end = coordinator.run_epoch(counting(visits), iter(dataset))
    assert end.parts == (4, 4)
    # Three of 32 and one of 4 in each split of ten files; or two of 32 and 18, one for each thread.
    assert end.visits == 16
    assert numbers(visits, ROWS) == [1] * ROWS
    assert sum(each.empty_files for each in coordinator.stages()) == 1


def test_a_trainer_takes_whole_batches_of_many_files(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, parts: Path
) -> None:
    visits = visits_of(strategy, ROWS)
    trainer = psnb.Trainer(coordinator, counting(visits))
    history = trainer.train_from_dataset(lines(parts), epochs=2)
    assert numbers(visits, ROWS) == [2] * ROWS
    # Sixteen splits, each of two or three files: 20 or 30 lines.
    assert history["batches"] == [16, 16]


def test_an_epoch_over_many_files_goes_on_from_its_state(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, parts: Path
) -> None:
    visits = visits_of(strategy, ROWS)
    step = counting(visits)
    dataset = coordinator.create_per_worker_dataset(lines(parts), sharding="dynamic", splits=4)
    iterator = iter(dataset)
    for _ in range(7):
        coordinator.schedule(step, (iterator,))
    coordinator.join()
    state = json.loads(json.dumps(iterator.state()))
    again = coordinator.create_per_worker_dataset(lines(parts), sharding="dynamic", splits=4)
    assert coordinator.run_epoch(step, again.iterator(state)).visits == 16
    assert numbers(visits, ROWS) == [1] * ROWS
    (parts / "part-999").write_text("1 7\n")
    more = coordinator.create_per_worker_dataset(lines(parts), sharding="dynamic", splits=4)
    with pytest.raises(errors.ConfigurationError, match="another dataset"):
        more.iterator(state)


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    for part in range(3):
        (tmp_path / f"part-{part}.gz").write_bytes(gzip.compress(b""))  # which shows no size
    return tmp_path


def test_an_epoch_over_nothing_but_empty_files_is_an_error(
    coordinator: psnb.ClusterCoordinator, nothing: Path
) -> None:
    said = r"all 3 files are empty, from .*part-0\.gz on"
    for each in CHAINS.values():
        dataset = coordinator.create_per_worker_dataset(each(nothing), sharding="dynamic")
        with pytest.raises(errors.DatasetError, match=said):
            coordinator.run_epoch(lambda iterator: next(iterator), iter(dataset))
    memory = coordinator.create_per_worker_dataset(
        data.InMemoryDataset(nothing / "*", SLOTS, 4), splits=2
    )
    with pytest.raises(errors.DatasetError, match=said):
        memory.load_into_memory()
    trainer = psnb.Trainer(
        coordinator, lambda iterator: next(iterator), predict=lambda batch: batch
    )
    predictions = nothing / "predicted" / "*.csv"
    with_some = data.Dataset.range(3).batch(3)
    trainer.infer_from_dataset(with_some, to=str(predictions))
    with pytest.raises(errors.DatasetError, match=said):
        trainer.infer_from_dataset(lines(nothing), to=str(predictions))
    assert list(predictions.parent.glob("*.csv"))  # those of before
    with pytest.raises(errors.DatasetError, match=said):
        trainer.evaluate(lines(nothing))
    with pytest.raises(errors.PsnbError, match=r"no epoch had a batch|empty"):
        trainer.train_from_dataset(lines(nothing))


def test_splits_of_empty_files_are_done_beside_others(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, nothing: Path
) -> None:
    visits = visits_of(strategy, 3)
    (nothing / "part-9.gz").write_bytes(gzip.compress(b"1 0\n1 1\n1 2\n"))
    dataset = coordinator.create_per_worker_dataset(lines(nothing), sharding="dynamic")
    assert dataset.element_spec.dtype == np.int64  # of the first that has a record
    assert coordinator.run_epoch(counting(visits), iter(dataset)).parts == (4, 4)
    assert numbers(visits, 3) == [1] * 3
