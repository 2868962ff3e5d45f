"""Where the time of closures goes, and which part of a dataset they wait for, on real workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import psnb
from psnb.data import Dataset
from tests.conftest import DEADLINE, wait_until

PAUSE = 0.03


def slow(element: Any) -> Any:
    """Return an element, as a parser that takes its time."""
    time.sleep(PAUSE)
    return element


def test_time_counts_for_the_door_that_it_is_spent_behind(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    weights = strategy.variable(np.zeros(4, np.float32), optimizer=psnb.SGD(0.1))
    iterator = iter(coordinator.create_per_worker_dataset(Dataset.range(1000).map(slow)))

    def step(numbers: Iterator[int]) -> None:
        next(numbers)
        time.sleep(2 * PAUSE)
        weights.push(weights.read())

    for _ in range(20):
        coordinator.schedule(step, (iterator,))
    coordinator.join(DEADLINE)
    total = coordinator.phases().total
    assert total.read >= 20 * PAUSE
    assert total.compute >= 20 * 2 * PAUSE
    assert min(total.pull, total.push, total.commit) > 0
    workers = coordinator.statistics().workers
    assert total.total == pytest.approx(sum(each.busy_seconds for each in workers))


def test_a_closure_that_raises_has_phases_too(coordinator: psnb.ClusterCoordinator) -> None:
    def fails() -> None:
        time.sleep(PAUSE)
        raise ValueError

    coordinator.schedule(fails)
    with pytest.raises(ValueError):  # noqa: PT011  # it has no message
        coordinator.join(DEADLINE)
    assert coordinator.phases().total.compute >= PAUSE


def test_the_first_result_finds_what_was_read(coordinator: psnb.ClusterCoordinator) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(Dataset.range(10).batch(2)))
    coordinator.schedule(lambda numbers: int(next(numbers)[0]), (iterator,)).fetch(DEADLINE)
    assert [each.elements for each in coordinator.stages() if "batch" in each.name] == [1]


def test_the_stages_of_all_workers_count_every_element_and_tell_what_starves(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    dataset = coordinator.create_per_worker_dataset(
        Dataset.range(64).map(slow).batch(4), sharding="dynamic"
    )
    coordinator.run_epoch(lambda numbers: int(next(numbers).sum()), iter(dataset))
    wait_until(
        lambda: (
            [each.elements for each in coordinator.stages() if each.name == "map(slow)"] == [64]
        ),
        "both workers have told what they have read",
    )
    mapped = next(each for each in coordinator.stages() if each.name == "map(slow)")
    assert mapped.seconds >= 64 * PAUSE
    assert coordinator.stages().slowest == mapped
    share = coordinator.statistics().phase_shares["read"]
    said = f"workers wait {share:.0%} of their time for map(slow)"
    assert coordinator.statistics().starved == said
