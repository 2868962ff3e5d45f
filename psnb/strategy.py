"""ParameterServerStrategy: places variables on servers and knows which ones there are.

The strategy starts one `ParameterServer` actor on each server process, holds their Dask futures
(which keep them alive) and the registry of variables. It belongs to the notebook; closures get the
handles that it makes. One lock guards the registry, so that two threads cannot take one name; it is
not held while a server is asked.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from distributed import Client
from numpy.typing import ArrayLike, DTypeLike

from psnb.cluster import choose_servers, closure_workers, identity
from psnb.errors import ClusterError, ConfigurationError, CoordinatorClosedError, PsnbError
from psnb.guard import SERVER_KEY, ServerGuard
from psnb.parameters import (
    CommTransport,
    DenseShard,
    Embedding,
    NonFinite,
    Partitioner,
    Request,
    ServerAddress,
    Variable,
    as_admission,
    as_initializer,
    as_nonfinite,
    as_padding,
    check_accessor,
    check_optimizer,
    check_rows,
    initial_array,
    row_ranges,
)
from psnb.runtime import Runtime
from psnb.scaling import ClosureScaling
from psnb.server import (
    OPTIMIZABLE,
    Admission,
    CtrAccessor,
    Initializer,
    Optimizer,
    ParameterServer,
)

_START_TIMEOUT = 60.0


class Coordinator(Protocol):
    """What a strategy knows of its coordinator: that it must be closed first."""

    def close(self) -> None:
        """End it; idempotent."""


C = TypeVar("C", bound=Coordinator)


class ParameterServerStrategy:
    """Parameters on the servers of a Dask cluster.

    Thread-safe. Also a context manager that closes it.

    Parameters
    ----------
    client : distributed.Client
        The cluster: `psnb.local_cluster` or any other. Workers started with ``--resources "ps=1"``
        are servers.
    num_servers : int, optional
        How many servers to use; None for all there are. On a cluster without that resource, this
        many of its workers become servers and run no closures of this strategy.
    partitioner : callable, optional
        How dense variables are split: `FixedShards`, `MinSize`, `MaxSize` or a function of shape
        and dtype; None keeps each whole. A shard goes to the server that holds the fewest bytes.
        Embeddings are always split over all servers.

    Raises
    ------
    ClusterError
        If the cluster has not enough workers (the servers and one more), or its scheduler lacks
        psnb.
    ConfigurationError
        If an argument is of the wrong kind.
    """

    def __init__(
        self,
        client: Client,
        num_servers: int | None = None,
        partitioner: Partitioner | None = None,
    ) -> None:
        if not isinstance(client, Client) or client.asynchronous:
            raise ConfigurationError(
                f"client must be a synchronous distributed.Client, found {client!r}: "
                "psnb.local_cluster() makes one, or distributed.Client('tcp://host:8786')"
            )
        if num_servers is not None and (not isinstance(num_servers, int) or num_servers < 1):
            raise ConfigurationError(f"num_servers must be 1 or more, found {num_servers!r}")
        if partitioner is not None and not callable(partitioner):
            raise ConfigurationError(f"partitioner must be callable, found {partitioner!r}")
        self.client = client
        self._coordinator: Coordinator | None = None
        self._partitioner = partitioner
        self._closed = False
        self._lock = threading.Lock()  # guards all that changes: the fields below
        self._parameters: dict[str, Variable | Embedding | None] = {}
        addresses = choose_servers(client, num_servers)
        client.register_plugin(Runtime())
        _extend_scheduler(client)
        unique = uuid.uuid4().hex[:8]
        self._futures = [
            client.submit(
                ParameterServer,
                f"{i} at {address}",
                actor=True,
                key=f"{SERVER_KEY}{unique}-{i}",
                workers=[address],
            )
            for i, address in enumerate(addresses)
        ]
        end = time.monotonic() + _START_TIMEOUT
        try:
            for future in self._futures:
                future.result(max(0.0, end - time.monotonic()))  # raises what made a start fail
        except TimeoutError as error:
            raise ClusterError(
                f"the parameter servers did not start within {_START_TIMEOUT:.0f} s: the "
                f"threads of {', '.join(addresses)} may be busy with other tasks"
            ) from error
        self._servers = [
            ServerAddress(address, future.key)
            for address, future in zip(addresses, self._futures, strict=True)
        ]
        # Bytes that were placed on each server; what growing tables will take is not known.
        self._placed = [0] * len(self._servers)
        self._transport = CommTransport(client.loop, client.rpc)
        # Dropped without a word, it takes its connections with it; handles keep the transport only.
        self._hang_up = weakref.finalize(self, self._transport.close)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.num_servers} servers"
        return f"<psnb.ParameterServerStrategy {state}, {len(self._parameters)} parameters>"

    def __enter__(self) -> ParameterServerStrategy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def num_servers(self) -> int:
        """Parameter servers of this strategy."""
        return len(self._servers)

    @property
    def num_workers(self) -> int:
        """Workers that can run closures at this moment; asks the scheduler."""
        return len(self._closure_workers())

    def worker_names(self) -> set[str]:
        """Return the names of the workers that can run closures now; asks the scheduler."""
        return set(self._closure_workers().values())

    @property
    def server_addresses(self) -> tuple[str, ...]:
        """Dask addresses of the servers."""
        return tuple(server.address for server in self._servers)

    def memory(self) -> dict[str, dict[str, int]]:
        """Ask the servers for the bytes of all tables: parameters, optimizer state and index.

        Returns
        -------
        dict
            For each server's address, the bytes of each table there. A table is an embedding, a
            variable, or a shard of one (``"name/first row"``).

        Raises
        ------
        ServerLostError
            If a server is gone.
        """
        requests = [Request(server, "", "statistics", {}) for server in self._servers]
        answers = self._transport.call(requests)
        return dict(zip(self.server_addresses, answers, strict=True))

    @property
    def parameters(self) -> Mapping[str, Variable | Embedding]:
        """All variables and embeddings by name, in the order of their making; read-only."""
        with self._lock:
            made = {name: p for name, p in self._parameters.items() if p is not None}
        return MappingProxyType(made)

    def one_coordinator(self, make: Callable[[], C]) -> C:
        """Return the coordinator that is there, or make it; for `ClusterCoordinator`."""
        with self._lock:
            self._require_open()
            if self._coordinator is None:
                self._coordinator = make()
            return cast(C, self._coordinator)

    def forget_coordinator(self, coordinator: Coordinator) -> None:
        """Let the next one be made anew; for `ClusterCoordinator`."""
        with self._lock:
            if self._coordinator is coordinator:
                self._coordinator = None

    def variable(
        self,
        initial_value: ArrayLike,
        name: str | None = None,
        optimizer: Optimizer | None = None,
        dtype: DTypeLike | None = None,
        nonfinite: str = "refuse",
    ) -> Variable:
        """Put a dense array on the servers.

        Parameters
        ----------
        initial_value : array_like
            Any shape, any numeric dtype.
        name : str, optional
            Unique within the strategy; made up if left out.
        optimizer : Optimizer, optional
            What the servers do with pushed gradients; float32 and float64 only.
        dtype : dtype, optional
            As given by the initial value; float32 for Python floats.
        nonfinite : {"refuse", "skip", "allow"}
            What happens to a pushed gradient with NaN or infinities: `GradientError` and no change;
            the update is left out and counted (`Variable.skipped`); or it is let through.

        Returns
        -------
        Variable
            A handle, for the notebook and for closures.

        Raises
        ------
        ConfigurationError
            If the name is taken, or an argument is of the wrong kind.
        ServerLostError
            If a server is gone.
        """
        name = self._reserve(name, "variable")
        try:
            value = initial_array(initial_value, dtype, name)
            check_optimizer(optimizer, value.dtype, name)
            choice = as_nonfinite(nonfinite, name)
            variable = self._place_dense(name, value, optimizer, choice)
        except BaseException:
            self._unreserve(name)
            raise
        self._register(variable)
        return variable

    def embedding(
        self,
        name: str,
        dim: int,
        rows: int | None = None,
        initializer: Initializer | float | None = None,
        optimizer: Optimizer | None = None,
        dtype: DTypeLike = np.float32,
        nonfinite: str = "refuse",
        padding_idx: int | None = None,
        admission: Admission | None = None,
        accessor: CtrAccessor | None = None,
    ) -> Embedding:
        """Put an embedding table on the servers, spread over all of them.

        Parameters
        ----------
        name : str
            Unique within the strategy; also the seed of the table's initial rows.
        dim : int
            Floats a row.
        rows : int, optional
            Ids are ``0 <= id < rows``. None: any 64-bit integer is an id, and rows are made when
            an id is first looked up (but for evaluation) or pushed.
        initializer : Initializer or float, optional
            How a row starts: `Uniform` (-0.05 to 0.05) by default, `Normal`, `Constant` or a
            number. A row depends on table name and id alone, not on servers or order.
        optimizer : Optimizer, optional
            What the servers do with pushed gradients.
        dtype : dtype
            float32 or float64.
        nonfinite : {"refuse", "skip", "allow"}
            What happens to a push with NaN or infinities: `GradientError` and no change; the rows
            of such ids are left out and counted (`Embedding.skipped`); or it is let through.
        padding_idx : int, optional
            An id that gives zeros and takes no gradient, as in PyTorch.
        admission : Admission, optional
            Which ids get a row, if ``rows`` is None: `Always` by default, `Probability` or
            `CountFilter`. The others give zeros and take no gradients.
        accessor : CtrAccessor, optional
            If given (and ``rows`` is None), the servers count shows, clicks and days unseen of each
            row, and `Embedding.shrink` removes rows by them.

        Returns
        -------
        Embedding
            A handle, for the notebook and for closures.

        Raises
        ------
        ConfigurationError
            If the name is taken, or an argument is of the wrong kind.
        ServerLostError
            If a server is gone.
        """
        name = self._reserve(name, "embedding")
        try:
            check_rows(name, dim, rows)
            kind = np.dtype(dtype)
            if kind not in OPTIMIZABLE:
                raise ConfigurationError(
                    f"embedding {name!r}: dtype must be float32 or float64, found {kind}"
                )
            check_optimizer(optimizer, kind, name)
            choice = as_nonfinite(nonfinite, name)
            padding = as_padding(padding_idx, name, rows)
            entry = as_admission(admission, name, rows)
            check_accessor(accessor, name, rows)
            table: dict[str, Any] = {
                "name": name,
                "dim": int(dim),
                "rows": None if rows is None else int(rows),
                "shards": len(self._servers),
                "dtype": kind.str,
                "initializer": as_initializer(initializer, name),
                "seed": int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()),
                "optimizer": optimizer,
                "admission": entry,
                "accessor": accessor,
            }
            self._create(
                [
                    Request(server, "", "create_sparse", {**table, "index": index})
                    for index, server in enumerate(self._servers)
                ]
            )
            if rows is not None:
                self._count_fixed(rows, dim * kind.itemsize * _copies(optimizer))
        except BaseException:
            self._unreserve(name)
            raise
        made = Embedding(
            name,
            table["dim"],
            table["rows"],
            kind,
            optimizer,
            self._servers,
            self._transport,
            choice,
            padding,
            entry,
            accessor,
        )
        self._register(made)
        return made

    def close(self) -> None:
        """Close the coordinator and free the servers, parameters and all; idempotent.

        Dask frees the servers a moment later; handles raise `ServerLostError` from then on.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._coordinator is not None:
            self._coordinator.close()
        self._hang_up()
        for future in self._futures:
            future.release()

    def _reserve(self, name: str | None, kind: str) -> str:
        with self._lock:
            self._require_open()
            if name is None:
                number = 1
                while (name := f"{kind}_{number}") in self._parameters:
                    number += 1
            if not isinstance(name, str) or not name:
                raise ConfigurationError(f"the name of a {kind} must be a text, found {name!r}")
            if name in self._parameters:
                raise ConfigurationError(
                    f"the strategy has {name!r} already: use strategy.parameters[{name!r}], or "
                    "another name"
                )
            self._parameters[name] = None
        return name

    def _closure_workers(self) -> dict[str, str]:
        return closure_workers(frozenset(self.server_addresses), identity(self.client))

    def _require_open(self) -> None:
        if self._closed:
            raise CoordinatorClosedError("the strategy is closed: make a new one")

    def _register(self, parameter: Variable | Embedding) -> None:
        with self._lock:
            self._parameters[parameter.name] = parameter

    def _unreserve(self, name: str) -> None:
        with self._lock:
            del self._parameters[name]

    def _create(self, requests: Sequence[Request]) -> None:
        try:
            self._transport.call(requests)
        except BaseException:
            # What some servers have made must not stand in the way of another try.
            for request in requests:
                drop = Request(request.server, "", "drop", {"name": request.arguments["name"]})
                with suppress(PsnbError):
                    self._transport.call([drop])
            raise

    def _count_fixed(self, rows: int, row_bytes: int) -> None:
        with self._lock:
            for index in range(len(self._servers)):
                self._placed[index] += len(range(index, rows, len(self._servers))) * row_bytes

    def _place_dense(
        self, name: str, value: np.ndarray, optimizer: Optimizer | None, nonfinite: NonFinite
    ) -> Variable:
        count = self._partitioner(value.shape, value.dtype) if self._partitioner else 1
        most = max(1, value.shape[0]) if value.shape else 1
        if not isinstance(count, int) or not 1 <= count <= most:
            raise ConfigurationError(
                f"variable {name!r}: the partitioner must return 1 to {most} shards for shape "
                f"{value.shape}, it returned {count!r}"
            )
        ranges = row_ranges(value.shape[0], count) if count > 1 else [(0, 0)]
        shards, requests = [], []
        for start, stop in ranges:
            part = value[start:stop] if count > 1 else value
            with self._lock:
                index = self._placed.index(min(self._placed))
                self._placed[index] += part.nbytes * _copies(optimizer)
            server = self._servers[index]
            # A server may hold several shards of one variable.
            table = name if count == 1 else f"{name}/{start}"
            shards.append(DenseShard(server, table, start, stop))
            arguments = {"name": table, "values": part, "optimizer": optimizer}
            requests.append(Request(server, "", "create_dense", arguments))
        self._create(requests)
        return Variable(
            name, value.shape, value.dtype, optimizer, shards, self._transport, nonfinite
        )


def _copies(optimizer: Optimizer | None) -> int:
    """Return how many arrays of a parameter's size a server holds for it."""
    return 1 + len(optimizer.slots if optimizer else ())


def _extend_scheduler(client: Client) -> None:
    try:
        client.register_plugin(ServerGuard())
        client.register_plugin(ClosureScaling())
    except ImportError as error:
        raise ClusterError(
            f"the Dask scheduler cannot import psnb ({error}): install it beside the scheduler "
            "too, in the same version as here and on the workers"
        ) from error
