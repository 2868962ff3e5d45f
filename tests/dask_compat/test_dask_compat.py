"""What psnb relies on in Dask: here fails first what a release of Dask changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, Scheduler, SchedulerPlugin, Worker

from psnb._src.dask_compat.plugins import (
    actor_of,
    actors_at,
    add_handler,
    call_every,
    call_handler,
    ended_at,
    hold_tasks,
    keep_awake,
    memory_limit,
    plugin_named,
    release_tasks,
    remove_handler,
    replace_operation,
    threads_of,
    workers_of,
)
from psnb._src.dask_compat.reach import (
    ask,
    ask_scheduler,
    connect_separately,
    event_loop,
    give_back_connection,
    has_ended,
    has_open_connection,
    is_connected,
    is_open,
    pool_of,
    scheduler_address,
    scheduler_identity,
    socket_stream,
)
from psnb._src.utils.threads import run_on_loop
from tests.conftest import DEADLINE, wait_until

PLUGIN = "psnb-test"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    """Dask's own, in this process, but with sockets, as between processes."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tcp://",
            dashboard_address="127.0.0.1:0",  # or it would take 8787
            scheduler_kwargs={"dashboard": False},
        ) as local,
        Client(local) as client,
    ):
        client.wait_for_workers(2, DEADLINE)
        yield client


@pytest.fixture
def scheduler(cluster: Client) -> Callable[[Callable[[Scheduler], Any]], Any]:
    """Runs a function with the scheduler, on its event loop."""

    def run(function: Callable[[Scheduler], Any]) -> Any:
        return cluster.run_on_scheduler(lambda dask_scheduler: function(dask_scheduler))

    return run


def test_the_scheduler_answers_a_handler_until_it_is_removed(
    cluster: Client, scheduler: Any
) -> None:
    def ask_it() -> Any:
        return run_on_loop(event_loop(cluster), partial(ask_scheduler, cluster, PLUGIN, number=3))

    scheduler(lambda it: add_handler(it, PLUGIN, lambda number: number + 1))
    assert ask_it() == 4
    scheduler(lambda it: remove_handler(it, PLUGIN))
    assert ask_it() != 4


def test_an_operation_is_replaced_for_callers_inside_and_outside(
    cluster: Client, scheduler: Any
) -> None:
    def replace(it: Scheduler) -> None:
        it.psnb_before = replace_operation(it, "adaptive_target", lambda *_, **__: 77)

    def put_back(it: Scheduler) -> None:
        replace_operation(it, "adaptive_target", it.psnb_before)

    scheduler(replace)
    try:
        assert scheduler(lambda it: it.adaptive_target()) == 77
        asking = partial(ask_scheduler, cluster, "adaptive_target")
        assert run_on_loop(event_loop(cluster), asking) == 77
    finally:
        scheduler(put_back)
    assert scheduler(lambda it: it.adaptive_target()) != 77


def test_a_plugin_is_found_by_its_name(cluster: Client, scheduler: Any) -> None:
    class Found(SchedulerPlugin):
        name = PLUGIN

    cluster.register_plugin(Found())
    assert scheduler(lambda it: type(plugin_named(it, PLUGIN)).__name__) == "Found"
    cluster.unregister_scheduler_plugin(PLUGIN)
    assert scheduler(lambda it: plugin_named(it, PLUGIN)) is None


def test_what_is_called_again_and_again_is_where_dask_stops_it(cluster: Client) -> None:
    async def count(dask_scheduler: Scheduler) -> bool:
        called = asyncio.Event()
        call_every(dask_scheduler, PLUGIN, 0.01, called.set)
        await asyncio.wait_for(called.wait(), 10)
        callback = dask_scheduler.periodic_callbacks.pop(PLUGIN)
        callback.stop()
        return called.is_set()

    assert cluster.run_on_scheduler(count)


def test_a_scheduler_that_is_kept_awake_does_not_count_as_idle(scheduler: Any) -> None:
    def wake(it: Scheduler) -> bool:
        it.check_idle()
        keep_awake(it)
        return it.idle_since is None and it.check_idle() is not None

    assert scheduler(wake)


def test_the_scheduler_names_all_workers_and_what_they_are(cluster: Client) -> None:
    found = run_on_loop(event_loop(cluster), partial(scheduler_identity, cluster))
    assert found["address"] == scheduler_address(cluster)
    assert len(found["workers"]) == 2
    for worker in found["workers"].values():
        assert worker["status"] == "running"
        assert {"name", "resources"} <= worker.keys()


def test_the_scheduler_itself_describes_workers_in_the_same_way(
    cluster: Client, scheduler: Callable[..., Any]
) -> None:
    identity = run_on_loop(event_loop(cluster), partial(scheduler_identity, cluster))
    assert scheduler(workers_of) == {
        address: {key: worker[key] for key in ("name", "status", "resources")}
        for address, worker in identity["workers"].items()
    }


