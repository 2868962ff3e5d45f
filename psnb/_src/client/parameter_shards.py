"""ParameterShards: a variable or embedding inside psnb, and the access to its shards.

Users hold a `Variable` or an `Embedding`, which refers to a `ParameterShards`. It is a
description and keeps no values, so any number of threads may use one. It pickles into closures
without its `ServerClient`: each process has its own. `LiveOptimizer` is its optimizer, as it is on
the servers right now.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from psnb._src.client.arguments import NonFinite
from psnb._src.client.requests import Request, on_table
from psnb._src.client.server_client import ServerClient
from psnb._src.client.updates import client_of
from psnb._src.client.whole_tables import SavedState, TableLoad, in_memory, load_tables, loading
from psnb._src.placement.layout import ShardId
from psnb._src.server.kernels import all_finite
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.checks import Expected
from psnb._src.server.tables.updater import tuned
from psnb.errors import ConfigurationError, InvalidArrayError, PsnbError

P = TypeVar("P")


class ParameterShards:
    """A parameter, and how its shards are reached.

    Parameters
    ----------
    name : str
        Unique within the strategy.
    optimizer : Optimizer or None
        The optimizer that it was made with.
    tables : sequence of tuple
        The shards that hold it, and the name of its table on each.
    server_client : ServerClient or None
        The client of their servers; None for the process's own.
    nonfinite : NonFinite
        What happens to gradients that are not finite.

    Attributes
    ----------
    own_client : ServerClient or None
        As given as ``server_client``.
    name, tables : str, tuple
        As given; ``tables`` are the same for all handles of one parameter, in any process.
    made_with : Optimizer or None
        The optimizer that it was made with.
    changes : deque of tuple
        When which hyperparameter was set to what by this object, the latest thousand.
    """

    knows_norm = True
    """Whether servers know the norm of a push."""

    def __init__(
        self,
        name: str,
        optimizer: Optimizer | None,
        tables: Sequence[tuple[ShardId, str]],
        server_client: ServerClient | None,
        nonfinite: NonFinite,
    ) -> None:
        self.name = name
        self.made_with, self._nonfinite = optimizer, nonfinite
        self.tables = tuple(tables)
        self.own_client = server_client
        self.changes: deque[tuple[float, str, Any]] = deque(maxlen=1_000)  # atomic: append, copy

    @property
    def optimizer(self) -> LiveOptimizer | None:
        """What the servers do with pushed gradients; its hyperparameters can be set live."""
        return None if self.made_with is None else LiveOptimizer(self)

    @property
    def server_client(self) -> ServerClient:
        """The client of the servers; in a closure, the closure's own."""
        return client_of(self.own_client)

    def servers(self) -> list[str]:
        """Return what people call the servers that have its shards, each once."""
        found = {shard: self.server_client.server_of(shard) for shard, _ in self.tables}
        return sorted({at.name if at else f"shard {to.number}" for to, at in found.items()})

    @property
    def refuses_nonfinite(self) -> bool:
        """Whether a step that is not finite is refused, rather than left out or applied."""
        return self._nonfinite is NonFinite.REFUSE

    @property
    def clips_by_norm(self) -> bool:
        """Whether the optimizer may clip gradients by a norm that no single shard knows."""
        return self.made_with is not None and self.made_with.clipnorm is not None

    def require_optimizer(self) -> None:
        """Raise ConfigurationError if gradients cannot be pushed."""
        if self.made_with is None:
            raise ConfigurationError(
                f"{self.name!r} has no optimizer, so gradients cannot be pushed to it: "
                "make it with optimizer=psnb.SGD(...) or another one"
            )

    def must_skip(self, gradients: np.ndarray, what: str) -> bool:
        """Return whether some are not finite and left out, or raise InvalidArrayError."""
        if self._nonfinite is NonFinite.ALLOW or all_finite(gradients):
            return False
        if self._nonfinite is NonFinite.SKIP:
            return True
        bad = np.argwhere(~np.isfinite(gradients))
        first = tuple(bad[0].tolist())
        raise InvalidArrayError(
            f"{what}: {len(bad)} of {gradients.size} numbers are not finite, the first "
            f"{gradients[first]} at {first}; nothing was changed. Mend the model (a smaller "
            "learning rate, clipnorm=), or make the parameter with nonfinite='skip' to leave such "
            "updates out"
        )

    def elsewhere(self, strategy: str, server_client: ServerClient) -> ParameterShards:
        """Return it as it is on the same shards of a strategy with another id."""
        raise NotImplementedError

    def optimizer_left(self, lost: Collection[int]) -> Optimizer | None:
        """Return the optimizer with the hyperparameters that it has on shards that are not lost.

        Without such a shard, as it was made.
        """
        kept = [table for table in self.tables if table[0].number not in lost]
        if self.made_with is None or not kept:
            return self.made_with
        left: Optimizer = self.server_client.call([on_table(*kept[0], ops.ReadOptimizer())])[0]
        return left

    @property
    def saved_form(self) -> Expected:
        """What each of its shards in a checkpoint must be."""
        raise NotImplementedError

    def loads(
        self, states: Sequence[SavedState], only: Collection[int] | None = None
    ) -> list[TableLoad]:
        """Return what its tables get of its shards in a checkpoint, of which it has any number.

        For all of its tables, or those on the shards in ``only``.
        """
        raise NotImplementedError

    def load_states(self, states: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Replace its content by what the states of its shards were, of any number of them."""
        loads = self.loads([*map(in_memory, states)])
        with loading(self.server_client, loads):
            load_tables(self.server_client, loads)

    def ask_all(self, operation: ops.TableOperation) -> list[Any]:
        """Run an operation on all of its tables."""
        return self.server_client.call([on_table(*table, operation) for table in self.tables])


class LiveOptimizer:
    """Hyperparameters that can be read and set during training; it keeps none.

    It pickles as a description, like the parameter. Any number of threads may use one.

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
    shards : ParameterShards
        Those of the parameter, which was made with an optimizer.
    """

    __slots__ = ("_shards",)

    _shards: ParameterShards

    def __init__(self, shards: ParameterShards) -> None:
        # Not by this class's __setattr__, which sets hyperparameters.
        object.__setattr__(self, "_shards", shards)

    def __reduce__(self) -> tuple[Any, ...]:
        return LiveOptimizer, (self._shards,)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names()]

    def __repr__(self) -> str:
        try:
            return repr(self.current())
        except PsnbError:  # a repr must also work after the strategy is closed
            return (
                f"<psnb optimizer of {self._shards.name!r}, out of reach; made as {self._made!r}>"
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._names():
            raise AttributeError(f"{type(self._made).__name__} has no hyperparameter {name!r}")
        return getattr(self.current(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        shards, kind = self._shards, type(self._made).__name__
        if name not in self._names():
            raise ConfigurationError(
                f"{kind} of {shards.name!r} has no hyperparameter {name!r}; it has "
                f"{', '.join(self._names())}"
            )
        if name == "clipnorm" and value is not None and not shards.knows_norm:
            raise ConfigurationError(
                f"{shards.name!r} was made without clipnorm, so its pushes do not carry their "
                "norm, and no server sees the whole of one: make it with clipnorm=, if only with "
                "one that clips nothing (clipnorm=1e30), which can then be changed"
            )
        # Checked here as well, so that no server accepts what another would refuse.
        changed = tuned(self._made, shards.name, {name: value})
        shards.ask_all(ops.TuneOptimizer({name: getattr(changed, name)}))
        shards.changes.append((time.time(), name, changed.describe()[name]))

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
        return max(self._shards.ask_all(ops.CountUpdates()))

    def current(self) -> Optimizer:
        """Ask the first shard's server for the optimizer as it is now."""
        return self._shards.server_client.call([self.request()])[0]

    def request(self) -> Request:
        """Return the request for the current optimizer."""
        return on_table(*self._shards.tables[0], ops.ReadOptimizer())

    def rate_request(self) -> Request:
        """Return the request for the learning rate of the next update."""
        return on_table(*self._shards.tables[0], ops.ReadRate())

    def describe(self) -> dict[str, Any]:
        """Return name and current hyperparameters as JSON can hold them."""
        return self.current().describe()

    @property
    def _made(self) -> Optimizer:
        assert self._shards.made_with is not None
        return self._shards.made_with

    def _names(self) -> list[str]:
        return [field.name for field in fields(self._made)]


def clipped_tables(parameters: Iterable[ParameterShards]) -> dict[str, str]:
    """Return the tables that are clipped by norm, and their parameters: see `end_round`."""
    return {
        table: parameter.name
        for parameter in parameters
        if parameter.clips_by_norm
        for _, table in parameter.tables
    }


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def divided(
    parts: Sequence[P], numbers: np.ndarray, owners: Callable[[np.ndarray], np.ndarray]
) -> list[tuple[P, Any]]:
    """Return each part that has some of the numbers (ids, or rows), with their positions."""
    if numbers.size == 0:
        return []
    if len(parts) == 1:
        return [(parts[0], slice(None))]
    of = owners(numbers)
    split = [(part, np.flatnonzero(of == i)) for i, part in enumerate(parts)]
    return [(part, at) for part, at in split if at.size]
