"""The coordinator on a cluster that nobody harms."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import errors
from psnb._src.dask_compat.reach import event_loop
from psnb._src.utils.threads import run_on_loop
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import wait_for_file

UNPICKLED: list[str] = []
"""Filled where closures arrive: on all workers of this process."""


class Noted:
    """A function that notes how often it arrives on a worker."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return _arrive, (self.name,)

    def __call__(self) -> int:
        return UNPICKLED.count(self.name)


def _arrive(name: str) -> Noted:
    UNPICKLED.append(name)
    return Noted(name)


def _psnb_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("psnb")]


def _closure_threads() -> list[str]:
    return [name for name in _psnb_threads() if name.startswith("psnb-closure")]


def test_results_of_many_closures_are_each_their_own(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    remotes = [coordinator.schedule(lambda x: x * x, (x,)) for x in range(2000)]
    coordinator.join(DEADLINE)
    assert coordinator.done()
    assert coordinator.fetch(remotes) == [x * x for x in range(2000)]


def test_all_workers_get_work(coordinator: psnb.ClusterCoordinator, tmp_path: Path) -> None:
    wait_until(
        lambda: [w.state for w in coordinator.statistics().workers] == ["ready", "ready"],
        "both workers are ready",
    )

    def index() -> int:
        mine = psnb.worker_index()
        (tmp_path / str(mine)).touch()
        wait_for_file(tmp_path / str(1 - mine))  # so that one worker cannot take all
        return mine

    assert set(coordinator.fetch([coordinator.schedule(index) for _ in range(8)])) == {0, 1}


def test_a_function_is_shipped_to_a_worker_once(coordinator: psnb.ClusterCoordinator) -> None:
    function = Noted("once")
    counts = coordinator.fetch([coordinator.schedule(function, worker=0) for _ in range(300)])
    assert set(counts) == {1}


def test_arguments_are_captured_when_a_closure_is_scheduled(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    array = np.zeros(3)
    remotes = []
    for _ in range(3):
        remotes.append(coordinator.schedule(lambda a: a.sum(), (array,)))
        array += 1
    assert coordinator.fetch(remotes) == [0.0, 3.0, 6.0]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (([1, threading.Lock()],), r"args\[0\]\[1\] is <unlocked _thread.lock"),
        ((1, (x for x in ())), r"args\[1\] is <generator"),
    ],
)
def test_an_argument_that_cannot_be_pickled_is_named_at_schedule(
    coordinator: psnb.ClusterCoordinator, args: Any, named: str
) -> None:
    with pytest.raises(errors.SerializationError, match=named):
        coordinator.schedule(print, args)
    assert coordinator.statistics().queued == 0


