"""ParameterServerStrategy: places variables on servers and knows which ones there are.

The strategy divides all parameters into shards and puts the shards on servers (`Servers`), makes
the tables there (`TableFactory`) and knows their names (`Registry`), looks after the servers and
keeps copies (`Reconciler`), and brings back or moves what must be. It belongs to the notebook;
closures get the handles that it makes.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from distributed import Client
from numpy.typing import ArrayLike, DTypeLike

from psnb._src.checkpoint import Checkpoint
from psnb._src.cluster import choose_servers, closure_workers, identity
from psnb._src.modes import Async, Mode, Sync, check_mode
from psnb._src.monitor import Event, ServerStatistics
from psnb._src.parameters import (
    PATIENCE,
    CommServerClient,
    Embedding,
    Partitioner,
    Request,
    Variable,
    apply_round,
    as_admission,
    as_initializer,
    as_nonfinite,
    as_padding,
    check_accessor,
    check_optimizer,
    check_rows,
    initial_array,
)
from psnb._src.placement import Layout, ShardId
from psnb._src.server import OPTIMIZABLE, Admission, CtrAccessor, Initializer, Optimizer
from psnb._src.strategy.rebalancing import rebalance
from psnb._src.strategy.reconciler import Reconciler
from psnb._src.strategy.recovery import recover_shards
from psnb._src.strategy.registry import Registry
from psnb._src.strategy.servers import Servers, begin
from psnb._src.strategy.table_factory import TableFactory
from psnb._src.strategy.watch import ServerWatch
from psnb._src.threads import on_loop, uninterrupted
from psnb.errors import (
    CheckpointError,
    ClusterError,
    ConfigurationError,
    CoordinatorClosedError,
    ServerLostError,
    ServerSilentError,
)

_ASYNC = Async()


class Coordinator(Protocol):
    """What a strategy knows of its coordinator."""

    @property
    def paused(self) -> bool:
        """Whether nothing is begun at present."""

    def drain(self, timeout: float | None = None) -> None:
        """Begin nothing more and wait until nothing runs."""

    def resume(self) -> None:
        """Begin closures again."""

    def fences(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Return what new shards must know of commits that were given up."""

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
    replicas : int
        1: each shard gets a second copy on another server; once that is complete, every update is
        on both before it is acknowledged. When a server dies, the copies take over within two
        seconds and training goes on; when it says nothing, after ``heartbeat_timeout``. New copies
        are filled as soon as there is a server for them. Until a copy is complete, also after its
        server was silent or its connection broke, a shard is lost with the server that has it. It
        takes two servers, twice the memory, and about twice the time for an update; reads cost the
        same. 0: a server's shards are lost with it, and `recover` brings them back from the last
        checkpoint.
    shards : int, optional
        Into how many shards the parameters are divided: not less than there are servers, and one
        for each of them by default. With more, `rebalance` can spread them over servers that are
        added later; but every lookup is divided into as many parts, which takes time.
    mode : Async, Sync, BoundedStaleness or Geo
        When what closures push is applied, and what they read meanwhile; `Async` by default.
    heartbeat_timeout : float
        Seconds without a sign of life after which a server counts as silent. Its complete copies
        take over then. A shard that has none stays where it is, and whoever waits for it gets a
        `ServerSilentError` (twenty seconds later where one is being filled or has failed). A busy
        server gives signs of life; one whose process has ended is noticed at once.

    Attributes
    ----------
    client : distributed.Client
        As given.
    mode : Async, Sync, BoundedStaleness or Geo
        As given; `Sync` with the number of closures that a round has.

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
        replicas: int = 0,
        shards: int | None = None,
        mode: Mode = _ASYNC,
        *,
        heartbeat_timeout: float = PATIENCE,
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
        if replicas not in (0, 1):
            raise ConfigurationError(f"replicas must be 0 or 1, found {replicas!r}")
        number = isinstance(heartbeat_timeout, int | float)
        if not number or not 0 < heartbeat_timeout < math.inf:
            raise ConfigurationError(
                "heartbeat_timeout must be a positive number of seconds, found "
                f"{heartbeat_timeout!r}"
            )
        check_mode(mode)
        self.client = client
        self._coordinator: Coordinator | None = None
        self._closed = False
        self._lock = threading.Lock()  # guards all fields here that change; held for no request
        self._registry = Registry()
        self._last_checkpoint: Path | None = None
        # Shards whose recovery was begun and has not ended; the event loop adds them, and so each
        # operation on it is one that needs no lock.
        self._lost: set[int] = set()
        addresses = choose_servers(client, num_servers)
        if len(addresses) <= replicas:
            raise ClusterError(
                f"replicas={replicas} takes {replicas + 1} servers, but there is {len(addresses)}: "
                'start another one with dask worker ADDRESS --resources "ps=1", or '
                "psnb.local_cluster(servers=2)"
            )
        count = len(addresses) if shards is None else shards
        if not isinstance(count, int) or count < len(addresses):
            raise ConfigurationError(
                f"shards must be {len(addresses)} or more, one for each server; found {shards!r}"
            )
        self._servers = Servers(client, float(heartbeat_timeout))
        self._transport = CommServerClient(client.loop, client.rpc, self._servers.directory)
        self._loop = client.loop.asyncio_loop
        on_loop(self._loop, lambda: begin(self._servers, addresses, count, replicas))
        self._maker = TableFactory(self._servers, self._transport, partitioner)
        if mode == Sync():
            mode = Sync(max(1, self.num_workers))
        self.mode = mode
        self._watch = ServerWatch(self._servers, self._transport, self._registry.all)
        # Dropped without a word, it takes its servers and connections with it; handles keep the
        # transport only.
        with uninterrupted:  # a keeper that nobody closes would keep the servers
            self._keeper = Reconciler(client, self._servers)
            hangs_up = self._transport, self._keeper, self._watch, self._servers
            self._hang_up = weakref.finalize(self, _hang_up, *hangs_up)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.num_servers} servers"
        return f"<psnb.ParameterServerStrategy {state}, {len(self._registry)} parameters>"

    def __enter__(self) -> ParameterServerStrategy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """What its shards are told from those of other strategies by."""
        return self._servers.name

    @property
    def num_servers(self) -> int:
        """Parameter servers of this strategy."""
        return len(self.server_addresses)

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
        return tuple(server.address for server in self._servers.running)

    def memory(self) -> dict[str, dict[str, int]]:
        """Ask the servers for the bytes of all tables: parameters, optimizer state and index.

        Returns
        -------
        dict
            For each server's address, the bytes of each table there, copies of shards counted
            along. A table is an embedding, a variable, or a part of one (``"name/first row"``).

        Raises
        ------
        ServerLostError
            If a server is gone.
        """
        servers = self._servers.layout.servers
        answers = self._transport.call([Request(each, "", "statistics", {}) for each in servers])
        found: dict[str, dict[str, int]] = {}
        for server, shards in zip(servers, answers, strict=True):
            tables = found.setdefault(server.address, {})
            for shard in shards.values():
                for table, nbytes in shard.items():
                    tables[table] = tables.get(table, 0) + nbytes
        return found

    @property
    def parameters(self) -> Mapping[str, Variable | Embedding]:
        """All variables and embeddings by name, in the order of their making; read-only."""
        return self._registry.all()

    def apply_round(
        self,
        coordinator: str,
        number: int,
        closures: Sequence[int],
        held_up: Callable[[Exception], None],
    ) -> None:
        """Make one update of what closures pushed in a round; for `ClusterCoordinator`."""
        parameters = self.parameters.values()
        apply_round(
            self._transport.attempt,
            self._servers.shards,
            parameters,
            coordinator,
            number,
            closures,
            held_up,
        )

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        """Ask shards, and return errors in the place of answers; for `ClusterCoordinator`."""
        return self._transport.attempt(requests)

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """All shards; for `ClusterCoordinator`."""
        return self._servers.shards

    @property
    def layout(self) -> Layout:
        """Where all shards are; for `ClusterCoordinator`."""
        return self._servers.layout

    def shards_of(self, strategy: str) -> Sequence[ShardId]:
        """All shards of another strategy, none if it is closed; for `ClusterCoordinator`."""
        try:
            layout = on_loop(self._loop, lambda: self._servers.directory.refresh(strategy))
        except (OSError, ServerLostError, RuntimeError):  # the last: the client is closed
            return ()
        return [ShardId(strategy, number) for number in range(len(layout.places))]

    @property
    def patience(self) -> float:
        """The ``heartbeat_timeout``; for `ClusterCoordinator`."""
        return self._servers.orders.patience

    @uninterrupted  # but while it waits, and it is closed then
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

    @uninterrupted  # but while it waits, and the name is free then
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
        self._check_open()
        with self._registry.taking(name, "variable") as name:
            value = initial_array(initial_value, dtype, name)
            check_optimizer(optimizer, value.dtype, name)
            choice = as_nonfinite(nonfinite, name)
            made = self._maker.variable(name, value, optimizer, choice)
        self._registry.add(made)
        return made

    @uninterrupted  # as `variable`
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
        self._check_open()
        with self._registry.taking(name, "embedding"):
            check_rows(name, dim, rows)
            kind = np.dtype(dtype)
            if kind not in OPTIMIZABLE:
                raise ConfigurationError(
                    f"embedding {name!r}: dtype must be float32 or float64, found {kind}"
                )
            check_optimizer(optimizer, kind, name)
            check_accessor(accessor, name, rows)
            made = self._maker.embedding(
                name,
                int(dim),
                None if rows is None else int(rows),
                kind,
                as_initializer(initializer, name),
                optimizer,
                as_nonfinite(nonfinite, name),
                as_padding(padding_idx, name, rows),
                as_admission(admission, name, rows),
                accessor,
            )
        self._registry.add(made)
        return made

    @uninterrupted  # but while it waits, and what is lost is known then
    def recover(
        self, checkpoint: str | os.PathLike[str] | None = None, *, consistent: bool = True
    ) -> Mapping[str, Any]:
        """Bring back the shards that were lost with their servers, from a checkpoint.

        Those of servers that say nothing count as lost, unless a server that answers has a copy.
        They go to whatever servers there are; those that Dask starts again in place of dead ones
        are waited for, up to fifteen seconds. Handles, datasets and what is queued stay as they
        are, and no closure that has had its effect has it again. The coordinator is drained before
        (closures that wait for a lost shard fail with `ServerLostError`, which
        `ClusterCoordinator.join` raises if it has not yet) and resumed after, unless it was paused.

        Parameters
        ----------
        checkpoint : str or os.PathLike, optional
            The last one that a `CheckpointManager` of this strategy saved or restored, if left out.
        consistent : bool
            True: all parameters go back to the checkpoint, so that they fit each other. False: only
            what was lost does, the rest keeps what it has learned since.

        Returns
        -------
        mapping
            The metadata that the checkpoint was saved with.

        Raises
        ------
        CheckpointError
            If there is none, or if it is damaged or does not fit; nothing was changed.
        ClusterError
            If there is no worker that can be a server.
        ServerLostError
            If another server dies meanwhile; call it again, as after an interrupt.
        CoordinatorClosedError
            If the strategy is closed.
        """
        with self._lock:
            self._require_open()
            path = self._last_checkpoint if checkpoint is None else Path(checkpoint)
            coordinator = self._coordinator
        if path is None:
            raise CheckpointError(
                "there is no checkpoint to recover from: pass its path, and save some with "
                "psnb.CheckpointManager(coordinator, directory).save()"
            )
        saved = Checkpoint(path, self.parameters)  # first: it raises if it cannot be loaded
        paused = coordinator is None or coordinator.paused
        try:
            if coordinator is not None:
                with suppress(ServerSilentError):  # what it holds up is settled when it is replaced
                    coordinator.drain()
            fences = [] if coordinator is None else coordinator.fences()
            on_loop(self._loop, lambda: self._host_lost(fences), goes_on=True)
            lost = frozenset(self._lost)
            self._maker.make_again(sorted(lost))
            for parameter in self.parameters.values():
                # Hyperparameters may have been changed since the parameter was made.
                parameter.tune_like_survivors(lost)
            saved.load(None if consistent else lost)
            self._lost -= lost
        finally:
            if coordinator is not None and not paused:
                coordinator.resume()
        return saved.metadata

    def rebalance(self, drain: Sequence[str] = ()) -> int:
        """Spread the shards evenly over all servers that there are now, while they are in use.

        Workers that were started with ``--resources "ps=1"`` since are taken in; there is something
        for them if the strategy was made with more ``shards`` than servers. What is asked of a
        shard in the moment in which it moves waits for a few milliseconds; nothing is lost. It goes
        on when an interrupt ends the waiting.

        Parameters
        ----------
        drain : sequence of str
            Names or addresses of servers that shall hold nothing any more; after this returns they
            can be retired with ``client.retire_workers``.

        Returns
        -------
        int
            How many shards have moved.

        Raises
        ------
        ConfigurationError
            If one of ``drain`` is no server, or too few would be left.
        ServerLostError
            If a server dies or says nothing that shards are to move to, or that must tell how large
            they are, or if too few are left; all other shards are where they were or where they
            should be, and it can be called again.
        """
        self._check_open()
        return on_loop(
            self._loop,
            lambda: rebalance(self.client, self._servers, self._keeper, frozenset(drain)),
            goes_on=True,
        )

    def watch(self) -> None:
        """Keep `server_statistics` and `optimizers` fresh for some seconds; cheap, never waits."""
        self._watch.keep()

    def server_statistics(self) -> tuple[ServerStatistics, ...]:
        """Return how the servers fared when they were last asked (`watch`); cheap, any thread."""
        return self._watch.statistics()

    def optimizers(self) -> Mapping[str, Optimizer]:
        """Return what each parameter's optimizer was set to when last asked, likewise."""
        return self._watch.optimizers()

    def server_events(self, since: float = 0.0) -> tuple[Event, ...]:
        """Return what happened to servers and shards after a time, the oldest first; any thread."""
        return self._servers.events.since(since)

    def note_checkpoint(self, path: Path) -> None:
        """Remember what to `recover` from; for `CheckpointManager`."""
        with self._lock:
            self._last_checkpoint = path

    def closure_workers(self, cluster: dict[str, Any]) -> dict[str, str]:
        """Return name by address of the workers that may run closures; for the coordinator.

        Parameters
        ----------
        cluster : dict
            What the Dask scheduler says of it.
        """
        return closure_workers(frozenset(self.server_addresses), cluster)

    @uninterrupted  # but while it waits, and it is closed then
    def close(self) -> None:
        """Close the coordinator and free the servers, parameters and all; idempotent.

        The servers end a moment later. The notebook's handles raise `CoordinatorClosedError` from
        now on, those on workers `ServerLostError`.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            if self._coordinator is not None:
                self._coordinator.close()
        finally:
            self._hang_up()

    def _closure_workers(self) -> dict[str, str]:
        return self.closure_workers(identity(self.client))

    def _require_open(self) -> None:
        if self._closed:
            raise CoordinatorClosedError("the strategy is closed: make a new one")

    def _check_open(self) -> None:
        with self._lock:
            self._require_open()

    async def _host_lost(self, fences: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        found = await recover_shards(self.client, self._servers, self._keeper, fences)
        self._lost.update(found)


@uninterrupted  # also where the strategy is collected
def _hang_up(
    transport: CommServerClient, keeper: Reconciler, watch: ServerWatch, servers: Servers
) -> None:
    keeper.close()
    transport.close()  # what the watch has asked for ends with it
    watch.stop()
    servers.close()
