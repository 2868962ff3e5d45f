"""A failed closure runs again in the notebook's thread, and writes nothing."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import psnb
from psnb import errors
from tests.conftest import wait_until
from tests.integration.data.test_per_worker import LIVE, Tracked, all_gone
from tests.integration.notebook.cells import shown_by


def failure_of(coordinator: psnb.ClusterCoordinator) -> psnb.Failure:
    with pytest.raises((ValueError, ArithmeticError, TypeError)):
        coordinator.join()
    return coordinator.failures()[-1]


def test_a_failed_closure_runs_here_with_its_own_arguments(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    data = [1, 2]

    def step(given: list[int], before: int, *, key: str) -> None:
        raise ValueError((threading.get_ident(), given, before, key, psnb.worker_index()))

    before = coordinator.schedule(lambda: 41)
    coordinator.schedule(step, (data, before), {"key": "x"})
    data.append(3)
    failure = failure_of(coordinator)
    with pytest.raises(ValueError, match="41") as found:
        failure.rerun()
    thread, given, value, key, index = found.value.args[0]
    assert (thread, given, value, key) == (threading.get_ident(), [1, 2], 41, "x")
    assert index in (0, 1)
    assert found.traceback[-1].name == "step"


def test_it_sees_its_own_writes_and_none_of_them_happens(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    weights = strategy.variable(np.zeros(4), name="rerun w", optimizer=psnb.SGD(1.0))
    table = strategy.embedding(
        "rerun t", 2, optimizer=psnb.SGD(1.0), initializer=psnb.Constant(0.5)
    )

    def step() -> None:
        looked_up = table.lookup([int(weights.read()[0]) + 1000])  # the first time it is seen
        weights.push(np.ones(4))
        weights.assign_add(np.full(4, 10.0), immediate=True)
        table.push([7], np.ones((1, 2), np.float32))
        table.assign([9], np.full((1, 2), 3.0, np.float32))
        raise ValueError([looked_up, weights.read(), table.lookup([7, 9])])

    coordinator.schedule(step)
    failure = failure_of(coordinator)
    before = table.statistics().rows, weights.read(), table.lookup([9], training=False)
    weights.assign(np.full(4, 100.0))
    with pytest.raises(ValueError, match="array") as found:
        failure.rerun()
    first, read, rows = found.value.args[0]
    assert first.tolist() == [[0.5, 0.5]]
    assert read.tolist() == [109.0] * 4  # as the parameter is now
    assert rows.tolist() == [[-0.5, -0.5], [3.0, 3.0]]
    assert weights.read().tolist() == [100.0] * 4
    assert table.statistics().rows == before[0]
    assert table.lookup([9], training=False).tolist() == before[2].tolist()


def test_what_it_reports_is_dropped(coordinator: psnb.ClusterCoordinator) -> None:
    def step() -> None:
        psnb.report(loss=1.0, auc=psnb.metrics.AUC()([0, 1], [0.1, 0.9]))
        raise ValueError("after the report")

    coordinator.schedule(step)
    failure = failure_of(coordinator)
    with pytest.raises(ValueError, match="after the report"):
        failure.rerun()
    assert coordinator.metrics == {}
    assert coordinator.statistics().metrics["loss"].weight == 0.0


def test_what_it_has_written_into_a_batch_is_not_in_it(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    def step(iterator: Iterator[Any]) -> None:
        batch = next(iterator)
        found = batch.tolist()
        batch += 10
        raise ValueError(found)

    dataset = psnb.data.Dataset.from_tensor_slices(np.arange(3)).batch(3)
    coordinator.schedule(step, (iter(coordinator.create_per_worker_dataset(dataset)),))
    failure = failure_of(coordinator)
    with pytest.raises(ValueError, match="0, 1, 2"):
        failure.rerun()


def test_what_is_wrong_with_a_push_is_found_again(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    weights = strategy.variable(np.zeros(4), name="rerun shape", optimizer=psnb.SGD(1.0))
    coordinator.schedule(lambda: weights.push(np.ones(5)))
    with pytest.raises(errors.InvalidArrayError, match="shape"):
        failure_of(coordinator).rerun()


@pytest.mark.parametrize("which", ["rate", "day", "shrink"])
def test_what_would_change_parameters_at_once_is_refused(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, which: str
) -> None:
    table = strategy.embedding(
        f"rerun {which}", 2, optimizer=psnb.SGD(0.25), accessor=psnb.CtrAccessor()
    )

    def rate() -> None:
        table.optimizer.learning_rate = 0.5

    changes: dict[str, Callable[[], Any]] = {
        "rate": rate,
        "day": table.end_day,
        "shrink": table.shrink,
    }
    change = changes[which]

    def step() -> None:
        change()
        raise ValueError("whatever")

    coordinator.schedule(step)
    failure = failure_of(coordinator)
    with pytest.raises(errors.ConfigurationError, match="changes none"):
        failure.rerun()


def test_an_iterator_gives_the_elements_that_the_closure_had_taken(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    def shuffled() -> psnb.data.Dataset:
        return psnb.data.Dataset.range(10_000).shuffle(100).batch(3)

    def step(iterator: Iterator[np.ndarray], bad: bool) -> None:
        taken = [next(iterator), next(iterator)]
        if bad:
            raise ValueError(np.concatenate(taken).tolist())

    for sharding in ("none", "dynamic"):
        iterator = iter(coordinator.create_per_worker_dataset(shuffled(), sharding=sharding))
        for bad in (False, False, True):
            coordinator.schedule(step, (iterator, bad))
        with pytest.raises(ValueError, match=r"\[") as there:
            coordinator.join()
        with pytest.raises(ValueError, match=r"\[") as here:
            coordinator.failures()[-1].rerun()
        assert here.value.args == there.value.args, sharding


def test_one_that_found_its_iterator_at_the_end_finds_it_there_again(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(lambda: psnb.data.Dataset.range(3)))

    def step(numbers: Iterator[int]) -> None:
        raise ValueError(sum(numbers))

    coordinator.schedule(step, (iterator,))
    with pytest.raises(ValueError, match="3"):
        failure_of(coordinator).rerun()


def test_elements_that_were_too_much_are_reported_as_missing(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(lambda: psnb.data.Dataset.range(1000)))

    def step(numbers: Iterator[int]) -> None:
        raise ValueError(sum(numbers))

    coordinator.schedule(step, (iterator,))
    with pytest.raises(errors.ClosureInputError, match="too much"):
        failure_of(coordinator).rerun()


def test_a_per_worker_value_is_made_here_and_the_workers_own_is_let_go(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    value = coordinator.create_per_worker_resource(Tracked)
    coordinator.schedule(lambda tracked: (tracked, 1 // 0), (value,))
    failure = failure_of(coordinator)
    wait_until(lambda: len(LIVE) == 2, "the value is there on both workers")
    del value

    def released() -> bool:
        coordinator.fetch([coordinator.schedule(bool) for _ in range(4)])
        return all_gone()

    wait_until(released, "the failure holds no value on a worker")
    with pytest.raises(ZeroDivisionError):
        failure.rerun()


def test_debug_comes_to_the_users_own_frame() -> None:
    cells = [
        """
        import psnb
        client = psnb.local_cluster(workers=1, processes=False)
        coordinator = psnb.ClusterCoordinator(psnb.ParameterServerStrategy(client))

        def step(x):
            double = 2 * x
            return 1 // (double - 6)

        coordinator.schedule(step, (3,))
        """,
        "coordinator.join()",
        "coordinator.failures()[0].rerun()",
        """
        import sys
        trace = sys.last_traceback
        while trace.tb_next:
            trace = trace.tb_next
        print(trace.tb_frame.f_code.co_name, trace.tb_frame.f_locals)
        client.close()
        """,
    ]
    *_, shown, debugged = shown_by([textwrap.dedent(cell).strip() for cell in cells])
    assert debugged.startswith("step {'x': 3, 'double': 6}")
    assert "1 // (double - 6)" in shown
    assert "psnb/_src" not in shown
