"""ParameterServerStrategy: places variables and embeddings on servers.

The strategy divides all parameters into shards and puts the shards on servers (`Servers`), makes
the tables there (`TableFactory`, which knows their names), keeps servers and replicas as
they should be (`Reconciler`), and recovers or moves shards; `StrategyCore` has these parts. The
strategy belongs to the notebook; closures get the handles that it makes.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from distributed import Client
from numpy.typing import ArrayLike, DTypeLike

from psnb._src.client import arguments
from psnb._src.client.comm_client import PATIENCE
from psnb._src.client.embedding import Embedding
from psnb._src.client.embedding_spec import embedding_spec
from psnb._src.client.model_records import ModelRecords
from psnb._src.client.variable import Variable
from psnb._src.cluster.links import CLIENT_ENDED, hold
from psnb._src.cluster.roles import choose_servers, closure_workers, identity
from psnb._src.dask_compat.reach import cloudpickled, event_loop, has_ended
from psnb._src.monitor.events import Event
from psnb._src.monitor.html.tables import Events
from psnb._src.placement.registry import OwnershipRecord
from psnb._src.protocol.modes import Async, Mode, Sync, check_mode
from psnb._src.protocol.modules import UploadedModule, read_files
from psnb._src.protocol.notebook_only import NotebookOnly
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables.admission import Admission
from psnb._src.server.tables.eviction.policy import Score
from psnb._src.server.tables.initializers import Initializer
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.sharding import Partitioner
from psnb._src.strategy.core import StrategyCore
from psnb._src.strategy.ownership import Ownership
from psnb._src.strategy.rebalancing import measured, rebalance
from psnb._src.strategy.recovery import reinitialize, restore_lost
from psnb._src.strategy.scheduler_life import check_scheduler
from psnb._src.strategy.servers import Servers, begin
from psnb._src.strategy.tables import describe
from psnb._src.strategy.takeover import StrategyTerms, take_over
from psnb._src.utils.checks import integer, is_integer, path_text, period, seconds
from psnb._src.utils.foreign_names import FixedAttributes
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.labels import check_label, made_up_label
from psnb._src.utils.paths import as_path
from psnb._src.utils.text import counted, shown
from psnb._src.utils.threads import run_in_thread, run_on_loop
from psnb.errors import ClusterError, ConfigurationError

_ASYNC = Async()


class ParameterServerStrategy(NotebookOnly, FixedAttributes):
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
        on both before it is acknowledged. When a server dies, the replicas take over within two
        seconds and training goes on; when it does not respond, after ``heartbeat_timeout``. New
        copies are filled as soon as there is a server for them. Until a copy is complete, also
        after its server was unresponsive or its connection broke, a shard is lost with the server
        that has it; see `replicas_complete`. This takes two servers, twice the memory, and about
        twice the time for an update; reads cost the same. 0: a server's shards are lost with it,
        and `recover` brings them back from the last checkpoint.
    shards : int, optional
        Into how many shards the parameters are divided: at least one for each server, which is the
        default. With more, `rebalance` can spread them over servers that are added later; but every
        lookup is divided into as many parts, which takes time.
    mode : Async, Sync, BoundedStaleness or Geo
        When the updates that closures push are applied, and what closures read meanwhile; `Async`
        by default.
    heartbeat_timeout : float
        Seconds without a heartbeat after which a server counts as unresponsive, also if one
        operation keeps its event loop for so long. Its complete copies take over then. A shard
        without one stays where it is, and requests to it raise `ServerUnresponsiveError` (twenty
        seconds later if a copy is being filled or has failed). The end of a server's process is
        noticed immediately.
    name : str, optional
        Its name in views and for `attach`, and its coordinator's; by default the name of the
        notebook, or two words. A number is added if a strategy of the cluster has that name.
    retention : float or str
        For how long the servers keep the parameters when their owner has gone, as a number of
        seconds or a text such as ``"2 h"``: a notebook whose kernel has died, or whose client was
        closed before the strategy. Meanwhile `attach` gives them back. After that they are freed.
    wire_dtype : {"float16"}, optional
        How float32 parameters and their gradients travel between workers and servers: rounded to 16
        bits, which halves the bytes and costs 0.8 s of CPU time a GB, so it is for networks below
        10 Gbit/s. Each pull or push of a table is multiplied by a power of two first, so every
        number arrives with a relative error of at most 2**-11, or with an absolute one of 2**-39 of
        the largest. Servers and optimizers keep 32 bits, and what is assigned or saved is exact. On
        one host they are rounded as well: results do not depend on where workers are. By default
        everything travels as it is.

    Attributes
    ----------
    name : str
        As given, or made up; unique on the cluster.
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

    client: Client
    mode: Mode
    name: str

    stays = (
        "a strategy stays in the notebook: give the closure the variables, embeddings and models "
        "themselves, which travel"
    )

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
        name: str | None = None,
        retention: float | str = "10 min",
        wire_dtype: str | None = None,
    ) -> None:
        check_client(client)
        if num_servers is not None:
            num_servers = integer("num_servers", num_servers, 1)
        if partitioner is not None and not callable(partitioner):
            raise ConfigurationError(f"partitioner must be callable, found {shown(partitioner)}")
        if not is_integer(replicas) or replicas not in (0, 1):
            raise ConfigurationError(f"replicas must be 0 or 1, found {shown(replicas)}")
        heartbeat_timeout = seconds("heartbeat_timeout", heartbeat_timeout)
        check_mode(mode)
        half = wire_dtype is not None
        if half and np.dtype(wire_dtype) != np.float16:
            raise ConfigurationError(
                f"wire_dtype must be None or 'float16', found {shown(wire_dtype)}"
            )
        label, kept = check_label(name) or made_up_label(), period("retention", retention)
        addresses, dedicated = choose_servers(client, num_servers)
        if len(addresses) <= replicas:
            raise ClusterError(
                f"replicas={replicas} takes {replicas + 1} servers, but there is {len(addresses)}: "
                'start another one with dask worker ADDRESS --resources "ps=1", or '
                "psnb.local_cluster(servers=2)"
            )
        count = len(addresses) if shards is None else shards
        count = integer("shards", count, len(addresses))  # one for each server
        if mode == Sync():
            workers = closure_workers(frozenset(addresses), identity(client))
            mode = Sync(max(1, len(workers)))
        terms = StrategyTerms(mode, partitioner, dedicated, half)
        record = OwnershipRecord(label, time.time(), kept, cloudpickled(terms))
        servers = Servers(client, Ownership(client, record), heartbeat_timeout, dedicated)
        run_on_loop(event_loop(client), lambda: begin(servers, addresses, count, replicas))
        with uninterrupted:  # a reconciler that is not closed would keep the servers
            self._assemble(StrategyCore(client, servers, partitioner, half), mode)

    def _assemble(self, core: StrategyCore, mode: Mode) -> None:
        self.client, self.mode, self._core = core.client, mode, core
        self.name = core.servers.ownership.record.name
        self._coordinators: set[Any] = set()  # its coordinator, if there is one
        # If the strategy is collected without being closed, this ends its servers and connections;
        # handles keep the connections only. Not of the core, which the event loop holds.
        self._hang_up = weakref.finalize(self, core.hang_up)
        # A kernel that is restarted ends cleanly, too: `attach` is for that.
        self._hang_up.atexit = False

    def __repr__(self) -> str:
        return f"<psnb.ParameterServerStrategy {self._title()}>"

    def _title(self) -> str:
        state = "closed" if self._core.closed else counted(self.num_servers, "server")
        return f"{self.name!r}: {state}, {counted(len(self._core.tables), 'parameter')}"

    def _repr_html_(self) -> str:
        return describe(f"Strategy {self._title()}", self._core.watch.statistics(), self.parameters)

    def __enter__(self) -> ParameterServerStrategy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def num_servers(self) -> int:
        """How many parameter servers this strategy has."""
        return len(self.server_addresses)

    @property
    def num_workers(self) -> int:
        """How many workers can run closures at this moment; asks the scheduler."""
        return len(self.worker_addresses)

    def worker_names(self) -> set[str]:
        """Return the names of the workers that can run closures now; asks the scheduler."""
        return set(self._core.closure_workers(identity(self.client)).values())

    @property
    def worker_addresses(self) -> tuple[str, ...]:
        """Dask addresses of the workers that can run closures now; asks the scheduler.

        For Dask's own work, to keep it off the servers: ``frame.persist(workers=
        strategy.worker_addresses, allow_other_workers=True)``.
        """
        return tuple(self._core.closure_workers(identity(self.client)))

    @property
    def server_addresses(self) -> tuple[str, ...]:
        """Dask addresses of the servers."""
        return tuple(server.address for server in self._core.servers.running)

    @property
    def replicas_complete(self) -> bool:
        """Whether every shard has the replicas that ``replicas`` asks for; asks no server.

        With ``replicas=1``, nothing is lost then if any one server dies.
        """
        layout = self._core.layout
        return all(len(each.synced) >= layout.replicas for each in layout.placements)

    def memory(self) -> dict[str, dict[str, int]]:
        """Ask the servers for the bytes of all tables: parameters, optimizer state and index.

        Returns
        -------
        dict
            For each server's address, the bytes of each table there, replicas of shards included. A
            table is an embedding, a variable, or a part of one (``"name/first row"``).

        Raises
        ------
        ServerLostError
            If a server is gone, or does not respond, and no copy takes over.
        """
        core = self._core
        core.check_open()
        sizes = run_on_loop(
            event_loop(self.client), lambda: measured(core.servers, core.reconciler)
        )
        found: dict[str, dict[str, int]] = {}
        for server, shards in sizes.items():
            tables = found.setdefault(server.address, {})
            for shard in shards.values():
                for table, nbytes in shard.items():
                    tables[table] = tables.get(table, 0) + nbytes
        return found

    def upload(self, module: ModuleType) -> None:
        """Send a module of yours to all workers and servers, also to those that join later.

        Functions that the notebook defines travel with their closures; a module's functions are
        imported on the workers, as they were when first used. After an edit, upload the module
        again: closures that are scheduled from then on use the new code, and a running one keeps
        the old. The notebook's own copy stays as it is: ``%autoreload`` or ``importlib.reload``
        renew it. Per-worker values and datasets that were made stay as they are, too.

        Parameters
        ----------
        module : module
            Imported from a file of yours. All files of a package are sent.

        Raises
        ------
        ConfigurationError
            If it is not such a module, or its files are larger than 16 MiB together.
        SyntaxError
            If a file is not Python; nothing was sent.
        CoordinatorClosedError
            If the strategy is closed.

        Examples
        --------
        >>> import features
        >>> strategy.upload(features)
        """
        self._core.check_open()
        files = read_files(module)
        run_in_thread(self.client.register_plugin, UploadedModule(files))
        self._core.uploads.note(files)

    @property
    def parameters(self) -> Mapping[str, Variable | Embedding]:
        """All variables and embeddings by name, in the order in which they were made; read-only."""
        return self._core.tables.all()

    @property
    def __psnb_models__(self) -> ModelRecords:
        """The models that were placed on it; for psnb only."""
        return self._core.models

    @property
    def __psnb_shards__(self) -> int:
        """Over how many shards embeddings are spread; for psnb only."""
        return len(self._core.servers.shards)

    @uninterrupted  # except while it waits; the name is free then
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
            That of the initial value by default; float32 for Python floats.
        nonfinite : {"refuse", "skip", "allow"}
            What happens to a pushed gradient with NaN or infinities: `InvalidArrayError` and no
            change; the update is left out and counted (`Variable.skipped`); or it is let through.

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
        self._core.check_open()
        with self._core.tables.reserved(name, "variable") as name:
            value = arguments.initial_array(initial_value, dtype, name)
            arguments.check_optimizer(optimizer, value.dtype, name)
            arguments.check_no_rows(optimizer, name)
            choice = arguments.as_nonfinite(nonfinite, name)
            return self._core.tables.variable(name, value, optimizer, choice)

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
        slot_dtype: DTypeLike | None = None,
        storage: str = "memory",
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        evict: str | Score = "lru",
        time_to_live: timedelta | int | None = None,
    ) -> Embedding:
        """Put an embedding table on the servers, spread over all of them.

        Parameters
        ----------
        name : str
            Unique within the strategy; also the seed of the table's initial rows.
        dim : int
            Floats per row.
        rows : int, optional
            Ids are ``0 <= id < rows``. None: any 64-bit integer is an id, and rows are made when
            an id is first looked up (except for evaluation) or pushed.
        initializer : Initializer or float, optional
            How a row starts: `Uniform` (-0.05 to 0.05) by default, `Normal`, `Constant` or a
            number. A row depends on table name and id alone, not on servers or order.
        optimizer : Optimizer, optional
            What the servers do with pushed gradients.
        dtype : dtype
            How servers store rows: float32, float64, or in half width ``"bfloat16"`` or
            ``"float16"``. Half width is looked up, pushed and computed with as float32; what an
            optimizer writes is rounded up or down with the chance that makes the mean right
            (stochastic rounding; reproducible), as rounded to the nearest, small steps would be
            lost. float16 has 3 bits more than bfloat16, and goes from 6e-8 to 65504.
        nonfinite : {"refuse", "skip", "allow"}
            What happens to a push with NaN or infinities: `InvalidArrayError` and no change; the
            rows of such ids are left out and counted (`Embedding.skipped`); or it is let through.
        padding_idx : int, optional
            An id that gives zeros, takes no gradient and counts as not there in a bag, as in
            PyTorch.
        admission : Admission, optional
            Which ids get a row, if ``rows`` is None: `Always` by default, `Probability` or
            `CountFilter`. The others give zeros and take no gradients.
        accessor : CtrAccessor, optional
            If given (and ``rows`` is None), the servers count shows, clicks and days unseen of each
            row, and `Embedding.shrink` removes rows by them.
        slot_dtype : dtype, optional
            How servers store the optimizer's state: ``"bfloat16"``, rounded likewise, or
            ``"float16"`` if it has no squares of gradients (`Momentum`, `Lion`); by default as it
            is computed with.
        storage : {"memory", "disk"}
            Where servers have the rows, their optimizer state and their use. On disk, they are in
            files in the folders of Dask's workers, which go with the servers, and the system's page
            cache has those that are in use: a table may be larger than memory. Ids are in memory,
            32 bytes each at most. Needs Linux, and servers without Dask's ``memory_limit``.
        max_rows : int, optional
            How many rows there may be on all servers, if ``rows`` is None: each shard has its equal
            part, so `Embedding.statistics` never shows more. A new id then takes the row of another
            one, of which the row is gone with its state; it begins anew when it is seen again.
        max_bytes : int, optional
            The same, in bytes of memory of rows, their state and their index.
        evict : {"lru", "lfu", "score"} or callable
            Which row leaves: the one that was used least recently, or least often (by lookups for
            training and pushes), or that with the lowest score of the ``accessor``. A function gets
            a `RowUsage` of many rows and returns a score for each, from its own use alone; the
            lowest leave first.
        time_to_live : datetime.timedelta or int, optional
            After how long without a use a row leaves anyway: a time, which is counted in minutes
            in which the table is on servers, or a number of updates of its shard. Rows leave once
            a minute.

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
        self._core.check_open()
        with self._core.tables.reserved(name, "embedding"):
            spec = embedding_spec(
                *(self.__psnb_shards__, name, dim, rows, initializer, optimizer, dtype),
                *(nonfinite, padding_idx, admission, accessor, slot_dtype, storage),
                max_rows=max_rows,
                max_bytes=max_bytes,
                evict=evict,
                time_to_live=time_to_live,
            )
            made = self._core.tables.embedding(spec)
        if spec.eviction is not None and spec.eviction.max_rows is not None:
            self._core.watch.keep()  # which says if the bound is too small
        return made

    @uninterrupted  # except while it waits; it is known then what is lost
    def recover(
        self,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        initialize: bool | Mapping[str, ArrayLike] = False,
        consistent: bool = True,
        restart_timeout: float = 15.0,
    ) -> Mapping[str, Any]:
        """Bring back the shards that were lost with their servers.

        Shards on servers that do not respond count as lost, unless a server that responds has a
        copy. Lost shards go to the servers that there are; this waits up to ``restart_timeout`` for
        servers that Dask starts again in place of dead ones. Handles, datasets and queued closures
        stay as they are, and no closure has its effect twice. The coordinator is drained before
        (closures that wait for a lost shard fail with `ServerLostError`, which
        `ClusterCoordinator.join` raises if it has not yet) and resumed after, unless it was paused.

        Parameters
        ----------
        checkpoint : str or os.PathLike, optional
            By default the last one that a `CheckpointManager` of this strategy saved or restored.
        initialize : bool or mapping of str to array_like
            Without a checkpoint: parameters start over, embeddings by their initializers and
            variables with the values that they were made with, of which the notebook keeps 256 MiB
            (equal ones take none). Values by name are used in their place, and are needed for
            values that are not kept, or were made by `psnb.resume` or taken over by `psnb.attach`.
        consistent : bool
            True: all parameters go back to the checkpoint, or start over, so that they fit each
            other. False: only lost shards do (of a variable that is split, the rows there); the
            others keep what they have learned since.
        restart_timeout : float
            Seconds in which Dask's nannies may start the processes of dead servers again. With 0
            the remaining servers take everything immediately.

        Returns
        -------
        mapping
            The metadata that the checkpoint was saved with; nothing without one.

        Raises
        ------
        CheckpointError
            If there is no checkpoint, or if it is damaged or does not fit; nothing was changed.
        ClusterError
            If there is no worker that can be a server.
        ConfigurationError
            If an argument is of the wrong kind, or ``initialize`` lacks a value that is needed;
            nothing was changed.
        ServerLostError
            If another server dies meanwhile; call it again, as after an interrupt.
        CoordinatorClosedError
            If the strategy is closed.
        """
        self._core.check_open()
        wait = seconds("recover: restart_timeout", restart_timeout, zero=True)
        if initialize is not False:
            if checkpoint is not None:
                raise ConfigurationError("recover: give a checkpoint or initialize=, not both")
            reinitialize(self._core, initialize, consistent=consistent, restart_timeout=wait)
            return {}
        given = (
            None if checkpoint is None else as_path(path_text("recover: checkpoint", checkpoint))
        )
        return restore_lost(self._core, given, consistent=consistent, restart_timeout=wait)

    def rebalance(self, drain: Sequence[str] = ()) -> int:
        """Spread the shards evenly over all servers that there are now, while they are in use.

        Workers that were started since with ``--resources "ps=1"`` become servers; there are shards
        for them if the strategy was made with more ``shards`` than servers. A request to a shard
        that moves at that moment waits for a few milliseconds; nothing is lost. An interrupt ends
        only the waiting: the rebalancing continues.

        Parameters
        ----------
        drain : sequence of str
            Names or addresses of servers to be emptied; after this returns they can be retired with
            ``client.retire_workers``. One that writes a checkpoint ends that first.

        Returns
        -------
        int
            How many shards have moved.

        Raises
        ------
        ConfigurationError
            If one of ``drain`` is not a server, or too few servers would be left.
        ServerLostError
            If a server to which shards move, or which alone has some, dies or does not respond; or
            if too few servers are left. All other shards are where they were or where they should
            be; call it again.
        """
        core, wanted = self._core, frozenset(drain)
        core.check_open()
        return run_on_loop(
            event_loop(self.client),
            lambda: rebalance(self.client, core.servers, core.reconciler, wanted),
            goes_on=True,
        )

    def server_events(self, since: float = 0.0) -> tuple[Event, ...]:
        """Return the events of servers and shards after ``since``, the oldest first; any thread."""
        return Events(self._core.servers.events.since(since))

    @uninterrupted  # except while it waits; it is closed then, too
    def close(self) -> None:
        """Close the coordinator, end the servers and free all parameters; idempotent.

        The servers end a moment later. The notebook's handles raise `CoordinatorClosedError` from
        now on, handles on workers `ServerLostError`.
        """
        if not self._core.begin_to_close():
            return
        coordinator, _ = self._core.coordinator()
        try:
            if coordinator is not None:
                coordinator.close()
        finally:
            # Waited for: the client may be closed next, and with it the way to the scheduler.
            self._core.forget()
            self._hang_up()


