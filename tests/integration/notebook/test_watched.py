"""What people see of a coordinator, and its controls, on real clusters."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import errors
from psnb._src.coordinator.coordinator import coordinator_core
from psnb._src.monitor.viewed import OptimizerState
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import wait_for_file


def test_a_failure_is_reported_with_worker_closure_and_traceback(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    def divides() -> float:
        return 1 / 0

    coordinator.schedule(divides)
    with pytest.raises(ZeroDivisionError):
        coordinator.join(DEADLINE)
    (failure,) = coordinator.failures()
    assert failure.error == "ZeroDivisionError: division by zero"
    assert failure.closure.startswith("test_a_failure")
    assert "return 1 / 0" in failure.traceback
    (worker,) = [w for w in coordinator.statistics().workers if w.failed]
    assert (worker.name, worker.last_error) == (failure.worker, failure.error)


def test_the_dashboard_is_the_coordinators_line_outside_of_a_notebook(
    coordinator: psnb.ClusterCoordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.dashboard()
    assert capsys.readouterr().out.startswith("<psnb.ClusterCoordinator '")


def test_rates_memory_and_timeline_of_workers(coordinator: psnb.ClusterCoordinator) -> None:
    stop = threading.Event()

    def work() -> None:
        psnb.report(examples=10)
        sum(range(100_000))

    def keep_busy() -> None:
        while not stop.is_set():
            for _ in range(50):
                coordinator.schedule(work)
            coordinator.join(DEADLINE)

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        wait_until(
            lambda: all(
                w.memory
                and w.memory > 10_000_000
                and w.busy > 0
                and w.closures_per_second > 1
                and w.cpu
                and w.examples_per_second
                for w in coordinator.statistics().workers
            ),
            "both workers have figures",
        )
    finally:
        stop.set()
        thread.join(DEADLINE)
    now = coordinator.statistics()
    assert now.examples == 10 * now.completed
    # Each rate has a window of its own: how they compare is chance on a busy machine.
    assert now.examples_per_second
    spans = coordinator_core(coordinator).records.timeline.since(0.0)
    assert sum(span["closures"] for span in spans) == now.completed
    assert {span["worker"] for span in spans} == {0, 1}


def test_servers_are_asked_while_they_are_watched(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    table = strategy.embedding("rows", 4, rows=1000, optimizer=psnb.Adagrad(0.5))

    def step() -> None:
        ids = np.arange(100)
        table.push(ids, table.lookup(ids))

    def seen() -> bool:
        coordinator_core(coordinator).watch()
        for _ in range(20):
            coordinator.schedule(step)
        coordinator.join(DEADLINE)
        return all(
            s.state == "serving"
            and s.bytes > 8000
            and s.cpu
            and s.pulls_per_second
            and s.pushes_per_second
            and s.staleness >= 0  # and not NaN, as without any update
            for s in coordinator.statistics().servers
        )

    wait_until(seen, "both servers tell what they do")

    def told(rate: float) -> bool:
        coordinator_core(coordinator).watch()
        return coordinator_core(coordinator).optimizers() == {
            "rows": OptimizerState("Adagrad", rate)
        }

    wait_until(lambda: told(0.5), "the rate is told")
    coordinator.set_learning_rate("rows", 0.25)
    wait_until(lambda: told(0.25), "the new rate is told")


def test_a_schedule_is_shown_with_the_rate_of_the_next_update(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    schedule = psnb.PiecewiseConstant((3,), (0.5, 0.25))
    weights = strategy.variable(np.zeros(2), name="weights", optimizer=psnb.SGD(schedule))

    def told(rate: float) -> bool:
        coordinator_core(coordinator).watch()
        found = coordinator_core(coordinator).optimizers().get("weights")
        return found == OptimizerState("SGD", rate, repr(schedule))

    wait_until(lambda: told(0.5), "the first rate is told")
    for _ in range(3):
        weights.push(np.ones(2))
    wait_until(lambda: told(0.25), "the rate of the fourth update is told")


def test_a_learning_rate_needs_an_optimizer(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    strategy.variable(np.zeros(2), name="plain")
    for name in ("plain", "absent"):
        with pytest.raises(errors.ConfigurationError, match=name):
            coordinator.set_learning_rate(name, 0.1)


def test_what_is_queued_can_be_cancelled(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"

    def waits() -> str:
        wait_for_file(go_on)
        return "ended"

    remotes = [coordinator.schedule(waits) for _ in range(20)]
    wait_until(lambda: coordinator.statistics().in_flight >= 2, "two run")
    coordinator.pause()  # what was only sent comes back
    wait_until(lambda: coordinator.statistics().in_flight == 2, "the others are back")
    assert coordinator.cancel_queued() == 18
    go_on.touch()
    coordinator.resume()
    coordinator.join(DEADLINE)
    ends = [remote.status for remote in remotes]
    assert ends.count(psnb.ClosureStatus.COMPLETED) == 2
    assert ends.count(psnb.ClosureStatus.CANCELLED) == 18
    cancelled = next(r for r in remotes if r.status is psnb.ClosureStatus.CANCELLED)
    with pytest.raises(errors.ClosureCancelledError, match="emptied"):
        cancelled.fetch(1)


def test_a_checkpoint_is_saved_with_the_manager_made_last(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    strategy.variable(np.zeros(2), name="v")
    with pytest.raises(errors.CheckpointError, match="CheckpointManager"):
        coordinator.checkpoint()
    assert "CheckpointManager" in coordinator_core(coordinator).controls()["checkpoint"]
    psnb.CheckpointManager(coordinator, tmp_path)
    assert coordinator_core(coordinator).controls()["checkpoint"] == ""
    path = coordinator.checkpoint()
    assert path.parent == tmp_path
    saved = coordinator.statistics().checkpoint
    assert (saved.state, saved.path, saved.share) == ("saved", str(path), 1.0)


def test_a_checkpoint_that_fails_is_reported(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    manager = psnb.CheckpointManager(coordinator, tmp_path)
    with pytest.raises(errors.CheckpointError):
        manager.save({"not JSON": object()})
    failed = coordinator.statistics().checkpoint
    assert (failed.state, failed.path) == ("failed", "")
    assert "JSON" in failed.error


def test_history_and_plot_have_what_was_reported(coordinator: psnb.ClusterCoordinator) -> None:
    with pytest.raises(errors.ConfigurationError, match="report"):
        coordinator.plot()
    for step in range(5):
        coordinator.schedule(lambda step: psnb.report(loss=step, **{"a$b": 1.0}), (step,))
    coordinator.join(DEADLINE)
    wait_until(lambda: len(coordinator.history()["loss"]["value"]) == 5, "all reports have come")
    assert sorted(coordinator.history()["loss"]["value"]) == list(range(5))
    figure = coordinator.plot()
    figure.canvas.draw()
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "a$b"]
    assert len(coordinator.plot(["loss"], log=True).axes) == 1
    with pytest.raises(errors.ConfigurationError, match="'auc'"):
        coordinator.plot(["auc"])


def test_workers_are_added_and_retired() -> None:
    with (
        psnb.local_cluster(workers=1, servers=1, processes=False) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)

        def ready() -> list[str]:
            return [str(w.name) for w in coordinator.statistics().workers if w.state == "ready"]

        wait_until(lambda: len(ready()) == 1, "the worker is there")
        (first,) = ready()
        coordinator.add_worker()
        wait_until(lambda: len(ready()) == 2, "another one joins")
        coordinator.retire_worker(first)
        wait_until(lambda: len(ready()) == 1 and first not in ready(), "the first one leaves")
        assert coordinator.schedule(lambda: 5).fetch(DEADLINE) == 5
        with pytest.raises(errors.ConfigurationError, match="nobody"):
            coordinator.retire_worker("nobody")


def test_a_worker_tells_what_takes_it_long(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    def load() -> str:
        wait_for_file(tmp_path / "loaded")
        return "data"

    def step(data: str) -> str:
        wait_for_file(tmp_path / "stepped")
        return data

    def told(what: str) -> bool:
        return any(
            each.activity == what and (each.running_since or 0) > began
            for each in coordinator.statistics().workers
        )

    began = time.time()
    data = coordinator.create_per_worker_resource(load)
    wait_until(lambda: told("loading per-worker data"), "it tells that it loads")
    (tmp_path / "loaded").touch()
    remote = coordinator.schedule(step, (data,))
    wait_until(lambda: told("running step"), "it tells that the closure runs")
    (tmp_path / "stepped").touch()
    assert remote.fetch(DEADLINE) == "data"
    assert not told("running step")


def test_a_coordinator_has_the_name_that_it_was_given(
    cluster: Client,
) -> None:
    with psnb.ParameterServerStrategy(cluster, name="prices") as strategy:
        with psnb.ClusterCoordinator(strategy, name="flights") as coordinator:
            assert coordinator.name == coordinator_core(coordinator).identity()["name"] == "flights"
            assert repr(coordinator).startswith("<psnb.ClusterCoordinator 'flights' idle: 0 queued")
            assert psnb.ClusterCoordinator(strategy) is coordinator
            with pytest.raises(errors.ConfigurationError, match="name='flights'"):
                psnb.ClusterCoordinator(strategy, name="trains")
        with psnb.ClusterCoordinator(strategy) as coordinator:
            assert coordinator.name == "prices"