def test_a_handler_is_called_on_the_scheduler_itself(scheduler: Callable[..., Any]) -> None:
    def both(dask_scheduler: Scheduler) -> Any:
        add_handler(dask_scheduler, PLUGIN, lambda x: x + 1)
        try:
            return call_handler(dask_scheduler, PLUGIN, {"x": 1})
        finally:
            remove_handler(dask_scheduler, PLUGIN)

    assert scheduler(both) == 2


def test_a_connection_of_ones_own_is_a_socket_and_asks(cluster: Client) -> None:
    async def talk() -> Any:
        comm = await connect_separately(cluster, scheduler_address(cluster))
        try:
            assert socket_stream(comm) is not None
            return await ask(comm, "identity", n_workers=-1)
        finally:
            comm.abort()

    assert run_on_loop(event_loop(cluster), talk)["type"] == "Scheduler"


def test_a_connection_that_is_given_back_is_there_for_the_next(cluster: Client) -> None:
    async def talk() -> tuple[bool, bool]:
        pool, address = pool_of(cluster), scheduler_address(cluster)
        taken = [await pool.connect(address)]
        while has_open_connection(pool, address):
            taken.append(await pool.connect(address))
        give_back_connection(pool, address, taken.pop())
        there = has_open_connection(pool, address)
        for comm in taken:
            give_back_connection(pool, address, comm)
        return there, is_open(pool)

    assert run_on_loop(event_loop(cluster), talk) == (True, True)


def test_a_connection_that_has_broken_is_not_there(cluster: Client) -> None:
    async def talk() -> bool:
        pool, address = pool_of(cluster), scheduler_address(cluster)
        taken = [await pool.connect(address)]
        while has_open_connection(pool, address):
            taken.append(await pool.connect(address))
        broken = taken.pop()
        give_back_connection(pool, address, broken)
        broken.abort()
        there = has_open_connection(pool, address)
        for comm in taken:
            give_back_connection(pool, address, comm)
        return there

    assert not run_on_loop(event_loop(cluster), talk)


def test_a_client_is_connected_until_it_is_closed(cluster: Client) -> None:
    with Client(scheduler_address(cluster), loop=cluster.loop) as client:
        pool = pool_of(client)
        assert is_connected(client)
        assert not has_ended(client)
    assert not is_connected(client)
    assert has_ended(client)
    assert not is_open(pool)
    assert scheduler_address(client) == ""
    with pytest.raises(ConnectionError, match="closed"):
        run_on_loop(event_loop(cluster), partial(scheduler_identity, client))


def test_a_worker_tells_its_threads_and_its_memory(cluster: Client) -> None:
    def look(dask_worker: Worker) -> tuple[int, int | None]:
        return threads_of(dask_worker), memory_limit(dask_worker)

    for threads, memory in cluster.run(look).values():
        assert threads == 1
        assert memory is None or memory > 1 << 20


def test_a_worker_without_a_nanny_is_not_ended_for_its_memory(cluster: Client) -> None:
    def look(dask_worker: Worker) -> int | None:
        return ended_at(dask_worker)

    assert set(cluster.run(look).values()) == {None}


@pytest.mark.parametrize(
    ("limit", "fraction", "expected"),
    [(1000, 0.95, 950), (1000, False, None), (None, 0.95, None)],
)
def test_a_nanny_ends_a_worker_at_a_share_of_its_limit(
    limit: int | None, fraction: float, expected: int | None
) -> None:
    memory = SimpleNamespace(memory_limit=limit)
    worker: Any = SimpleNamespace(nanny="tcp://127.0.0.1:1", memory_manager=memory)
    with dask.config.set({"distributed.worker.memory.terminate": fraction}):
        assert ended_at(worker) == expected


def test_an_actor_lives_while_it_is_referenced(cluster: Client, scheduler: Any) -> None:
    key = f"{PLUGIN}-actor"
    future = cluster.submit(dict, {"a": 1}, key=key, actor=True, pure=False)
    assert future.exception() is None
    (address,) = cluster.who_has([future])[key]

    def held(dask_worker: Worker) -> Any:
        return actor_of(dask_worker, key)

    scheduler(lambda it: hold_tasks(it, PLUGIN, [key, "unknown"]))
    scheduler(lambda it: hold_tasks(it, PLUGIN, [key]))
    assert scheduler(lambda it: actors_at(it, address)) == {key}
    assert scheduler(lambda it: actors_at(it, "unknown")) == set()
    future.release()
    wait_until(lambda: scheduler(lambda it: len(it.tasks[key].who_wants)) == 1, "it is released")
    assert cluster.run(held, workers=[address]) == {address: {"a": 1}}
    scheduler(lambda it: release_tasks(it, "unknown", [key]))
    scheduler(lambda it: release_tasks(it, PLUGIN, [key, "unknown"]))
    scheduler(lambda it: release_tasks(it, PLUGIN, [key]))
    wait_until(lambda: cluster.run(held, workers=[address]) == {address: None}, "it is freed")
    assert key not in scheduler(lambda it: set(it.tasks))
