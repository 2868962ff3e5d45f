"""TableFactory: makes the tables of variables and embeddings on the shards, and makes them again.

Thread-safe. `PlacedTables` records which table is where.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from psnb._src.checks import is_integer
from psnb._src.excerpt import shown
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
    check_by_element,
    shards_of,
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
    half : bool
        Whether values and gradients of float32 travel with 16 bits.
    describe : callable
        Called with each parameter whose tables were made; if it raises, they are dropped.
    """

    def __init__(
        self,
        servers: Servers,
        server_client: CommServerClient,
        partitioner: Partitioner | None,
        half: bool,
        describe: Callable[[Variable | Embedding], None],
    ) -> None:
        self._servers, self._server_client, self._partitioner = servers, server_client, partitioner
        self._half, self._describe = half, describe
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
                f"{value.shape}, it returned {shown(count)}"
            )
        count = int(count)
        if count > 1:
            check_by_element(optimizer, f"variable {name!r}, in {count} parts,")
        ranges = row_ranges(value.shape[0], count) if count > 1 else [(0, 0)]
        servers = [place.primary for place in self._servers.layout.places]
        parts: list[DenseShard] = []
        for start, stop in ranges:
            nbytes = (value[start:stop] if count > 1 else value).nbytes
            with self._lock:
                index = self._tables.choose(nbytes * copies(optimizer), servers)
            # A shard may hold several parts of one variable.
            table = name if count == 1 else f"{name}/{start}"
            parts.append(DenseShard(self._servers.shards[index], table, start, stop))
        made = DenseShards(
            *(name, value.shape, value.dtype, optimizer, parts, self._server_client, nonfinite),
            self._half and value.dtype == np.float32,
        )
        variable = Variable(made)
        self._make(variable, _dense_creations(made, value))
        return variable

    def embedding(self, spec: EmbeddingSpec) -> Embedding:
        """Make an embedding, spread over all shards."""
        spec = replace(spec, half=self._half and spec.dtype == np.float32)
        made = SparseShards(spec, self._servers.shards, self._server_client)
        embedding = Embedding(made)
        self._make(embedding, _sparse_creations(made))
        self._count_rows(spec)
        return embedding

    def take(self, parameter: Variable | Embedding) -> Variable | Embedding:
        """Return a handle of a parameter that another process has made."""
        taken: Variable | Embedding
        shards = shards_of(parameter).elsewhere(self._servers.name, self._server_client)
        if isinstance(shards, SparseShards):
            made = _sparse_creations(shards)
            taken = Embedding(shards)
            self._count_rows(shards.spec)
        else:
            # One zero, seen as an array of the shape.
            zeros = np.broadcast_to(np.zeros((), shards.dtype), shards.shape)
            made = _dense_creations(shards, zeros)
            taken = Variable(shards)
            with self._lock:
                for part in shards.parts:
                    size = shards.part_nbytes(part) * copies(shards.made_with)
                    self._tables.count(part.shard.number, size)
        with self._lock:
            self._tables.remember(taken.name, made, known=False)
        return taken

    def _count_rows(self, spec: EmbeddingSpec) -> None:
        count = len(self._servers.shards)
        if spec.rows is not None:
            row = spec.dim * spec.dtype.itemsize * copies(spec.optimizer)
            with self._lock:
                for index in range(count):
                    self._tables.count(index, len(range(index, spec.rows, count)) * row)

    def make_again(
        self,
        numbers: Collection[int],
        optimizers: Mapping[str, Optimizer | None],
        values: Mapping[tuple[int, str], np.ndarray],
    ) -> None:
        """Make all tables of some shards again, with nothing of what they have learned.

        Parameters
        ----------
        numbers : collection of int
            The shards.
        optimizers : mapping
            Those of all parameters, with the hyperparameters that they have now.
        values : mapping
            What variables begin with, by shard and table, in place of the values that they were
            made with. Of others, those that are not kept (`unkept`) hold zeros.
        """
        with self._lock:
            made = self._tables.made_on(numbers, optimizers, values)
        self._server_client.call(self._requests(made))

    def forget_values(self, variable: str) -> None:
        """Note that the values that a variable was made with only hold the place of others."""
        with self._lock:
            self._tables.forget_values(variable)

    def unkept(self, numbers: Collection[int]) -> list[str]:
        """Return the variables on some shards that cannot begin with their initial values."""
        with self._lock:
            return self._tables.unkept(numbers)

    def _make(self, parameter: Variable | Embedding, made: Sequence[Creation]) -> None:
        requests = self._requests(made)
        try:
            self._server_client.call(requests)
            self._describe(parameter)
        except BaseException:
            # Tables that some servers have made must not make another try fail.
            for number, creation in made:
                drop = Request(self._servers.shards[number], DropTable(creation.name))
                with suppress(PsnbError):
                    self._server_client.call([drop])
            raise
        with self._lock:
            self._tables.remember(parameter.name, made)

    def _requests(self, made: Sequence[Creation]) -> list[Request]:
        shards = self._servers.shards
        return [Request(shards[number], creation) for number, creation in made]


def _dense_creations(shards: DenseShards, value: np.ndarray) -> list[Creation]:
    whole = len(shards.parts) == 1
    return [
        (
            part.shard.number,
            CreateDense(
                part.table, value if whole else value[part.start : part.stop], shards.made_with
            ),
        )
        for part in shards.parts
    ]


def _sparse_creations(shards: SparseShards) -> list[Creation]:
    spec, count = shards.spec, len(shards.shard_ids)
    return [
        (
            shard.number,
            CreateSparse(
                spec.name,
                spec.dim,
                spec.rows,
                index=shard.number,
                shards=count,
                dtype=spec.dtype.str,
                initializer=spec.initializer,
                seed=spec.seed,
                optimizer=spec.optimizer,
                admission=spec.admission,
                accessor=spec.accessor,
            ),
        )
        for shard in shards.shard_ids
    ]
