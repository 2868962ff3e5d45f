"""TableFactory: makes the tables of variables and embeddings on the shards, and makes them again.

Thread-safe. `TablePlacement` records which table is where.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from html import escape
from typing import Any

import msgspec
import numpy as np

from psnb._src.client.arguments import NonFinite, check_by_element
from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.dense_shards import DenseShard, DenseShards
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.client.requests import Request
from psnb._src.client.sparse_shards import EmbeddingSpec, SparseShards
from psnb._src.client.variable import Variable
from psnb._src.monitor.html.tables import html_table
from psnb._src.monitor.statistics import ServerStatistics
from psnb._src.server.operations import CreateDense, CreateSparse, CreateTable, DropTable
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables.sharding import Partitioner, row_ranges
from psnb._src.strategy.servers import Servers
from psnb._src.utils.checks import is_integer
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, PsnbError

Creation = tuple[int, CreateTable]
"""The number of a shard, and the operation that makes a table there."""

MOST_KEPT = 256 << 20
"""Bytes of initial values that are kept; values that are all equal take none."""


class TablePlacement:
    """Which tables were placed on which shards. Not thread-safe; `TableFactory` locks it.

    It remembers how each table was made, so that it can be made again when a shard was lost, and
    how many bytes each shard was given, so that the next table goes where there are fewest. Of the
    initial values of variables it keeps those that take little memory, to start over without a
    checkpoint. (On the servers they would be lost with them; in a file the notebook's disk would
    hold every large model once more.)

    Parameters
    ----------
    shards : int
        How many shards there are.
    """

    def __init__(self, shards: int) -> None:
        # How much growing tables will take is not known.
        self._bytes = [0] * shards
        self._made: dict[str, list[Creation]] = {}
        self._unkept: set[str] = set()  # variables whose initial values are not known
        self._kept = 0  # bytes of those that are kept

    def choose(self, nbytes: int, servers: Sequence[object]) -> int:
        """Return the shard for a table of a given size, and count the bytes there.

        The table goes to the server with the fewest bytes, and there to the shard with the fewest.

        Parameters
        ----------
        nbytes : int
            The size.
        servers : sequence
            The server of each shard.
        """
        load: dict[object, int] = {}
        for server, held in zip(servers, self._bytes, strict=True):
            load[server] = load.get(server, 0) + held
        index = min(
            range(len(self._bytes)), key=lambda shard: (load[servers[shard]], self._bytes[shard])
        )
        self._bytes[index] += nbytes
        return index

    def count(self, index: int, nbytes: int) -> None:
        """Count bytes that a shard was given."""
        self._bytes[index] += nbytes

    def remember(self, parameter: str, made: Sequence[Creation], *, known: bool = True) -> None:
        """Note how the tables of a parameter were made, and its initial values if they are known.

        All values of a variable are kept, or none: zeros stand for values that are not.
        """
        size = sum(_size(creation) for _, creation in made)
        known = known and self._kept + size <= MOST_KEPT
        if known:
            self._kept += size
        elif any(isinstance(creation, CreateDense) for _, creation in made):
            self._unkept.add(parameter)
        self._made[parameter] = [(shard, _held(creation, known)) for shard, creation in made]

    def forget_values(self, parameter: str) -> None:
        """Note that the values that a parameter was made with only hold the place of others."""
        made = self._made[parameter]
        if parameter not in self._unkept:
            self._kept -= sum(_size(creation) for _, creation in made)
        self.remember(parameter, made, known=False)

    def unkept(self, numbers: Collection[int]) -> list[str]:
        """Return the variables on some shards whose initial values are not kept."""
        return [
            name
            for name, made in self._made.items()
            if name in self._unkept and any(shard in numbers for shard, _ in made)
        ]

    def names_on(self, numbers: Collection[int]) -> list[tuple[int, str]]:
        """Return all tables of some shards, as shard and name."""
        made = (each for parts in self._made.values() for each in parts)
        return [(shard, creation.name) for shard, creation in made if shard in numbers]

    def made_on(
        self,
        numbers: Collection[int],
        optimizers: Mapping[str, Optimizer | None],
        values: Mapping[tuple[int, str], np.ndarray],
    ) -> list[Creation]:
        """Return how all tables of some shards are made again; see `TableFactory.make_again`."""
        found = []
        for parameter, made in self._made.items():
            for shard, creation in made:
                changed: dict[str, Any] = {"optimizer": optimizers[parameter]}
                if (shard, creation.name) in values:
                    changed["values"] = values[shard, creation.name]
                if shard in numbers:
                    found.append((shard, msgspec.structs.replace(creation, **changed)))
        return found


def copies(optimizer: Optimizer | None) -> int:
    """Return how many arrays of a parameter's size a server holds for it."""
    return 1 + len(optimizer.slots if optimizer else ())


