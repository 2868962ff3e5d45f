"""What a run tells of itself, on a cluster: in its checkpoints, and while it lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

import psnb


def step(number: int) -> None:
    psnb.report(loss=1.0 / (1 + number), examples=4)


auc = psnb.metrics.AUC()


def report_auc(number: int) -> None:
    psnb.report(auc=auc([0, 1], [0.25, 0.5 if number else 0.0]))


def test_a_checkpoint_has_the_metrics_of_all_closures_before_it(
    cluster: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        for number in range(2):  # right after each other: metrics are not merged at once
            coordinator.schedule(report_auc, (number,))
            coordinator.join()
        psnb.CheckpointManager(coordinator, tmp_path).save()
        live = psnb.compare(coordinator, metrics="auc").axes[0].lines
        expected = coordinator.metrics.results()["auc"]
    (run,) = psnb.runs(tmp_path)
    assert 0 < expected < 1
    assert run.metrics["auc"].last == expected
    assert {line.get_ydata()[-1] for line in live if len(line.get_ydata())} == {expected}


def test_a_run_that_is_resumed_is_one_run_with_its_settings(
    cluster: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(1)) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy, name="monday")
        weights = strategy.variable(np.zeros(2, np.float32), "w", optimizer=psnb.SGD(0.1))
        manager = psnb.CheckpointManager(coordinator, tmp_path / "monday")
        assert weights.optimizer is not None
        weights.optimizer.learning_rate = 0.05
        coordinator.schedule(step, (0,))
        coordinator.schedule(step, (1,))
        coordinator.join()
        manager.save()
        (before,) = psnb.runs(tmp_path)
    with psnb.resume(tmp_path / "monday", cluster) as resumed:
        resumed.coordinator.set_learning_rate("w", 0.025)
        resumed.coordinator.schedule(step, (2,))
        resumed.coordinator.join()
        resumed.manager.save()
        figure = psnb.compare(before, resumed.coordinator, by="examples")
    (run,) = psnb.runs(tmp_path)
    assert run.name == resumed.coordinator.name
    assert run.began == before.began
    assert run.saved > before.saved
    assert run.settings["mode"] == {"name": "Sync", "closures": 1}
    assert run.settings["optimizers"]["w"]["learning_rate"] == 0.1
    changes = [(each["parameter"], each["value"]) for each in run.settings["changes"]]
    assert changes == [("w", 0.05), ("w", 0.025)]
    assert run.history["loss"]["step"].tolist() == [1, 2, 3]
    assert run.history["loss"]["examples"].tolist() == [4.0, 8.0, 12.0]
    drawn = [list(line.get_xdata()) for line in figure.axes[0].lines if line.get_linewidth() > 1]
    assert drawn == [[4.0, 8.0], [4.0, 8.0, 12.0]]


def branches(figure: Any) -> list[tuple[list[float], bool]]:
    """Return the steps of each smoothed line, and whether it is paler than the first."""
    lines = [line for line in figure.axes[0].lines if line.get_linewidth() > 1]
    return [(line.get_xdata().tolist(), line.get_alpha() < 1) for line in lines]


def test_a_run_that_went_back_is_drawn_in_branches_live_saved_and_resumed(
    cluster: Client, tmp_path: Path
) -> None:
    def steps(coordinator: psnb.ClusterCoordinator, count: int) -> None:
        coordinator.map(step, range(count))
        coordinator.join()

    with psnb.ParameterServerStrategy(cluster) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy, name="monday")
        manager = psnb.CheckpointManager(coordinator, tmp_path / "monday", max_to_keep=9)
        steps(coordinator, 2)
        path = manager.save()
        steps(coordinator, 1)
        mark = coordinator.mark()
        steps(coordinator, 2)
        coordinator.rewind(mark)
        steps(coordinator, 1)
        coordinator.rewind(path)
        steps(coordinator, 1)
        expected = [([1, 2], False), ([2, 3, 4, 5], True), ([6], True), ([7], False)]
        assert branches(psnb.compare(coordinator, metrics="loss")) == expected
        assert branches(coordinator.plot("loss")) == expected
        manager.save()
    assert branches(psnb.compare(*psnb.runs(tmp_path), metrics="loss")) == expected
    with psnb.resume(tmp_path / "monday", cluster) as resumed:
        steps(resumed.coordinator, 1)
        resumed.coordinator.rewind(path)
        steps(resumed.coordinator, 1)
        figure = psnb.compare(resumed.coordinator, metrics="loss")
        live = branches(resumed.coordinator.plot("loss"))
    assert branches(figure) == [*expected[:3], ([7, 8], True), ([9], False)]
    assert live == [([1], True), ([2], False)]