def core_of(strategy: ParameterServerStrategy) -> StrategyCore:
    return strategy._core


def coordinators_of(strategy: ParameterServerStrategy) -> set[Any]:
    """Return what keeps a strategy's coordinator: its `StrategyCore` knows it weakly."""
    return strategy._coordinators


def leave_to_others(strategy: ParameterServerStrategy) -> None:
    """Give a strategy up, whose parameters stay: another process may take it over."""
    strategy._hang_up.detach()
    strategy._core.leave()


def check_client(client: Client) -> None:
    """Raise ConfigurationError unless it is a client that can be waited for; have it wait, too.

    Raises
    ------
    SchedulerLostError
        If its scheduler has ended.
    """
    if not isinstance(client, Client) or client.asynchronous:
        raise ConfigurationError(
            f"client must be a synchronous distributed.Client, found {shown(client)}: "
            "psnb.local_cluster() makes one, or psnb.connect('tcp://host:8786')"
        )
    if has_ended(client):
        raise ClusterError(CLIENT_ENDED)
    run_on_loop(event_loop(client), partial(check_scheduler, client))
    hold(client)


@uninterrupted  # except while it waits
def taken_over(client: Client, strategy: str) -> ParameterServerStrategy:
    """Take a strategy over whose owner has gone; see `take_over`."""
    core, mode = take_over(client, strategy)
    made = object.__new__(ParameterServerStrategy)
    made._assemble(core, mode)
    return made