def _size(creation: CreateTable) -> int:
    """Return the memory that initial values take here."""
    if not isinstance(creation, CreateDense) or _is_constant(creation.values):
        return 0
    return creation.values.nbytes


def _held(creation: CreateTable, known: bool) -> CreateTable:
    if not isinstance(creation, CreateDense):
        return creation
    values = creation.values
    if not known or _is_constant(values):
        # One number, seen as an array of the shape.
        one = values.flat[0] if known and values.size else np.zeros((), values.dtype)
        values = np.broadcast_to(one, values.shape)
    else:
        values = values.copy()  # the user may change the array
    return msgspec.structs.replace(creation, values=values)


def _is_constant(values: np.ndarray) -> bool:
    """Return whether all values are the same, bit for bit: 0.0 is not -0.0, and NaN may be."""
    if not values.size:
        return True
    bits = np.ascontiguousarray(values).reshape(-1).view(f"u{values.itemsize}")
    return bool(bits[0] == bits[-1] and bits.min() == bits.max())  # of most, two numbers say it


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
        self._tables = TablePlacement(len(servers.shards))

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
        servers = [placement.primary for placement in self._servers.layout.placements]
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
        """Make all tables of some shards again, with their initial values.

        Parameters
        ----------
        numbers : collection of int
            The shards.
        optimizers : mapping
            The optimizers of all parameters, with their present hyperparameters.
        values : mapping
            Initial values of variables, by shard and table, in place of the values that they were
            made with. Other variables whose values are not kept (`unkept`) hold zeros.
        """
        with self._lock:
            made = self._tables.made_on(numbers, optimizers, values)
        self._server_client.call(self._requests(made))

    def shards(self) -> set[int]:
        """Return the shards on which tables were made."""
        with self._lock:
            return {shard for shard, _ in self._tables.names_on(range(len(self._servers.shards)))}

    def drops(self, numbers: Collection[int]) -> list[Request]:
        """Return the requests that drop all tables of some shards."""
        with self._lock:
            names = self._tables.names_on(numbers)
        shards = self._servers.shards
        return [Request(shards[number], DropTable(name)) for number, name in names]

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
        except BaseException:  # an interrupt, too: what some servers made must not fail a new try
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


# How a notebook shows a strategy: its servers and its parameters. Asks no server.


def describe(
    title: str, servers: Sequence[ServerStatistics], parameters: Mapping[str, Variable | Embedding]
) -> str:
    """Return an HTML fragment.

    Parameters
    ----------
    title : str
        The line at the top.
    servers : sequence of ServerStatistics
        As of their last answers.
    parameters : mapping of str to Variable or Embedding
        By name.
    """
    return (
        f"<div><strong>{escape(title)}</strong></div>"
        + html_table(
            "servers",
            ("server", "address", "state", "shards"),
            [(each.name, each.address, each.state, str(each.shards)) for each in servers],
        )
        + html_table(
            "parameters",
            ("parameter", "kind", "shape", "dtype"),
            [
                (name, type(each).__name__.lower(), _shape(each), str(each.dtype))
                for name, each in parameters.items()
            ],
        )
    )


def _shape(parameter: Variable | Embedding) -> str:
    if isinstance(parameter, Variable):
        return str(parameter.shape)
    rows = "any id" if parameter.rows is None else f"{parameter.rows:,} rows"
    return f"{rows} of {parameter.dim}"
