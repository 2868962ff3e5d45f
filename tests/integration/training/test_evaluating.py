"""Evaluation and prediction with trainers, whatever process dies."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import data, errors
from psnb.errors import DatasetError
from tests.integration.helpers import Ending
from tests.integration.training.trainer_helpers import auc, numbers, visits_of


def test_evaluation_changes_nothing_and_is_not_mixed_with_training(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, 200)
    any_id = strategy.embedding("any", 1, optimizer=psnb.SGD(1.0))

    def step(iterator: Any) -> None:
        ids = next(iterator)
        before = any_id.lookup(ids)
        visits.push(ids, -np.ones((len(ids), 1), np.float32))
        any_id.push(ids, np.ones_like(before))
        visits.push(ids, -np.ones((len(ids), 1), np.float32), immediate=True)
        if visits.lookup(ids).any():
            raise AssertionError("evaluation sees what it has written")
        psnb.report(loss=float(np.mean(ids)), auc=auc(ids % 2, (ids % 4) / 4.0))

    trainer = psnb.Trainer(coordinator, step)
    found = trainer.evaluate(data.Dataset.range(200).batch(7))  # the last batches are smaller
    assert found == {"loss": pytest.approx(99.5, rel=1e-12), "auc": 0.75, "examples": 200}
    assert numbers(visits, 200) == [0] * 200
    assert any_id.statistics().rows == 0
    assert not coordinator.statistics().metrics
    assert not coordinator.metrics


def test_a_step_of_evaluation_that_takes_nothing_is_refused(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    trainer = psnb.Trainer(coordinator, lambda iterator: None)
    with pytest.raises(errors.ConfigurationError, match="has taken nothing from its iterator"):
        trainer.evaluate(data.Dataset.range(5))
    coordinator.join()


def test_a_step_of_evaluation_that_would_leave_examples_out_is_refused(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    def step(iterator: Any) -> None:
        psnb.report(mean=float(next(iterator) + next(iterator)))

    trainer = psnb.Trainer(coordinator, step)
    with pytest.raises(errors.ClosureInputError, match="had taken 1 element when it found no more"):
        trainer.evaluate(data.Dataset.range(3))


def test_predictions_are_in_the_order_of_the_dataset(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    trainer = psnb.Trainer(coordinator, lambda iterator: None, predict=lambda ids: 2 * ids)
    dataset = data.Dataset.range(1001).batch(10)
    assert trainer.infer_from_dataset(dataset).tolist() == list(range(0, 2002, 2))
    with pytest.raises(errors.ConfigurationError, match="shuffle"):
        trainer.infer_from_dataset(data.Dataset.range(9).shuffle(3).batch(2))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_predictions_go_to_files_in_order(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path, suffix: str
) -> None:
    def predict(ids: np.ndarray) -> dict[str, np.ndarray]:
        return {"id": ids, "scores": np.stack([ids, ids + 0.5], axis=1)}

    trainer = psnb.Trainer(coordinator, lambda iterator: None, predict=predict)
    dataset = data.Dataset.range(200).batch(10)
    files = trainer.infer_from_dataset(dataset, f"{tmp_path}/*.{suffix}")
    assert files == [str(tmp_path / f"{number:05d}.{suffix}") for number in range(len(files))]
    assert sorted(os.listdir(tmp_path)) == [Path(each).name for each in files]
    rows = [row for each in files for row in READERS[suffix](Path(each))]
    assert rows == [(number, [number, number + 0.5]) for number in range(200)]
    with pytest.raises(errors.ConfigurationError, match="would be taken for one of the 1 parts"):
        trainer.infer_from_dataset(data.Dataset.range(5).batch(10), f"{tmp_path}/*.{suffix}")


def test_predictions_that_fail_leave_the_files_of_an_earlier_call_alone(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    def trainer(sign: int, bad: int) -> psnb.Trainer:
        def predict(ids: np.ndarray) -> np.ndarray:
            if bad in ids:
                raise ValueError("bad batch")
            return sign * ids

        return psnb.Trainer(coordinator, lambda iterator: None, predict=predict)

    dataset, to = data.Dataset.range(200).batch(10), f"{tmp_path}/*.csv"
    files = trainer(1, -1).infer_from_dataset(dataset, to)
    assert len(files) > 1
    with pytest.raises(ValueError, match="bad batch"):
        trainer(-1, 199).infer_from_dataset(dataset, to)
    rows = [int(line) for each in files for line in Path(each).read_text().split()[1:]]
    assert rows == list(range(200))
    assert sorted(os.listdir(tmp_path)) == [Path(each).name for each in files]
    trainer(-1, -1).infer_from_dataset(dataset, to)
    assert Path(files[0]).read_text().split()[2] == "-1"


def _from_csv(path: Path) -> list[Any]:
    with path.open() as file:
        found = csv.DictReader(file)
        return [(int(r["id"]), [float(r["scores.0"]), float(r["scores.1"])]) for r in found]


def _from_json(path: Path) -> list[Any]:
    rows = map(json.loads, path.read_text().splitlines())
    return [(row["id"], row["scores"]) for row in rows]


def _from_parquet(path: Path) -> list[Any]:
    import pyarrow.parquet

    return [(r["id"], r["scores"]) for r in pyarrow.parquet.read_table(path).to_pylist()]


READERS = {"csv": _from_csv, "jsonl": _from_json, "parquet": _from_parquet}


def test_a_worker_that_is_killed_while_it_predicts_costs_no_row_and_doubles_none(
    whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        ending = Ending(coordinator, tmp_path, "killed")
        wait = ending.wait

        def predict(ids: np.ndarray) -> np.ndarray:
            if 150 in ids:
                wait()
            return ids

        trainer = psnb.Trainer(coordinator, lambda iterator: None, predict=predict)
        trainer.infer_from_dataset(data.Dataset.range(9).batch(1))
        to = tmp_path / "predictions"
        with ending:
            files = trainer.infer_from_dataset(data.Dataset.range(300).batch(3), f"{to}/*.csv")
        rows = [int(line) for each in files for line in Path(each).read_text().split()[1:]]
        assert rows == list(range(300))
        assert sorted(os.listdir(to)) == [Path(each).name for each in files]


def test_what_is_evaluated_does_not_stay_in_the_memory_of_workers(
    coordinator: psnb.ClusterCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def make(*arguments: Any, **named: Any) -> Any:
        made.append(create(*arguments, **named))
        return made[-1]

    create = coordinator.create_per_worker_dataset
    monkeypatch.setattr(coordinator, "create_per_worker_dataset", make)
    trainer = psnb.Trainer(coordinator, lambda iterator: bool(next(iterator).any()))
    memory = data.InMemoryDataset.of(data.Dataset.range(20), 5)
    assert trainer.evaluate(memory)["examples"] == 20
    trainer.train_from_dataset(data.Dataset.range(20).batch(5), validation=memory)
    assert [each.statistics().examples for each in made if hasattr(each, "statistics")] == [0, 0]


def nothing() -> data.Dataset:
    return data.Dataset.range(20).filter(lambda number: False).batch(5)


@pytest.mark.parametrize(
    ("validation", "epochs"),
    [
        pytest.param(nothing(), 0, id="at once"),
        pytest.param(
            data.InMemoryDataset.of(data.Dataset.range(20).filter(lambda number: False), 5),
            1,
            id="once the epoch is kept, as it would have been loaded before",
        ),
    ],
)
def test_validation_without_an_example_is_refused(
    coordinator: psnb.ClusterCoordinator, validation: Any, epochs: int
) -> None:
    trainer = psnb.Trainer(coordinator, lambda iterator: bool(next(iterator).any()))
    with pytest.raises(DatasetError, match="the dataset yields no example"):
        trainer.train_from_dataset(data.Dataset.range(20).batch(5), validation=validation)
    assert coordinator.statistics().training is None or epochs
    assert [row.batches for row in getattr(trainer.history, "rows", ())] == [4] * epochs
