"""TableFactory: a strategy's parameters: their names, and how their tables are made on the shards.

Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from html import escape
from types import MappingProxyType

import numpy as np

from psnb._src.client.arguments import NonFinite, check_by_element
from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.dense_shards import DenseShard, DenseShards
from psnb._src.client.embedding import Embedding
from psnb._src.client.embedding_spec import EmbeddingSpec
from psnb._src.client.handles import Handle, shards_of
from psnb._src.client.requests import Request
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.variable import Variable
from psnb._src.monitor.html.tables import html_table
from psnb._src.monitor.statistics import ServerStatistics
from psnb._src.placement.layout import ShardId
from psnb._src.server.operations import CreateDense, DropTable
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables.sharding import Partitioner, row_ranges
from psnb._src.strategy.servers import Servers
from psnb._src.transport.half_width import computed
from psnb._src.utils.checks import is_integer
from psnb._src.utils.text import Named, shown, with_article
from psnb.errors import ConfigurationError, PsnbError

MOST_KEPT = 256 << 20
"""Bytes of initial values that are kept; values that are all equal take none."""


def copies(optimizer: Optimizer | None) -> int:
    """Return how many arrays of a parameter's size a server holds for it."""
    return 1 + len(optimizer.slots if optimizer else ())


def _constant(value: np.ndarray) -> np.ndarray | None:
    """Return one number, seen as an array of the shape, if all are the same; else None.

    Bit for bit: 0.0 is not -0.0, and NaN may be.
    """
    if not value.size:
        return np.broadcast_to(np.zeros((), value.dtype), value.shape)
    bits = np.ascontiguousarray(value).reshape(-1).view(f"u{value.itemsize}")
    # Of most arrays, two numbers say that they are not.
    same = bits[0] == bits[-1] and bits.min() == bits.max()
    return np.broadcast_to(value.flat[0], value.shape) if same else None


