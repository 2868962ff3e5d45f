"""Dask's futures among the arguments of a closure: the worker fetches their results.

A closure gets what a Dask task would get: results in place of futures, at any depth. They go from
worker to worker, not through the notebook. Futures that a function has captured are refused where
they are used: Dask does not replace them there either.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from distributed import Client, Future, get_client, get_worker

from psnb._src.dask_compat.collections import scheduler_has
from psnb._src.dask_compat.reach import event_loop, scheduler_address
from psnb._src.protocol.notebook_only import LeftBehind
from psnb._src.utils.ownership import owned
from psnb._src.utils.text import error_text
from psnb._src.utils.threads import run_on_loop
from psnb.errors import ClosureInputError, ConfigurationError

_CAPTURED = (
    "a Dask future that a function has captured, or that a per-worker value is made with, stays in "
    "the notebook: pass it among the arguments of schedule(...), where its result takes its place"
)

_AGAIN = 0.02
"""Seconds after which the scheduler is asked again whether a graph has arrived."""


def captured(value: Any) -> tuple[Any, ...] | None:
    """Return how a future is pickled that is not an argument; None for other values."""
    return LeftBehind(_CAPTURED).__reduce__() if isinstance(value, Future) else None


class GivenFutures:
    """The futures among the arguments of one call.

    Parameters
    ----------
    client : distributed.Client
        The coordinator's.

    Attributes
    ----------
    found : list of distributed.Future
        They must stay alive until the closure has ended: else Dask drops the results.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.found: list[Future] = []

    def reduced(self, value: Any) -> tuple[Any, ...] | None:
        """Return how a future is pickled; None for any other value."""
        if not isinstance(value, Future):
            return None
        self.found.append(value)
        return _result, (value.key,)

    def require_own(self, name: str) -> None:
        """Raise ConfigurationError if one among a function's arguments is of another cluster."""
        mine = scheduler_address(self._client)
        for future in self.found:
            theirs = future.client  # None: it was unpickled, and has no client
            if theirs is None or scheduler_address(theirs) != mine:
                raise ConfigurationError(
                    f"a Dask future among the arguments of {name} is of another cluster: take its "
                    "result(), and pass that"
                )

    def await_tasks(self) -> None:
        """Wait until the scheduler has the tasks of all that are pending.

        To a worker that asks earlier it would say that they are lost: a large graph takes seconds
        to arrive, and a closure that is sent after it does not.
        """
        if any(future.status == "pending" for future in self.found):
            # Without a scheduler, the closure finds out.
            with suppress(OSError):
                run_on_loop(event_loop(self._client), self._arrival)

    async def _arrival(self) -> None:
        while keys := [future.key for future in self.found if future.status == "pending"]:
            if await scheduler_has(self._client, keys):
                return
            await asyncio.sleep(_AGAIN)


def _result(key: Any) -> Any:
    """Return the result of a future; in a closure thread, or where its client is."""
    client = get_client()
    future: Future = Future(key, client)
    try:
        # Dask informs a client of its own tasks only, so the future is given to one. It runs here:
        # elsewhere, on a parameter server above all, the result would only take memory.
        found = client.submit(_same, future, workers=_here(), pure=False).result()
    except Exception as error:  # whatever the task has raised, or why it was lost
        raise ClosureInputError(
            f"a Dask future among the closure's arguments has no result: {error_text(error)}"
        ) from error
    return owned(found)  # Dask hands out the very object that others get, too


def _here() -> list[str] | None:
    try:
        return [get_worker().address]
    except ValueError:  # in the notebook, where a closure that has failed is called again
        return None


def _same(value: Any) -> Any:
    return value
