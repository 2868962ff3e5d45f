"""LiveOptimizer: the optimizer of a variable or embedding, as it is on the servers right now.

It keeps no hyperparameters: reading asks a server, so all processes see the same values. It
pickles as a description, like the `Variable` or `Embedding` that it belongs to. Any number of
threads may use one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from psnb._src.client.requests import Request, on_table
from psnb._src.client.server_client import ServerClient
from psnb._src.client.updates import client_of
from psnb._src.placement.layout import ShardId
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables.operations import CountUpdates, ReadOptimizer, ReadRate, TuneOptimizer
from psnb._src.server.tables.updater import tuned
from psnb.errors import ConfigurationError, PsnbError


class LiveOptimizer:
    """Hyperparameters that can be read and set during training.

    ``table.optimizer.learning_rate = 0.01`` applies from the next update on, on every shard. So
    does every other hyperparameter of the optimizer (and a schedule in place of a number), except
    those that need other optimizer state, such as ``centered``. Setting returns when all servers
    have the value. In a closure it happens immediately, not at the end, and again if the closure
    runs again. Restoring a checkpoint does not change hyperparameters.

    An embedding over several servers takes a ``clipnorm`` only if it was made with one: to know the
    norm of a push, its gradients must be summed by id before they are sent, which takes half as
    long as the push where ids do not repeat.

    Reading and setting raise `ServerLostError` if a server is gone; setting may then have reached
    the others. A value out of its range raises `ConfigurationError` and changes nothing.

    Parameters
    ----------
    made : Optimizer
        What the parameter was made with.
    name : str
        The parameter's name, for messages.
    tables : sequence of tuple
        Each shard, and the table there.
    server_client : ServerClient or None
        The client of their servers; None for the process's own.
    clips : bool
        Whether servers know the norm of a push, for ``clipnorm``.
    """

    __slots__ = ("_clips", "_made", "_name", "_server_client", "_tables")

    def __init__(
        self,
        made: Optimizer,
        name: str,
        tables: Sequence[tuple[ShardId, str]],
        server_client: ServerClient | None,
        clips: bool,
    ) -> None:
        # Not by this class's __setattr__, which sets hyperparameters.
        object.__setattr__(self, "_made", made)
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_tables", tuple(tables))
        object.__setattr__(self, "_server_client", server_client)
        object.__setattr__(self, "_clips", clips)

    def __reduce__(self) -> tuple[Any, ...]:
        return LiveOptimizer, (self._made, self._name, self._tables, None, self._clips)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names()]

    def __repr__(self) -> str:
        try:
            return repr(self.current())
        except PsnbError:  # a repr must also work after the strategy is closed
            return f"<psnb optimizer of {self._name!r}, out of reach; made as {self._made!r}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._names():
            raise AttributeError(f"{type(self._made).__name__} has no hyperparameter {name!r}")
        return getattr(self.current(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._names():
            raise ConfigurationError(
                f"{type(self._made).__name__} of {self._name!r} has no hyperparameter {name!r}; "
                f"it has {', '.join(self._names())}"
            )
        if name == "clipnorm" and value is not None and not self._clips:
            raise ConfigurationError(
                f"{self._name!r} was made without clipnorm, so its pushes do not carry their norm, "
                "and no server sees the whole of one: make it with clipnorm=, if only with one "
                "that clips nothing (clipnorm=1e30), which can then be changed"
            )
        # Checked here as well, so that no server accepts what another would refuse.
        checked = getattr(tuned(self._made, self._name, {name: value}), name)
        tune = TuneOptimizer({name: checked})
        self._reach().call([on_table(shard, table, tune) for shard, table in self._tables])

    @property
    def iterations(self) -> int:
        """How many updates were applied: one for each push, or round in mode `Sync`; read-only.

        For a parameter over several servers the highest count: a push to an embedding is an update
        only where some of its rows are. Checkpoints restore it.

        Raises
        ------
        ServerLostError
            If a server is gone.
        """
        requests = [on_table(shard, table, CountUpdates()) for shard, table in self._tables]
        return max(self._reach().call(requests))

    def current(self) -> Optimizer:
        """Ask the first shard's server for the optimizer as it is now."""
        return self._reach().call([self.request()])[0]

    def request(self) -> Request:
        """Return the request for the current optimizer."""
        shard, table = self._tables[0]
        return on_table(shard, table, ReadOptimizer())

    def rate_request(self) -> Request:
        """Return the request for the learning rate of the next update."""
        shard, table = self._tables[0]
        return on_table(shard, table, ReadRate())

    def describe(self) -> dict[str, Any]:
        """Return name and current hyperparameters as JSON can hold them."""
        return self.current().describe()

    def _names(self) -> list[str]:
        return [field.name for field in fields(self._made)]

    def _reach(self) -> ServerClient:
        return client_of(self._server_client)
