"""ParameterShards: a variable or embedding inside psnb, and the access to its shards.

Users hold a `Variable` or an `Embedding`, which refers to a `ParameterShards`. It is a
description and keeps no values, so any number of threads may use one. It pickles into closures
without its `ServerClient`: each process has its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from psnb._src.client.arguments import NonFinite
from psnb._src.client.live_optimizer import LiveOptimizer
from psnb._src.client.requests import on_table
from psnb._src.client.server_client import ServerClient
from psnb._src.client.updates import ShardWrite, client_of, write
from psnb._src.placement.layout import ShardId
from psnb._src.server.kernels import all_finite
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables.operations import ReadOptimizer
from psnb.errors import ConfigurationError, InvalidArrayError


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
    name, tables : str, tuple
        As given.
    made_with : Optimizer or None
        The optimizer that it was made with.
    """

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
        self._server_client = server_client

    @property
    def optimizer(self) -> LiveOptimizer | None:
        """What the servers do with pushed gradients; its hyperparameters can be set live."""
        if self.made_with is None:
            return None
        return LiveOptimizer(
            self.made_with, self.name, self.tables, self._server_client, self._knows_norm()
        )

    @property
    def server_client(self) -> ServerClient:
        """The client of the servers; in a closure, the closure's own."""
        return client_of(self._server_client)

    def servers(self) -> list[str]:
        """Return what people call the servers that have its shards, each once."""
        client = self.server_client
        return sorted({client.server_name(shard) for shard, _ in self.tables})

    @property
    def key(self) -> object:
        """The same for all handles of one parameter, also in other processes."""
        return self.tables

    @property
    def refuses_nonfinite(self) -> bool:
        """Whether a step that is not finite is refused, rather than left out or applied."""
        return self._nonfinite is NonFinite.REFUSE

    @property
    def clips_by_norm(self) -> bool:
        """Whether the optimizer may clip gradients by a norm that no single shard knows."""
        return self.made_with is not None and self.made_with.clipnorm is not None

    @property
    def table_names(self) -> frozenset[str]:
        """The names of its tables on the shards."""
        return frozenset(table for _, table in self.tables)

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

    def _knows_norm(self) -> bool:
        """Return whether servers know the norm of a push."""
        return True

    def optimizer_left(self, lost: Collection[int]) -> Optimizer | None:
        """Return the optimizer with the hyperparameters that it has on shards that are not lost.

        Without such a shard, as it was made.
        """
        kept = [table for table in self.tables if table[0].number not in lost]
        if self.made_with is None or not kept:
            return self.made_with
        left: Optimizer = self.server_client.call([on_table(*kept[0], ReadOptimizer())])[0]
        return left

    def send(self, writes: Sequence[ShardWrite], immediate: bool) -> None:
        """Make writes of this parameter, and of others with the same `ServerClient`."""
        write(self.server_client, writes, immediate=immediate)


def clipped_tables(parameters: Iterable[ParameterShards]) -> dict[str, str]:
    """Return the tables that are clipped by norm, and their parameters: see `end_round`."""
    return {
        table: parameter.name
        for parameter in parameters
        if parameter.clips_by_norm
        for table in parameter.table_names
    }
