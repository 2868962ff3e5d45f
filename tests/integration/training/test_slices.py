"""Metrics by slice of a trainer: its results, its history, what views get, and resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

import psnb
from psnb import data
from psnb._src.coordinator.coordinator import coordinator_core
from psnb._src.monitor.feed import Feed
from psnb.metrics import AUC, GroupAUC
from tests.integration.helpers import kill_myself
from tests.integration.training.trainer_helpers import holding

AUCS, GROUPS = AUC(), GroupAUC()

ROWS = 400


def batch_of(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return labels, scores, texts and users of examples; each follows from its number."""
    random = np.random.default_rng(0).random((2, ROWS))[:, ids]
    texts = np.array(["DE", "FR", "IT"], object)[ids % 3]
    return random[0] < 0.5, random[1], texts, ids % 20


def measured(ids: np.ndarray) -> dict[str, psnb.metrics.MetricState]:
    labels, scores, country, user = batch_of(ids)
    return {
        "auc": AUCS(labels, scores, by=country),
        "gauc": GROUPS(labels, scores, groups=user),
    }


def report(iterator: Any) -> None:
    psnb.report(**measured(next(iterator)))


def values_of(table: Any) -> dict[Any, float]:
    return {key: row.value for key, row in table.items()}


EXPECTED = measured(np.arange(ROWS))


def test_an_evaluation_has_slices_of_all_examples_whichever_worker_dies(
    whole: Client, tmp_path: Path
) -> None:
    flag = tmp_path / "died"

    def step(iterator: Any) -> None:
        ids = next(iterator)
        if 150 in ids and not flag.exists():
            flag.touch()
            kill_myself()
        psnb.report(**measured(ids))

    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        found = psnb.Trainer(coordinator, step).evaluate(data.Dataset.range(ROWS).batch(16))
    assert flag.exists()
    assert found == {
        "auc": float(EXPECTED["auc"]),
        "gauc": float(EXPECTED["gauc"]),
        "examples": ROWS,
    }
    assert found.slices == {"auc": EXPECTED["auc"].slices}


def test_a_history_has_the_slices_of_training_and_validation_and_so_have_views(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    history = psnb.Trainer(coordinator, report).train_from_dataset(
        data.Dataset.range(ROWS).batch(16), 2, validation=data.Dataset.range(100).batch(16)
    )
    validation = measured(np.arange(100))["auc"].slices
    for row in history.rows:
        assert row.slices == {"auc": EXPECTED["auc"].slices, "val_auc": validation}
    assert history.slices == history.rows[1].slices
    coordinator.history()  # draws what came last
    update = Feed().next(coordinator_core(coordinator), 0.0)
    assert update is not None
    shown = {each["metric"]: each["rows"] for each in update["slices"]}
    assert [row["slice"] for row in shown["auc"]] == [*EXPECTED["auc"].slices]
    assert [row["value"] for row in shown["val_auc"]] == [*values_of(validation).values()]


def test_an_epoch_that_is_resumed_has_the_slices_of_all_of_it(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    stopped = tmp_path / "stopped"

    class Stop(psnb.Callback):
        def on_batch(self, trainer: psnb.Trainer, snapshot: psnb.TrainingSnapshot) -> None:
            trainer.stop("for a test")
            stopped.touch()

    dataset = data.Dataset.range(ROWS).batch(4)
    trainer = psnb.Trainer(coordinator, holding(report, ROWS // 2, stopped))
    half = trainer.train_from_dataset(dataset, callbacks=[Stop()])
    assert half.stopped
    state = json.loads(json.dumps(half.state, allow_nan=False))
    (row,) = trainer.train_from_dataset(dataset, resume=state).rows
    assert row.slices == {"auc": EXPECTED["auc"].slices}
    assert row.metrics["gauc"] == float(EXPECTED["gauc"])
