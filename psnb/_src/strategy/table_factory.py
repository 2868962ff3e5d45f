"""TableFactory: makes the tables of variables and embeddings on the shards, and makes them again.

Thread-safe. `PlacedTables` records which table is where.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from psnb._src.checks import is_integer
from psnb._src.parameters import (
    CommServerClient,
    DenseShard,
    DenseShards,
    Embedding,
    EmbeddingSpec,
    NonFinite,
    Partitioner,
    Request,
    SparseShards,
    Variable,
)
from psnb._src.server import (
    CreateDense,
    CreateSparse,
    DropTable,
    Optimizer,
)
from psnb._src.shards import row_ranges
from psnb._src.strategy.placed_tables import Creation, PlacedTables, copies
from psnb._src.strategy.servers import Servers
from psnb.errors import ConfigurationError, PsnbError


class TableFactory:
    """Makes parameters.

    Every method raises `ServerLostError` if a server is gone; nothing was made then.

    Parameters
    ----------
    servers : Servers
        Where the tables go.
    server_client : CommServerClient
        Sends requests to the servers.
    partitioner : callable or None
        How variables are split.
    """

    def __init__(
        self, servers: Servers, server_client: CommServerClient, partitioner: Partitioner | None
    ) -> None:
        self._servers, self._server_client, self._partitioner = servers, server_client, partitioner
        self._lock = threading.Lock()  # guards the next field; not held during requests
        self._tables = PlacedTables(len(servers.shards))

    def variable(
        self, name: str, value: np.ndarray, optimizer: Optimizer | None, nonfinite: NonFinite
    ) -> Variable:
        """Make a variable, split as the partitioner says."""
        count = self._partitioner(value.shape, value.dtype) if self._partitioner else 1
        most = max(1, value.shape[0]) if value.shape else 1
        if not is_integer(count) or not 1 <= count <= most:
            raise ConfigurationError(
                f"variable {name!r}: the partitioner must return 1 to {most} shards for shape "
                f"{value.shape}, it returned {count!r}"
            )
        count = int(count)
        ranges = row_ranges(value.shape[0], count) if count > 1 else [(0, 0)]
        servers = [place.primary for place in self._servers.layout.places]
        parts: list[DenseShard] = []
        made: list[Creation] = []
        for start, stop in ranges:
            part = value[start:stop] if count > 1 else value
            with self._lock:
                index = self._tables.choose(part.nbytes * copies(optimizer), servers)
            # A shard may hold several parts of one variable.
            table = name if count == 1 else f"{name}/{start}"
            parts.append(DenseShard(self._servers.shards[index], table, start, stop))
            made.append((index, CreateDense(table, part, optimizer)))
        self._make(name, made)
        return Variable(
            DenseShards(
                name, value.shape, value.dtype, optimizer, parts, self._server_client, nonfinite
            )
        )

    def embedding(self, spec: EmbeddingSpec) -> Embedding:
        """Make an embedding, spread over all shards."""
        name, rows, shards = spec.name, spec.rows, self._servers.shards
        made = [
            (
                shard.number,
                CreateSparse(
                    name,
                    spec.dim,
                    rows,
                    index=shard.number,
                    shards=len(shards),
                    dtype=spec.dtype.str,
                    initializer=spec.initializer,
                    seed=spec.seed,
                    optimizer=spec.optimizer,
                    admission=spec.admission,
                    accessor=spec.accessor,
                ),
            )
            for shard in shards
        ]
        self._make(name, made)
        if rows is not None:
            row = spec.dim * spec.dtype.itemsize * copies(spec.optimizer)
            with self._lock:
                for index in range(len(shards)):
                    self._tables.count(index, len(range(index, rows, len(shards))) * row)
        return Embedding(SparseShards(spec, shards, self._server_client))

    def make_again(self, lost: Sequence[int]) -> None:
        """Make all tables of some shards again, as they were made first; variables hold zeros."""
        with self._lock:
            made = [creation for index in lost for creation in self._tables.made_on(index)]
        self._server_client.call(self._requests(made))

    def _make(self, parameter: str, made: Sequence[Creation]) -> None:
        requests = self._requests(made)
        try:
            self._server_client.call(requests)
        except BaseException:
            # Tables that some servers have made must not make another try fail.
            for number, creation in made:
                drop = Request(self._servers.shards[number], DropTable(creation.name))
                with suppress(PsnbError):
                    self._server_client.call([drop])
            raise
        with self._lock:
            self._tables.remember(parameter, made)

    def _requests(self, made: Sequence[Creation]) -> list[Request]:
        shards = self._servers.shards
        return [Request(shards[number], creation) for number, creation in made]