class TableFactory:
    """Makes parameters, and knows them by name, in the order in which the names were taken.

    A name is taken before its tables are made, so that two threads cannot take the same one. When a
    shard was lost, its tables can be made again. How many bytes each shard was given is remembered,
    so that the next table goes where there are fewest. Of the initial values of variables those are
    kept that take little memory, to start over without a checkpoint. (On the servers they would be
    lost with them; in a file the notebook's disk would hold every large model once more.)

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
        describe: Callable[[Handle], None],
    ) -> None:
        self._servers, self._server_client, self._partitioner = servers, server_client, partitioner
        self._half, self._describe = half, describe
        self._lock = threading.Lock()  # guards the fields below; not held during requests
        # How much growing tables will take is not known.
        self._bytes = [0] * len(servers.shards)
        self._parameters: dict[str, Handle | None] = {}  # None: being made
        self._values: dict[str, np.ndarray] = {}  # initial ones of variables, as far as kept
        self._kept = 0  # bytes of these

    def __len__(self) -> int:
        """Return how many names are taken."""
        return len(self._parameters)

    @contextmanager
    def reserved(self, name: str | None, kind: str) -> Iterator[str]:
        """Take a name, or make one up; it is free again if the block makes no parameter.

        Raises
        ------
        ConfigurationError
            If it is not a valid name, or is taken.
        """
        with self._lock:
            if name is None:
                number = 1
                while (name := f"{kind}_{number}") in self._parameters:
                    number += 1
            if not isinstance(name, str) or not name:
                raise ConfigurationError(
                    f"the name of {with_article(kind)} must be a text, found {shown(name)}"
                )
            if name in self._parameters:
                raise ConfigurationError(
                    f"the strategy has {name!r} already: use strategy.parameters[{name!r}], or "
                    "another name"
                )
            self._parameters[name] = None
        try:
            yield name
        finally:  # whatever ends it, an interrupt too
            with self._lock:
                if self._parameters[name] is None:
                    del self._parameters[name]

    def all(self) -> Mapping[str, Handle]:
        """Return a read-only snapshot of the parameters that were made."""
        with self._lock:
            made = {name: each for name, each in self._parameters.items() if each is not None}
        return MappingProxyType(Named(made, "parameter"))

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
        parts: list[DenseShard] = []
        for start, stop in ranges:
            nbytes = (value[start:stop] if count > 1 else value).nbytes
            shard = self._choose(nbytes * copies(optimizer))
            # A shard may hold several parts of one variable.
            parts.append(DenseShard(shard, name if count == 1 else f"{name}/{start}", start, stop))
        half = self._half and value.dtype == np.float32
        made = Variable(
            DenseShards(
                *(name, value.shape, value.dtype, optimizer, parts, self._server_client),
                *(nonfinite, half),
            )
        )
        self._make(made, value)
        return made

    def _choose(self, nbytes: int) -> ShardId:
        """Return the shard for a table of a given size, and count the bytes there.

        The table goes to the server with the fewest bytes, and there to the shard with the fewest.
        """
        servers = [placement.primary for placement in self._servers.layout.placements]
        with self._lock:
            load = dict.fromkeys(servers, 0)
            for server, held in zip(servers, self._bytes, strict=True):
                load[server] += held
            index = min(range(len(servers)), key=lambda i: (load[servers[i]], self._bytes[i]))
            self._bytes[index] += nbytes
        return self._servers.shards[index]

    def embedding(self, spec: EmbeddingSpec) -> Embedding:
        """Make an embedding, spread over all shards."""
        spec = replace(spec, half=self._half and computed(spec.dtype) == np.float32)
        made = Embedding(SparseShards(spec, self._servers.shards, self._server_client))
        self._make(made)
        self._count(shards_of(made))
        return made

    def take(self, parameter: Handle) -> None:
        """Add a parameter that another process has made."""
        shards = shards_of(parameter).elsewhere(self._servers.name, self._server_client)
        self._count(shards)
        taken = Embedding(shards) if isinstance(shards, SparseShards) else Variable(shards)
        with self._lock:
            self._parameters[taken.name] = taken

    def _count(self, shards: DenseShards | SparseShards) -> None:
        """Count the bytes that the tables of a parameter take, as far as they are known."""
        if isinstance(shards, DenseShards):
            several, parts = copies(shards.made_with), shards.parts
            sizes = [(each.shard.number, shards.part_nbytes(each) * several) for each in parts]
        else:
            count, row = len(shards.shard_ids), shards.saved_form.row_nbytes
            numbers = range(count if shards.rows is not None else 0)
            sizes = [(each, len(range(each, shards.rows or 0, count)) * row) for each in numbers]
        with self._lock:
            for number, nbytes in sizes:
                self._bytes[number] += nbytes

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
            kept = self._values.copy()
        requests: list[Request] = []
        for each in self.all().values():
            shards = shards_of(each)
            optimizer = optimizers.get(shards.name, shards.made_with)
            again = _creations(shards, optimizer, kept.get(shards.name), values)
            places = zip(shards.tables, again, strict=True)
            requests += [request for (shard, _), request in places if shard.number in numbers]
        self._server_client.call(requests)

    def shards(self) -> set[int]:
        """Return the shards on which tables were made."""
        return {shard.number for shard, _ in self._tables()}

    def drops(self, numbers: Collection[int]) -> list[Request]:
        """Return the requests that drop all tables of some shards."""
        return [Request(s, DropTable(name)) for s, name in self._tables() if s.number in numbers]

    def _tables(self) -> list[tuple[ShardId, str]]:
        return [table for each in self.all().values() for table in shards_of(each).tables]

    def forget_values(self, variable: str) -> None:
        """Note that the values that a variable was made with only hold the place of others."""
        with self._lock:
            value = self._values.pop(variable, None)
            if value is not None and value.flags.owndata:
                self._kept -= value.nbytes

    def unkept(self, numbers: Collection[int]) -> list[str]:
        """Return the variables on some shards that cannot begin with their initial values."""
        return [
            name
            for name, each in self.all().items()
            if isinstance(each, Variable) and name not in self._values
            if any(shard.number in numbers for shard, _ in shards_of(each).tables)
        ]

    def _make(self, parameter: Handle, value: np.ndarray | None = None) -> None:
        shards = shards_of(parameter)
        try:
            self._server_client.call(_creations(shards, shards.made_with, value))
            self._describe(parameter)
        except BaseException:  # an interrupt, too: what some servers made must not fail a new try
            for shard, table in shards.tables:
                with suppress(PsnbError):
                    self._server_client.call([Request(shard, DropTable(table))])
            raise
        constant = None if value is None else _constant(value)
        with self._lock:
            self._parameters[parameter.name] = parameter
            if constant is not None:
                self._values[parameter.name] = constant
            elif value is not None and self._kept + value.nbytes <= MOST_KEPT:
                self._kept += value.nbytes
                self._values[parameter.name] = value.copy()  # the user may change the array


def _creations(
    shards: DenseShards | SparseShards,
    optimizer: Optimizer | None,
    value: np.ndarray | None,
    given: Mapping[tuple[int, str], np.ndarray] = MappingProxyType({}),
) -> list[Request]:
    """Return the requests that make the tables of a parameter.

    ``value`` is a variable's; it holds zeros if that is None. What is ``given``, by shard and
    table, takes its place.
    """
    if isinstance(shards, SparseShards):
        count = len(shards.shard_ids)
        return [
            Request(shard, shards.spec.creation(shard.number, count, optimizer))
            for shard in shards.shard_ids
        ]
    if value is None:  # one zero, seen as an array of the shape
        value = np.broadcast_to(np.zeros((), shards.dtype), shards.shape)
    parts = {**shards.by_table(value), **given}
    return [
        Request(shard, CreateDense(table, parts[shard.number, table], optimizer))
        for shard, table in shards.tables
    ]


# How a notebook shows a strategy: its servers and its parameters. Asks no server.


def describe(
    title: str, servers: Sequence[ServerStatistics], parameters: Mapping[str, Handle]
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


def _shape(parameter: Handle) -> str:
    if isinstance(parameter, Variable):
        return str(parameter.shape)
    rows = "any id" if parameter.rows is None else f"{parameter.rows:,} rows"
    return f"{rows} of {parameter.dim}"
