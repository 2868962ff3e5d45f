"""Values and datasets that each worker has one of its own of, on a real cluster."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import errors
from tests.conftest import DEADLINE, wait_until

LIVE: weakref.WeakSet[Any] = weakref.WeakSet()
"""Filled by the workers, which are in this process."""


class Tracked:
    """A per-worker value whose end can be seen."""

    def __init__(self) -> None:
        LIVE.add(self)


def all_gone() -> bool:
    """Return whether no worker has a `Tracked` any more."""
    gc.collect()
    return not LIVE


def test_per_worker_values_at_any_depth_are_the_workers_own(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    index = coordinator.create_per_worker_resource(psnb.worker_index)

    def indices(deep: Any) -> Any:
        return deep["x"][0], index, psnb.worker_index()

    for worker in (0, 1):
        found = coordinator.schedule(indices, ({"x": [index]},), worker=worker).fetch(DEADLINE)
        assert found == (worker,) * 3


def test_a_dataset_is_made_on_each_worker_and_iterated_there(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    def numbers(context: psnb.InputContext) -> Any:
        n = context.worker_index
        while True:
            yield n
            n += 10

    iterator = iter(coordinator.create_per_worker_dataset(numbers))
    assert isinstance(iterator, psnb.PerWorkerValues)
    taken = coordinator.fetch([coordinator.schedule(next, (iterator,)) for _ in range(40)])
    for index in (0, 1):
        mine = [n for n in taken if n % 10 == index]
        assert sorted(mine) == [index + 10 * i for i in range(len(mine))]
    assert len(taken) == len(set(taken))


def test_two_iterators_of_a_dataset_are_independent(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    dataset = coordinator.create_per_worker_dataset(range(100))
    first, second = iter(dataset), iter(dataset)

    def take(a: Any, b: Any) -> tuple[int, int]:
        return next(a), next(b)

    for a, b in coordinator.fetch([coordinator.schedule(take, (first, second)) for _ in range(9)]):
        assert a == b


def test_iter_of_a_dataset_in_a_closure_is_refused(coordinator: psnb.ClusterCoordinator) -> None:
    dataset = coordinator.create_per_worker_dataset(psnb.data.Dataset.range(100))
    remote = coordinator.schedule(lambda it: int(next(iter(it))), (dataset,))
    with pytest.raises(errors.ConfigurationError, match=r"iterator = iter\(dataset\)"):
        remote.fetch(DEADLINE)
    with pytest.raises(errors.ConfigurationError):
        coordinator.join(DEADLINE)


def test_values_and_iterators_of_another_coordinator_are_refused(
    cluster: Client, coordinator: psnb.ClusterCoordinator
) -> None:
    """Those of a coordinator that is closed, as its cell was run again, have the same numbers."""
    step, data = ConsumedInputs(), psnb.data.Dataset.range
    with psnb.ParameterServerStrategy(cluster) as strategy:
        before = psnb.ClusterCoordinator(strategy)
        stale_value = before.create_per_worker_resource(int)
        stale_dataset = before.create_per_worker_dataset(data(4), sharding="dynamic")
        stale_iterator = iter(stale_dataset)
    mine = coordinator.create_per_worker_resource(float)
    iterator = iter(coordinator.create_per_worker_dataset(data(2), sharding="dynamic"))
    assert stale_iterator.resource_id == iterator.resource_id  # by their numbers they are the same
    mine_used, stale_used = (lambda value=value: str(value) for value in (mine, stale_value))
    assert coordinator.schedule(mine_used).fetch(DEADLINE) == "0.0"
    for wrong in (
        lambda: coordinator.schedule(str, (stale_value,)),
        lambda: coordinator.schedule(str, ({"deep": [stale_value]},)),
        lambda: coordinator.schedule(stale_used),
        lambda: coordinator.schedule(next, (stale_iterator,)),
        lambda: coordinator.create_per_worker_resource(str, (stale_value,)),
        lambda: coordinator.run_epoch(step, stale_iterator),
        lambda: psnb.Trainer(coordinator, step).train_from_dataset(stale_dataset),
        lambda: psnb.Trainer(coordinator, step).evaluate(stale_dataset),
    ):
        with pytest.raises(errors.ConfigurationError, match="another coordinator"):
            wrong()
    coordinator.join(DEADLINE)
    assert coordinator.statistics().completed == 1
    assert coordinator.run_epoch(step, iterator).visits == 2


class ConsumedInputs:
    """A step that takes an element."""

    def __call__(self, iterator: Any) -> None:
        psnb.report(element=next(iterator))


def test_next_in_the_notebook_is_refused(coordinator: psnb.ClusterCoordinator) -> None:
    iterator = iter(coordinator.create_per_worker_dataset([1, 2]))
    with pytest.raises(errors.ConfigurationError, match="inside a closure"):
        next(iterator)


def test_a_dataset_function_that_raises_fails_only_closures_that_use_it(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(lambda: 1 / 0))
    assert coordinator.schedule(lambda: 3).fetch(DEADLINE) == 3
    remote = coordinator.schedule(next, (iterator,))
    with pytest.raises(errors.ClosureInputError, match="division by zero"):
        remote.fetch(DEADLINE)
    with pytest.raises(errors.ClosureInputError):
        coordinator.join(DEADLINE)


def test_a_dataset_that_is_neither_iterable_nor_callable_is_refused(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    with pytest.raises(errors.ConfigurationError, match="iterable or a function"):
        coordinator.create_per_worker_dataset(3)


def test_an_unreferenced_per_worker_value_is_released_on_the_workers(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    value = coordinator.create_per_worker_resource(Tracked)
    coordinator.fetch([coordinator.schedule(id, (value,)) for _ in range(4)])
    wait_until(lambda: len(LIVE) == 2, "the value is there on both workers")
    del value

    def released() -> bool:
        coordinator.fetch([coordinator.schedule(lambda: None) for _ in range(4)])
        return all_gone()

    wait_until(released, "both workers have let it go")


def test_shapes_and_dtypes_of_a_dataset_are_those_on_the_workers(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    def made() -> psnb.data.Dataset:
        # Not known without running it.
        return psnb.data.Dataset.range(8).map(lambda n: (n, np.zeros(3, np.float32))).batch(2)

    first, second = psnb.data.ArraySpec((None,), np.int64), psnb.data.ArraySpec((None, 3), "f4")
    dataset = coordinator.create_per_worker_dataset(made)
    assert dataset.element_spec == (first, second)
    assert iter(dataset).element_spec == (first, second)
    for sharding in ("static", "dynamic"):
        other = coordinator.create_per_worker_dataset(made(), sharding=sharding)
        assert other.element_spec == iter(other).element_spec == (first, second)


def test_only_datasets_that_agree_tell_shapes_and_dtypes(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    with pytest.raises(errors.ConfigurationError, match="is a list"):
        _ = coordinator.create_per_worker_dataset([1, 2]).element_spec

    def differing(context: psnb.InputContext) -> psnb.data.Dataset:
        return psnb.data.Dataset.range(8).batch(context.worker_index + 1, drop_remainder=True)

    with pytest.raises(errors.ConfigurationError, match="different shapes"):
        _ = coordinator.create_per_worker_dataset(differing).element_spec


def test_a_dataset_in_the_workers_memory_tells_its_batches(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    kept = psnb.data.InMemoryDataset.of(psnb.data.Dataset.range(10), 4)
    dataset = coordinator.create_per_worker_dataset(kept)
    dataset.load_into_memory()
    expected = psnb.data.ArraySpec((None,), np.int64)
    assert dataset.element_spec == iter(dataset).element_spec == expected
