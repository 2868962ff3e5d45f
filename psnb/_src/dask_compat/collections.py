"""Dask's collections: their partitions, and the tasks and results that these are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dask.base import compute, is_dask_collection
from dask.core import flatten
from dask.delayed import Delayed
from dask.delayed import delayed as make_delayed
from dask.sizeof import sizeof
from distributed import Client, Future, Worker
from distributed.client import futures_of
from distributed.utils_comm import gather_from_workers

from psnb._src.dask_compat.reach import ask_scheduler, pool_of

__all__ = ["Delayed", "compute", "futures_of", "is_dask_collection", "make_delayed", "sizeof"]


async def task_value(worker: Worker, key: Any) -> tuple[str | None, Any, bool]:
    """Return a task's state at the scheduler, its result, and whether that was fetched.

    The result is there only in the state ``memory``, None otherwise. A result on this worker is
    returned as it is; one on another is copied, and not kept. The state is None if the scheduler
    does not have the task. Relies on ``Worker.data``, on the handlers ``get_task_status`` and
    ``who_has``, and on ``gather_from_workers``, which returns what it got first.
    """
    if key in worker.data:
        return "memory", worker.data[key], False
    states: dict[Any, str | None] = await ask_scheduler(worker, "get_task_status", keys=[key])
    if states[key] != "memory":
        return states[key], None, False
    where = await holders(worker, [key])
    found, *_ = await gather_from_workers(where, pool_of(worker), who=worker.address)
    if key in found:
        return "memory", found[key], True
    return "processing", None, False  # the worker that had it is gone


async def holders(node: Client | Worker, keys: list[Any]) -> dict[Any, list[str]]:
    """Return the addresses of the workers that have the results of tasks.

    Relies on the handler ``who_has``; a task that the scheduler does not have has none.
    """
    return await ask_scheduler(node, "who_has", keys=keys)


async def scheduler_has(client: Client, keys: list[Any]) -> bool:
    """Return whether the scheduler has all of some tasks; raises as others do.

    It takes graphs one by one, in parallel with other messages: an earlier submission may arrive
    later. Relies on the handler ``get_task_status``, which answers None for an unknown task.
    """
    states: dict[Any, str | None] = await ask_scheduler(client, "get_task_status", keys=keys)
    return all(states.values())


def empty_frame(collection: Any) -> Any:
    """Return a frame or series like a collection's partitions, without rows; None for others.

    Relies on ``_meta``, and on ``divisions``, which frames and series alone have.
    """
    return getattr(collection, "_meta", None) if hasattr(collection, "divisions") else None


def partitions_kept(collection: Any) -> list[Future] | None:
    """Return the results that the partitions of a persisted collection are; None for others.

    Relies on the protocol of collections, ``__dask_graph__`` and ``__dask_keys__``; on futures in
    the graph; and on ``target``, which entries have that are another name for one.
    """
    if not futures_of(collection):
        return None
    graph = dict(collection.__dask_graph__())
    found = []
    for key in flatten(collection.__dask_keys__()):
        value: Any = graph.get(key)
        while hasattr(value, "target"):
            value = graph.get(value.target)
        if not isinstance(value, Future):
            return None
        found.append(value)
    return found


def partitions_delayed(collection: Any) -> list[Delayed]:
    """Return the partitions of a collection as delayed objects; of an array in a row."""
    delayed = collection.to_delayed()
    return list(flatten(delayed.tolist() if hasattr(delayed, "tolist") else delayed))


def with_own_tasks(several: Iterable[Delayed]) -> list[Delayed]:
    """Return delayed objects that have the tasks which they need, and no others.

    The keys of a collection refer to all of its tasks, which would be traversed for each of them.
    Relies on ``HighLevelGraph.get_all_dependencies``, and on `Delayed` taking a dict.
    """
    known: dict[int, tuple[Any, dict[Any, Any], Any]] = {}
    return [_culled(each, known) for each in several]


def _culled(delayed: Delayed, known: dict[int, tuple[Any, dict[Any, Any], Any]]) -> Delayed:
    graph = delayed.dask
    if not hasattr(graph, "get_all_dependencies"):
        return delayed
    if id(graph) not in known:  # with the graph: its id is its own as long as it lives
        known[id(graph)] = graph, dict(graph), graph.get_all_dependencies()
    _, tasks, dependencies = known[id(graph)]
    waiting: list[Any] = [delayed.key]
    found: dict[Any, Any] = {}
    while waiting:
        key = waiting.pop()
        if key not in found:
            found[key] = tasks[key]
            waiting += dependencies[key]
    return Delayed(delayed.key, found)


def tasks_of(delayed: Delayed) -> set[Any]:
    """Return the keys of the tasks that a delayed object has."""
    return set(delayed.dask)
