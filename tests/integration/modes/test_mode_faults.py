"""Workers that die or leave in other modes than the asynchronous one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.coordinator.coordinator import coordinator_core
from psnb._src.server.operations import ApplyCommit, PreparePart
from psnb._src.server.tables.operations import Operation
from tests.conftest import DEADLINE, wait_until
from tests.integration.counting import wait_until_copied
from tests.integration.faults import worker_deaths
from tests.integration.helpers import (
    address_of,
    kill_myself,
    pid_of,
    state_of,
    this_thread,
    wait_for_file,
    wait_until_ended,
    wait_until_thread_ended,
    worker_name,
)
from tests.integration.modes.test_sync import (
    CLIPNORM,
    CLOSURES,
    Model,
    adagrad,
    assert_close,
    batches,
    synchronous,
    trained_by_one_process,
)

DEATHS = pytest.mark.parametrize(
    ("operation", "die", "attempt"),
    [
        (PreparePart, worker_deaths.after_one, 2),
        (ApplyCommit, worker_deaths.after_one, 1),
    ],
)
"""Moments of a commit in which the worker dies, and the attempt that counts then."""


def test_a_worker_killed_in_the_middle_of_a_round_changes_nothing(whole: Client) -> None:
    data = batches("float64")
    with synchronous(whole) as strategy:
        model = Model(strategy, psnb.Adagrad(0.3, clipnorm=CLIPNORM), "float64")
        start = model.values()
        coordinator = psnb.ClusterCoordinator(strategy)

        def step(number: int, *batch: np.ndarray) -> None:
            model.step(*batch)
            if number == 9 and psnb.worker_context().attempt == 1:
                kill_myself()

        for number, batch in enumerate(data):
            coordinator.schedule(step, (number, *batch))
        coordinator.join(2 * DEADLINE)
        assert coordinator.statistics().retried >= 1
        assert_close(model.values(), trained_by_one_process(start, data, adagrad), 1e-12)


def test_a_killed_server_that_has_copies_changes_nothing_either(
    whole: Client, tmp_path: Path
) -> None:
    data, begun, go_on = batches("float64"), tmp_path / "begun", tmp_path / "go on"
    with psnb.ParameterServerStrategy(
        whole, partitioner=psnb.FixedShards(2), replicas=1, mode=psnb.Sync(CLOSURES)
    ) as strategy:
        model = Model(strategy, psnb.Adagrad(0.3, clipnorm=CLIPNORM), "float64")
        start = model.values()
        coordinator = psnb.ClusterCoordinator(strategy)

        def step(number: int, *batch: np.ndarray) -> None:
            if number == 2 * CLOSURES + 1:  # another one of its round has committed, or will
                begun.touch()
                wait_for_file(go_on)
            model.step(*batch)

        for number, batch in enumerate(data):
            coordinator.schedule(step, (number, *batch))
        wait_until(begun.exists, "the third round runs")
        wait_until_copied(strategy)
        os.kill(pid_of(whole, "server-0"), signal.SIGKILL)
        go_on.touch()
        coordinator.join(2 * DEADLINE)
        assert_close(model.values(), trained_by_one_process(start, data, adagrad), 1e-12)


@DEATHS
def test_a_closure_that_dies_while_it_commits_counts_once_in_its_round(
    whole: Client, operation: type[Operation], die: worker_deaths.Die, attempt: int
) -> None:
    with synchronous(whole, 2) as strategy:
        variables = [strategy.variable(np.zeros(2), optimizer=psnb.SGD(1.0)) for _ in range(4)]
        coordinator = psnb.ClusterCoordinator(strategy)

        def step(gradient: float, dies: bool) -> int:
            attempt = psnb.worker_context().attempt
            for variable in variables:
                variable.push(np.full(2, gradient * attempt))
            if dies and attempt == 1:
                worker_deaths.arrange(operation, die)
            return attempt

        first = coordinator.schedule(step, (-1.0, True))
        coordinator.schedule(step, (-3.0, False))
        coordinator.join(2 * DEADLINE)
        assert first.fetch() == attempt
        expected = (attempt + 3) / 2
        assert [each.read().tolist() for each in variables] == [[expected] * 2] * 4


def test_a_killed_worker_takes_what_it_has_not_sent_and_training_goes_on(
    whole: Client, tmp_path: Path
) -> None:
    exchange, closures = 4, 6
    with psnb.ParameterServerStrategy(whole, mode=psnb.Geo(exchange)) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_until(
            lambda: sum(w.state == "ready" for w in coordinator.statistics().workers) == 2,
            "both workers are ready",
        )
        v = strategy.variable(np.zeros(2), optimizer=psnb.SGD(1.0))
        e = strategy.embedding("e", 1, initializer=0.0, optimizer=psnb.SGD(1.0))

        def step() -> str:
            v.push(-np.ones(2))
            e.push([3], -np.ones((1, 1), np.float32))
            return worker_name()

        def dies() -> int:
            step()
            if psnb.worker_context().attempt == 1:
                kill_myself()
            return psnb.worker_context().attempt

        victim = coordinator.schedule(step).fetch(DEADLINE)
        for _ in range(closures - 1):
            coordinator.schedule(step, worker=victim).fetch(DEADLINE)
        assert v.read().tolist() == [exchange / 2] * 2  # two more are held by the worker
        index = next(w.index for w in coordinator.statistics().workers if w.name == victim)
        # Runs again wherever that number is taken up.
        assert coordinator.schedule(dies, worker=index).fetch(2 * DEADLINE) == 2
        coordinator.join(2 * DEADLINE)
        assert v.read().tolist() == [(exchange + 1) / 2] * 2
        assert e.lookup([3]).tolist() == [[(exchange + 1) / 2]]


@DEATHS
def test_a_closure_that_dies_while_it_exchanges_counts_once(
    whole: Client, operation: type[Operation], die: worker_deaths.Die, attempt: int
) -> None:
    with psnb.ParameterServerStrategy(whole, mode=psnb.Geo(1)) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_until(
            lambda: sum(w.state == "ready" for w in coordinator.statistics().workers) == 2,
            "both workers are ready",
        )
        variables = [strategy.variable(np.zeros(2), optimizer=psnb.SGD(1.0)) for _ in "ab"]
        count = strategy.variable(np.int64(0))

        def step() -> int:
            attempt = psnb.worker_context().attempt
            for variable in variables:
                variable.push(variable.read() - 2 * attempt)
            count.assign_add(np.int64(attempt))
            if attempt == 1:
                worker_deaths.arrange(operation, die)
            return attempt

        assert coordinator.schedule(step).fetch(2 * DEADLINE) == attempt
        coordinator.join(DEADLINE)
        # A worker gives as many-th a part of what it has learned as there are workers: it may have
        # run again before the other one was back. What both attempts would give is neither.
        parts = {attempt} if attempt == 1 else {attempt, 2 * attempt}
        assert [each.read().tolist() for each in variables] in [[[x] * 2] * 2 for x in parts]
        assert int(count.read()) == attempt


def test_a_frozen_closure_of_a_round_that_is_over_comes_too_late(
    cluster: Client, tmp_path: Path
) -> None:
    with synchronous(cluster, 1) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        v = strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))
        begun, go_on = tmp_path / "begun", tmp_path / "go on"

        def slow() -> None:
            v.push([-1.0])
            if not begun.exists():
                begun.write_text(this_thread())
                wait_for_file(go_on)

        remote = coordinator.schedule(slow)
        wait_until(lambda: begun.exists() and bool(begun.read_text()), "the closure runs")
        late = begun.read_text()
        # The worker is alive and its closure goes on, but the coordinator has lost its session.
        connection = next(
            connection
            for connection in coordinator_core(coordinator).membership._connections
            if len(connection.worker.load)
        )
        task = coordinator_core(coordinator).membership._tasks[connection]
        coordinator_core(coordinator).membership._loop.call_soon_threadsafe(task.cancel)
        remote.fetch(DEADLINE)
        coordinator.join(DEADLINE)
        assert v.read().tolist() == [1]
        assert Path(late).exists()
        go_on.touch()
        wait_until_thread_ended(late)
        coordinator.schedule(v.push, ([-1.0],))
        coordinator.join(DEADLINE)
        assert v.read().tolist() == [2]


# The last one: nobody starts the worker again.
def test_a_worker_that_leaves_sends_what_it_holds_before(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole, mode=psnb.Geo(1000)) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        wait_until(
            lambda: sum(w.state == "ready" for w in coordinator.statistics().workers) == 2,
            "both workers are ready",
        )
        v = strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))

        def step() -> str:
            v.push([-2.0])
            return worker_name()

        leaver = coordinator.schedule(step).fetch(DEADLINE)
        assert v.read().tolist() == [0]
        pid = pid_of(whole, leaver)
        whole.retire_workers([address_of(whole, leaver)])
        wait_until(lambda: state_of(coordinator, leaver) == "retired", "it has left")
        assert v.read().tolist() == [1]
        wait_until_ended(pid)
