"""What psnb's plugins add to Dask's schedulers and workers while they run, and read of them.

All of it is called on the event loop of the scheduler or worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import dask
from distributed import Scheduler, Worker
from distributed.scheduler import WorkerState
from distributed.worker import _worker_cvar
from tornado.ioloop import PeriodicCallback
from tornado.web import RequestHandler

__all__ = ["WorkerState"]


def add_handler(node: Scheduler | Worker, name: str, function: Callable[..., Any]) -> None:
    """Have a scheduler or worker call a function for messages with the operation ``name``.

    Relies on ``Server.handlers``, a dict that is looked up for each message. If the function's
    first parameter is named ``comm``, it gets the connection; the rest comes from the message.
    """
    node.handlers[name] = function


def remove_handler(node: Scheduler | Worker, name: str) -> None:
    """Undo `add_handler`; idempotent."""
    node.handlers.pop(name, None)


def call_handler(scheduler: Scheduler, name: str, arguments: dict[str, Any]) -> Any:
    """Call a function that `add_handler` has added to a scheduler, and return what it returns.

    Relies on ``Server.handlers``.
    """
    return scheduler.handlers[name](**arguments)


def workers_of(scheduler: Scheduler) -> dict[str, dict[str, Any]]:
    """Return by address what the scheduler's ``identity`` says of a worker's role.

    Relies on ``Scheduler.workers``, and of each ``name``, ``status`` and ``resources``.
    """
    return {
        address: {
            "name": each.name,
            "status": each.status.name,
            "resources": dict(each.resources),
        }
        for address, each in scheduler.workers.items()
    }


def replace_operation(
    scheduler: Scheduler, name: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """Put a function in the place of an operation of the scheduler; return the one before.

    Relies on the operation being both a method, which the scheduler calls itself, and a handler of
    the same name, which clients and clusters call.
    """
    before: Callable[..., Any] = getattr(scheduler, name)
    setattr(scheduler, name, function)
    add_handler(scheduler, name, function)
    return before


def hold_tasks(scheduler: Scheduler, holder: str, keys: Iterable[str]) -> None:
    """Keep tasks for a holder that is not a client, as for Dask's own ``Variable``; idempotent.

    Keys that the scheduler does not have are left out. Relies on ``Scheduler.client_desires_keys``,
    which makes such a client up, and on ``Scheduler.tasks``.
    """
    there = [key for key in keys if key in scheduler.tasks]
    scheduler.client_desires_keys(keys=there, client=holder)


def release_tasks(scheduler: Scheduler, holder: str, keys: Iterable[str]) -> None:
    """Undo `hold_tasks`; idempotent. The scheduler forgets what nothing else wants.

    Relies on ``Scheduler.client_releases_keys``, and on ``Scheduler.clients`` by name.
    """
    if holder in scheduler.clients:
        scheduler.client_releases_keys(keys=list(keys), client=holder)


def actors_at(scheduler: Scheduler, address: str) -> set[str]:
    """Return the keys of the actors in a worker's process, as the scheduler knows them.

    Relies on ``WorkerState.actors``.
    """
    worker = scheduler.workers.get(address)
    return set() if worker is None else {task.key for task in worker.actors}


def actor_of(worker: Worker, key: str) -> Any:
    """Return the actor with this key that a worker holds; None if there is none.

    Relies on ``Worker.state``, and its ``actors`` by key.
    """
    return worker.state.actors.get(key)


def plugin_named(scheduler: Scheduler, name: str) -> Any:
    """Return the plugin of a scheduler with this name; None if there is none.

    Relies on ``Scheduler.plugins``, plugins by name.
    """
    return scheduler.plugins.get(name)


def add_route(
    scheduler: Scheduler, pattern: str, handler: type[RequestHandler], arguments: dict[str, Any]
) -> None:
    """Add a route to a scheduler's HTTP server.

    Relies on ``Scheduler.http_application``, a Tornado application that exists when plugins start.
    """
    scheduler.http_application.add_handlers(".*$", [(pattern, handler, arguments)])


def serves_dashboard(dask_scheduler: Scheduler) -> bool:
    """Return whether a scheduler serves Dask's dashboard: it may be off, or lack bokeh.

    Its HTTP server runs in any case, and ``Client.dashboard_link`` leads there. Relies on the
    application of bokeh being among the ``applications`` of ``Scheduler.http_application``; its
    parameter's name is the one under which ``Client.run_on_scheduler`` passes the scheduler.
    """
    return any(
        kind.__module__.startswith("bokeh.")
        for application in dask_scheduler.http_application.applications
        for kind in type(application).__mro__
    )


def call_every(
    scheduler: Scheduler, name: str, seconds: float, function: Callable[[], None]
) -> None:
    """Call a function again and again until the scheduler ends.

    Relies on ``Server.periodic_callbacks``, which Dask stops with the scheduler.
    """
    callback = PeriodicCallback(function, 1000 * seconds)
    scheduler.periodic_callbacks[name] = callback
    callback.start()


def keep_awake(scheduler: Scheduler) -> None:
    """Have a scheduler with an idle timeout count from now, as if it had worked until now.

    Relies on ``Scheduler.idle_since``: None while there is work.
    """
    scheduler.idle_since = None


def memory_limit(worker: Worker) -> int | None:
    """Return the bytes of memory that Dask grants a worker; None if there is no limit.

    Relies on ``Worker.memory_manager``.
    """
    return worker.memory_manager.memory_limit


def ended_at(worker: Worker) -> int | None:
    """Return the bytes of resident memory at which its nanny ends a worker; None if none does.

    Relies on ``Worker.nanny``, None if there is no nanny; on nannies giving their own memory limit
    and settings to their worker; and on them reading ``distributed.worker.memory.terminate``, and
    the ``rss`` of psutil.
    """
    limit = memory_limit(worker)
    fraction = dask.config.get("distributed.worker.memory.terminate")
    if worker.nanny is None or not limit or fraction is False:
        return None
    return int(limit * fraction)


def threads_of(worker: Worker) -> int:
    """Return how many tasks a worker runs at the same time.

    Relies on ``Worker.state``, a ``WorkerState`` of the worker's own side.
    """
    return int(worker.state.nthreads)


def be_worker(worker: Worker) -> None:
    """Let this thread be one of a worker's for ``distributed.get_worker`` and ``get_client``.

    Not on the event loop. Relies on ``distributed.worker._worker_cvar``, which Dask sets in the
    threads of its tasks.
    """
    _worker_cvar.set(worker)
