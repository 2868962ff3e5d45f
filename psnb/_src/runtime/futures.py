"""Dask's futures among the arguments of a closure: the worker fetches their results.

A closure gets what a task of Dask's would get: results in the place of futures, at any depth. They
go from the worker that has them to the one that needs them, and not through the notebook. What a
function has captured stays a future, as in Dask.
"""

from __future__ import annotations

from typing import Any

from distributed import Client, Future, get_client

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
        """Return how a future is pickled; None for any other value.

        Raises
        ------
        ConfigurationError
            If it is of another cluster.
        """
        if not isinstance(value, Future):
            return None
        if scheduler_address(value.client) != scheduler_address(self._client):
            raise ConfigurationError(
                "a future of another cluster: take its result(), and pass that"
            )
        self.found.append(value)
        return _result, (value.key,)


def _result(key: Any) -> Any:
    client = get_client()
    try:
        return client.gather(Future(key, client))
    except Exception as error:  # whatever the task has raised, or what became of it
        raise ClosureInputError(
            f"a Dask future among the closure's arguments has no result: {error_text(error)}"
        ) from error