def test_an_error_is_raised_with_its_own_type_traceback_worker_and_arguments(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    def fails(array: np.ndarray, name: str) -> None:
        raise KeyError(name)

    bad = coordinator.schedule(fails, (np.arange(10_000),), {"name": "boo"})
    with pytest.raises(KeyError, match="boo") as raised:
        coordinator.join(DEADLINE)
    text = "\n".join(raised.value.__notes__)
    assert "raise KeyError(name)" in text
    assert "on worker 'worker-" in text
    assert "fails(array([ 0, 1, 2, " in text
    assert len(raised.value.__notes__[0]) < 1000
    with pytest.raises(KeyError, match="boo"):
        bad.fetch()


def test_a_missing_worker_that_closures_need_is_reported_with_those_that_are_here(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    coordinator = psnb.ClusterCoordinator(strategy, heartbeat_timeout=2.0)
    remote = coordinator.schedule(int, worker="no-such")

    def told() -> list[str]:
        kind = psnb.EventKind.WORKER_AWAITED
        return [each.message for each in coordinator.events() if each.kind is kind]

    wait_until(lambda: bool(told()), "it is told", 9.0)  # by default, not that soon
    assert remote.cancel()
    (text,) = told()
    assert "'no-such'" in text
    assert text.endswith("Here are: 'worker-0', 'worker-1'")


def test_a_closure_that_exits_fails_alone(coordinator: psnb.ClusterCoordinator) -> None:
    remote = coordinator.schedule(sys.exit, (3,))
    with pytest.raises(errors.ClosureError, match="SystemExit: 3"):
        remote.fetch(DEADLINE)
    with pytest.raises(errors.ClosureError, match="SystemExit: 3") as raised:
        coordinator.join(DEADLINE)
    assert isinstance(raised.value.__cause__, SystemExit)
    assert coordinator.schedule(lambda: 3).fetch(DEADLINE) == 3


@pytest.mark.parametrize("what", [ValueError, SystemExit])
def test_an_exception_that_raises_when_it_is_shown_fails_its_closure_alone(
    coordinator: psnb.ClusterCoordinator, what: type[BaseException]
) -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise what("no")

        __repr__ = __str__

    def fails(x: object) -> None:
        raise SilentError

    # More than there are threads; one after the other, as a failure cancels what is scheduled.
    for _ in range(5):
        remote = coordinator.schedule(fails, (1,))
        for wait in (remote.fetch, coordinator.join):
            with pytest.raises(Exception) as raised:  # noqa: PT011 - its type is the closure's
                wait(DEADLINE)
            assert type(raised.value).__name__ == "SilentError"
    assert coordinator.schedule(lambda: 3).fetch(DEADLINE) == 3


def test_reports_reach_statistics_and_history(coordinator: psnb.ClusterCoordinator) -> None:
    def reports(x: int) -> None:
        psnb.report(loss=x, constant=2)

    for x in range(10):
        coordinator.schedule(reports, (x,))
    coordinator.join(DEADLINE)
    wait_until(
        lambda: "loss" in (m := coordinator.statistics().metrics) and m["loss"].count == 10,
        "all reports have come",
    )
    metrics = coordinator.statistics().metrics
    assert metrics["loss"].total == 45
    assert metrics["constant"].smoothed == 2
    assert sorted(coordinator.history()["loss"]["value"]) == list(range(10))


def test_a_long_closure_reports_while_it_runs(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"

    def reports_then_waits() -> None:
        psnb.report(progress=0.5)
        wait_for_file(go_on)

    remote = coordinator.schedule(reports_then_waits)
    wait_until(lambda: "progress" in coordinator.statistics().metrics, "the report is there")
    go_on.touch()
    assert remote.fetch(DEADLINE) is None


def test_statistics_tell_what_happened(coordinator: psnb.ClusterCoordinator) -> None:
    for _ in range(5):
        coordinator.schedule(lambda: None)
    coordinator.join(DEADLINE)
    s = coordinator.statistics()
    assert (s.state, s.queued, s.in_flight, s.completed, s.failed) == ("idle", 0, 0, 5, 0)
    assert sum(worker.completed for worker in s.workers) == 5
    assert len(s.servers) == 2
    assert "5 completed" in repr(coordinator)


def test_there_is_one_coordinator_for_a_strategy(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    assert psnb.ClusterCoordinator(strategy) is coordinator
    with pytest.raises(errors.ConfigurationError, match="max_queue_size"):
        psnb.ClusterCoordinator(strategy, max_queue_size=3)


def test_two_strategies_share_a_cluster_without_seeing_each_other(cluster: Client) -> None:
    with (
        psnb.ParameterServerStrategy(cluster) as one,
        psnb.ParameterServerStrategy(cluster) as other,
    ):
        first = one.variable(1.0, "same name")
        second = other.variable(2.0, "same name")
        a, b = psnb.ClusterCoordinator(one), psnb.ClusterCoordinator(other)
        a.schedule(lambda: 1 / 0)
        assert b.schedule(lambda: float(second.read())).fetch(DEADLINE) == 2.0
        b.join(DEADLINE)
        with pytest.raises(ZeroDivisionError):
            a.join(DEADLINE)
        one.close()
        assert float(second.read()) == 2.0
        with pytest.raises(errors.CoordinatorClosedError):
            first.read()


def test_close_ends_the_threads_on_the_workers(
    cluster: Client, coordinator: psnb.ClusterCoordinator
) -> None:
    coordinator.fetch([coordinator.schedule(lambda: None) for _ in range(4)])
    assert any(cluster.run(_closure_threads).values())
    coordinator.close()
    wait_until(lambda: not any(cluster.run(_closure_threads).values()), "closure threads end")


@pytest.mark.parametrize("call", ["schedule", "join", "done", "create"])
def test_a_closed_coordinator_refuses_work(coordinator: psnb.ClusterCoordinator, call: str) -> None:
    coordinator.close()
    coordinator.close()
    calls = {
        "schedule": lambda: coordinator.schedule(print),
        "join": coordinator.join,
        "done": coordinator.done,
        "create": lambda: coordinator.create_per_worker_dataset([1]),
    }
    with pytest.raises(errors.CoordinatorClosedError, match="closed"):
        calls[call]()
    assert coordinator.statistics().state == "closed"


def test_work_for_a_closed_strategy_is_refused_with_what_helps(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    strategy.close()
    said = r"the strategy is closed: make a new one with psnb\.ParameterServerStrategy\(client\)"
    with pytest.raises(errors.CoordinatorClosedError, match=f"^{said}, and a coordinator of it$"):
        coordinator.schedule(print)
    with pytest.raises(errors.CoordinatorClosedError, match=f"^{said}$"):
        strategy.variable([1.0])


def test_a_closed_coordinator_is_followed_by_a_new_one(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    coordinator.close()
    assert psnb.ClusterCoordinator(strategy).schedule(lambda: 3).fetch(DEADLINE) == 3


async def _collected() -> None:
    gc.collect()


@pytest.mark.parametrize("where", ["in the main thread", "on the event loop"])
def test_a_dropped_coordinator_ends_by_itself(cluster: Client, tmp_path: Path, where: str) -> None:
    def running() -> int:
        return sum(map(len, cluster.run(_psnb_threads).values()))

    before = running()  # another test's server, whose client is gone, ends some minutes later
    strategy = psnb.ParameterServerStrategy(cluster)
    coordinator = psnb.ClusterCoordinator(strategy)
    psnb.CheckpointManager(coordinator, tmp_path)
    value = coordinator.create_per_worker_resource(list)
    remote = coordinator.schedule(len, (value,))
    remote.fetch(DEADLINE)  # before the other fails: what has not begun then is cancelled
    failing = coordinator.schedule(lambda: 1 / 0)
    failing.wait(DEADLINE)
    failures = coordinator.failures()
    assert running() > before
    dropped = weakref.ref(coordinator)
    gc.disable()  # so that only what is called here collects it
    try:
        del strategy, coordinator

        def ended() -> bool:
            # More than once: a view may look at it at this moment.
            if where == "on the event loop":
                run_on_loop(event_loop(cluster), _collected)
            else:
                gc.collect()
            return running() <= before

        wait_until(ended, "closure threads end")
    finally:
        gc.enable()
    assert dropped() is None
    assert not remote.cancel()
    with pytest.raises(errors.CoordinatorClosedError):
        failures[0].rerun()
    with pytest.raises(errors.CoordinatorClosedError):
        value.fetch()


def test_schedule_refuses_what_cannot_be_called(coordinator: psnb.ClusterCoordinator) -> None:
    with pytest.raises(errors.ConfigurationError, match="callable"):
        coordinator.schedule(3)  # type: ignore[arg-type]


def test_training_in_closures_reaches_the_parameters(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    weights = strategy.variable(np.zeros(3, np.float32), optimizer=psnb.SGD(1.0))
    table = strategy.embedding("rows", 2, initializer=0.0, optimizer=psnb.SGD(1.0))

    def step(row: int) -> None:
        weights.push(-np.ones(3, np.float32))
        table.push([row, row], -np.ones((2, 2), np.float32))

    for number in range(100):
        coordinator.schedule(step, (number % 4,))
    coordinator.join(DEADLINE)
    np.testing.assert_array_equal(weights.read(), np.full(3, 100))
    np.testing.assert_array_equal(table.lookup(np.arange(4)), np.full((4, 2), 50))
