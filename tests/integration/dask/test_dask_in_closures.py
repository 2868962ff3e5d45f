"""What of Dask works in closures: their worker, a client, futures and actors among arguments."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import dask
import distributed
import pytest
from distributed import Client

import psnb
from psnb import errors
from psnb._src.cluster.roles import identity
from tests.conftest import DEADLINE, wait_until

PROCESSES = True


class Tally:
    """Counts, somewhere."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, more: int) -> int:
        self.count += more
        return self.count


def test_a_closure_knows_its_worker_and_gets_a_client(
    cluster: Client, coordinator: psnb.ClusterCoordinator
) -> None:
    def where() -> tuple[str, int]:
        worker, client = distributed.get_worker(), distributed.get_client()
        return worker.address, client.submit(abs, -3).result()

    address, three = coordinator.schedule(where).fetch(DEADLINE)
    assert address in identity(cluster)["workers"]
    assert three == 3


def test_per_worker_values_are_made_where_the_worker_is_known(
    cluster: Client, coordinator: psnb.ClusterCoordinator
) -> None:
    made = coordinator.create_per_worker_resource(lambda: distributed.get_worker().address)
    address = coordinator.schedule(lambda value: value, args=(made,)).fetch(DEADLINE)
    assert address in identity(cluster)["workers"]


def test_futures_among_arguments_are_replaced_by_their_results(
    cluster: Client, coordinator: psnb.ClusterCoordinator
) -> None:
    one, two = cluster.submit(lambda: [1], pure=False), cluster.submit(lambda: 2, pure=False)

    def given(first: Any, nested: Any, *, named: Any) -> Any:
        return first, nested, named, first is nested["first"]

    remote = coordinator.schedule(
        given, args=(one, {"first": one, "two": [two]}), kwargs={"named": (two,)}
    )
    assert remote.fetch(DEADLINE) == ([1], {"first": [1], "two": [2]}, (2,), True)


def test_a_future_is_kept_until_the_closure_has_ended(
    cluster: Client, coordinator: psnb.ClusterCoordinator
) -> None:
    coordinator.pause()
    future = cluster.submit(lambda: 4, pure=False)
    remote = coordinator.schedule(lambda value: value, args=(future,))
    kept = weakref.ref(future)
    del future
    coordinator.resume()
    assert remote.fetch(DEADLINE) == 4
    wait_until(lambda: kept() is None, "the future is released")


def test_a_future_whose_graph_has_not_arrived_yet_is_waited_for(
    cluster: Client, coordinator: psnb.ClusterCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving, released = threading.Event(), threading.Event()
    materialize = distributed.scheduler._materialize_graph

    def late(*args: Any, **kwargs: Any) -> Any:  # in a thread beside the scheduler's loop, here
        arriving.set()
        released.wait(DEADLINE)
        return materialize(*args, **kwargs)

    monkeypatch.setattr(distributed.scheduler, "_materialize_graph", late)
    future = cluster.compute(dask.delayed(abs)(-5))
    assert arriving.wait(DEADLINE)
    with ThreadPoolExecutor(1) as threads:
        remote = threads.submit(
            lambda: coordinator.schedule(lambda value: value, args=(future,)).fetch(DEADLINE)
        )
        wait([remote], 0.5)  # a closure that is sent at once asks for the future meanwhile
        released.set()
        assert remote.result(DEADLINE) == 5


def test_the_error_of_a_future_is_that_of_the_closure(
    cluster: Client, coordinator: psnb.ClusterCoordinator
) -> None:
    def fail() -> None:
        raise KeyError("of a task")

    future = cluster.submit(fail, pure=False)
    remote = coordinator.schedule(print, args=(future,))
    with pytest.raises(errors.ClosureInputError, match="a Dask future among the closure's") as e:
        remote.fetch(DEADLINE)
    assert "KeyError: 'of a task'" in str(e.value)


def test_a_captured_future_is_refused_where_it_is_used(
    cluster: Client, coordinator: psnb.ClusterCoordinator
) -> None:
    future = cluster.submit(abs, -1, pure=False)

    def use(really: bool) -> Any:
        return future.result() if really else None

    assert coordinator.schedule(use, args=(False,)).fetch(DEADLINE) is None
    with pytest.raises(errors.ConfigurationError, match="pass it among the arguments"):
        coordinator.schedule(use, args=(True,)).fetch(DEADLINE)


def test_the_future_of_another_cluster_is_refused(coordinator: psnb.ClusterCoordinator) -> None:
    with psnb.local_cluster(1, 1, processes=False) as other:
        future = other.submit(abs, -1)
        with pytest.raises(errors.ConfigurationError, match="of print is of another cluster"):
            coordinator.schedule(print, args=(future,))


def test_an_actor_of_the_users_is_called_from_closures(
    cluster: Client, coordinator: psnb.ClusterCoordinator
) -> None:
    tally = cluster.submit(Tally, actor=True).result()

    def add(actor: Any) -> int:
        count: int = actor.add(2).result()
        return count

    counts = [coordinator.schedule(add, args=(tally,)).fetch(DEADLINE) for _ in range(3)]
    assert counts == [2, 4, 6]
