"""Dask's futures among the arguments of a closure: the worker fetches their results.

A closure gets what a task of Dask's would get: results in the place of futures, at any depth. They
go from the worker that has them to the one that needs them, and not through the notebook. What a
function has captured stays a future, as in Dask.
"""

from __future__ import annotations

from typing import Any

from distributed import Client, Future, get_client, get_worker

from psnb._src.dask_internals import scheduler_address
from psnb._src.excerpt import error_text
from psnb.errors import ClosureInputError, ConfigurationError


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
            if scheduler_address(future.client) != mine:
                raise ConfigurationError(
                    f"a Dask future among the arguments of {name} is of another cluster: take its "
                    "result(), and pass that"
                )


def _result(key: Any) -> Any:
    """Return the result of a future; in a closure thread, or where its client is."""
    client = get_client()
    future: Future = Future(key, client)
    try:
        # Dask tells a client of its own tasks only, so the future is given to one. It runs here:
        # elsewhere, on a parameter server above all, the result would only take memory.
        return client.submit(_same, future, workers=_here(), pure=False).result()
    except Exception as error:  # whatever the task has raised, or what became of it
        raise ClosureInputError(
            f"a Dask future among the closure's arguments has no result: {error_text(error)}"
        ) from error


def _here() -> list[str] | None:
    try:
        return [get_worker().address]
    except ValueError:  # in the notebook, where a closure that has failed is called again
        return None


def _same(value: Any) -> Any:
    return value
