"""StrategyCore: psnb's side of a strategy; users hold a `ParameterServerStrategy`.

Thread-safe. It does not refer to its `ParameterServerStrategy`, so that one can be collected; the
event loop holds the core until then (`StrategyCore.hang_up`).
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from distributed import Client

from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.commit import Blocked, end_round
from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.handles import Handle, shards_of
from psnb._src.client.model_records import ModelRecord, ModelRecords
from psnb._src.client.parameter_shards import clipped_tables
from psnb._src.client.requests import Request
from psnb._src.client.snapshots import TableSnapshots, prepare_snapshots
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.cluster.links import connection_ended
from psnb._src.cluster.roles import WorkerNames, closure_workers
from psnb._src.dask_compat.reach import cloudpickled, event_loop, has_ended, pool_of, unpickled
from psnb._src.placement.layout import Layout, ShardId
from psnb._src.protocol.lost_shards import advise
from psnb._src.protocol.modules import Uploads
from psnb._src.server.operations import EndRound, FenceCommits
from psnb._src.server.tables.sharding import Partitioner
from psnb._src.strategy.draining import LastSave, no_last_save
from psnb._src.strategy.losses import Losses
from psnb._src.strategy.reconciler import Reconciler
from psnb._src.strategy.servers import Servers
from psnb._src.strategy.tables import TableFactory
from psnb._src.strategy.watch import ServerWatch
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.threads import run_on_loop, start_task
from psnb.errors import CoordinatorClosedError, PsnbError, SerializationError, ServerLostError

Fences = Sequence[FenceCommits]
"""Operations that tell new shards which commits were given up."""


def _none() -> None:
    """Stand for a weak reference to a missing object."""


_NO_COORDINATOR: tuple[Callable[[], Any], Callable[[], LastSave | None], Callable[[], Fences]]
_NO_COORDINATOR = _none, _none, tuple
"""What is known of a `ClusterCoordinator`: itself, what saves before a last server ends, and its
fences. The first two weakly: the event loop holds the core, and must not keep the coordinator."""


class StrategyCore:
    """The parts of a strategy, and what other packages do with them.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    servers : Servers
        Its servers, which have started, with the shards.
    partitioner : callable or None
        How variables are split.
    half : bool
        Whether values and gradients of float32 travel with 16 bits.

    Attributes
    ----------
    client : distributed.Client
        As given.
    servers : Servers
        As given.
    name : str
        Part of its shards' ids; unique in the cluster. Not the name that views show.
    shards : tuple of ShardId
        All shards.
    server_client : CommServerClient
        Sends requests to the servers.
    ask : callable
        Its: sends requests on the event loop; returns errors in the place of answers.
    models : ModelRecords
        Which part of which model is in which parameter.
    tables : TableFactory
        The parameters; makes their tables.
    reconciler : Reconciler
        Repairs the layout.
    watch : ServerWatch
        The servers' figures.
    losses : Losses
        What was lost, and the ways on.
    uploads : Uploads
        The local modules that the workers were sent.
    closed : bool
        Whether all calls are refused.
    """

    def __init__(
        self, client: Client, servers: Servers, partitioner: Partitioner | None, half: bool
    ) -> None:
        self.client, self.servers, self._loop = client, servers, event_loop(client)
        self.name, self.shards = servers.name, servers.shards
        self.server_client = CommServerClient(self._loop, pool_of(client), servers.layout_cache)
        self.ask = self.server_client.ask
        self.models = ModelRecords(self._note_model)
        self.tables = TableFactory(servers, self.server_client, partitioner, half, self._describe)
        self.watch = ServerWatch(servers, self.server_client, self.tables.all)
        self.losses = Losses(servers, self.tables)
        advise(self.losses)
        self._names = WorkerNames()
        self.uploads = Uploads()
        self._lock = threading.Lock()  # guards all fields below; not held during requests
        self.closed = False
        self._known = _NO_COORDINATOR
        self._moments = threading.Event()  # set when the last one has ended; see `moment`
        self._moments.set()
        self._asked: set[asyncio.Task[None]] = set()  # the loop's
        # Shards whose recovery was begun and has not ended. The event loop adds to it, so every
        # operation on it must be one that needs no lock.
        self.lost: set[int] = set()
        summary = self.losses.summary
        self.reconciler = Reconciler(client, servers, self._last_save, self._end, summary)

    @property
    def layout(self) -> Layout:
        """Where all shards are."""
        return self.servers.layout

    async def shards_of_strategy(self, name: str) -> Sequence[ShardId]:
        """Return all shards of another strategy; there are none if it is closed.

        Raises
        ------
        OSError
            If the scheduler does not answer.
        """
        try:
            layout = await self.servers.layout_cache.refresh(name)
        except ServerLostError:
            return ()
        return [ShardId(name, number) for number in range(len(layout.placements))]

    def parameters(self) -> dict[str, DenseShards | SparseShards]:
        """Return how each parameter is spread over the servers, by name."""
        return {name: shards_of(handle) for name, handle in self.tables.all().items()}

    def take(self) -> None:
        """Take the parameters and models over that an owner before this process has made.

        Raises
        ------
        SerializationError
            If one cannot be unpickled here.
        """
        for name, packed in self.servers.ownership.parameters.items():
            self.tables.take(unpickled_here(f"parameter {name!r}", packed))
        for name, packed in self.servers.ownership.models.items():
            self.models.know(name, ModelRecord.unpacked(packed))

    def _describe(self, parameter: Handle) -> None:
        # For the next owner.
        name, packed = parameter.name, cloudpickled(parameter)
        run_on_loop(self._loop, lambda: self.servers.ownership.describe(name, packed))

    def _note_model(self, name: str, record: ModelRecord) -> None:
        packed = record.packed()
        run_on_loop(self._loop, lambda: self.servers.ownership.note_model(name, packed))

    def prepare_snapshots(self) -> None:
        """Have servers get ready for snapshots of all parameters, and wait for that."""
        prepare_snapshots(self.server_client, self.servers.running)

    def snapshots(self, since: Mapping[tuple[str, int], str] | None = None) -> TableSnapshots:
        """Take snapshots of all parameters, or of their changes since some marks."""
        return TableSnapshots(
            self.server_client, self.parameters(), lambda: self.servers.running, since
        )

    async def apply_round(self, of: EndRound, on_blocked: Blocked) -> None:
        """Apply what closures pushed in a round as one update; on the event loop."""
        owners = clipped_tables(self.parameters().values())
        await end_round(self.shards, owners, of, self.ask, on_blocked)

    def closure_workers(
        self, cluster: dict[str, Any], connected: Collection[str] | None = None
    ) -> dict[str, str]:
        """Return name by address of the workers that may run closures.

        Parameters
        ----------
        cluster : dict
            The Dask scheduler's description of it.
        connected : collection of str, optional
            See `WorkerNames.of`.
        """
        addresses = frozenset(server.address for server in self.servers.running)
        return self._names.of(closure_workers(addresses, cluster), connected)

    @uninterrupted  # except while it waits; what was placed is closed then
    def one_coordinator(
        self, make: Callable[[], tuple[Any, Callable[[], Fences], LastSave]], kept: set[Any]
    ) -> Any:
        """Return the strategy's coordinator, or make it.

        ``make`` also returns its fences, and what saves before a last server ends. The coordinator
        is added to ``kept``, which the strategy has, as it is to live as long as that.
        """
        with self._lock:
            self.check_open()
            coordinator, _ = self.coordinator()
            if coordinator is None:
                coordinator, fences, save_last = make()
                self._known = weakref.ref(coordinator), weakref.WeakMethod(save_last), fences
                kept.add(coordinator)
            return coordinator

    def forget_coordinator(self, coordinator: object, kept: set[Any]) -> None:
        """Forget a coordinator that was closed, so that a new one can be made."""
        with self._lock:
            kept.discard(coordinator)
            if self.coordinator()[0] is coordinator:
                self._known = _NO_COORDINATOR

    def coordinator(self) -> tuple[Any, Callable[[], Fences]]:
        """Return the coordinator, if there is one, and what returns its fences."""
        coordinator, _, fences = self._known
        return coordinator(), fences

    def _last_save(self, then: Callable[[], None]) -> AnyPath:
        return (self._known[1]() or no_last_save)(then)

    def _end(self, why: CoordinatorClosedError) -> None:
        self.server_client.close(why)
        self.servers.end(why)

    def settled(self) -> bool:
        """Wait until each shard is on a server that answers; see `Reconciler.settled`."""
        return run_on_loop(self._loop, self.reconciler.settled)

    @contextmanager
    def moment(self) -> Iterator[None]:
        """Save, restore or rewind in the block, one caller at a time: none sees half of another."""
        ended = threading.Event()
        try:
            with uninterrupted:
                with self._lock:
                    before, self._moments = self._moments, ended
                before.wait()
            yield
        finally:
            ended.set()

    def ask_soon(self, requests: Sequence[Request]) -> None:
        """Make requests without awaiting their outcomes; on the event loop."""

        async def make() -> None:
            with suppress(CoordinatorClosedError):  # then there is nothing to ask
                await self.ask(requests)

        start_task(make(), self._asked, "psnb asking")

    def note_checkpoint(self, path: AnyPath) -> None:
        """Remember a checkpoint, for recovery."""
        self.losses.checkpoint = path

    def ended(self) -> CoordinatorClosedError | None:
        """Return why it cannot be used any more and what to do; None if it can."""
        if (ended := self.servers.ended) is not None:
            return type(ended)(*ended.args)  # a copy: several threads may raise it
        if has_ended(self.client):
            record = self.servers.ownership.record
            return CoordinatorClosedError(connection_ended(record.name, record.retention))
        if self.closed:
            return CoordinatorClosedError(
                "the strategy is closed: make a new one with psnb.ParameterServerStrategy(client)"
            )
        return None

    def check_open(self) -> None:
        """Raise CoordinatorClosedError if it is closed."""
        if (ended := self.ended()) is not None:
            raise ended

    def forget(self) -> None:
        """Have the scheduler forget the strategy, if it can be reached."""
        self.reconciler.close()  # it would publish it again
        with suppress(RuntimeError):  # the loop is closed, or this is its thread
            run_on_loop(self._loop, self.servers.forget, goes_on=True)

    def leave(self) -> None:
        """Give the strategy up as it is: another process may take it over."""
        self.begin_to_close()
        if (coordinator := self.coordinator()[0]) is not None:
            coordinator.close()
        self.reconciler.close()  # it would publish it again
        self.server_client.close()
        self.watch.stop()
        with suppress(PsnbError, RuntimeError):  # then it counts as left some seconds later
            run_on_loop(self._loop, self.servers.ownership.leave, goes_on=True)

    @uninterrupted
    def hang_up(self) -> None:
        """End servers and connections. Takes no lock, as the garbage collector may call."""
        self.closed = True
        self.reconciler.close()
        self.server_client.close()  # what the watch has asked for ends with it
        self.watch.stop()
        self.servers.close()

    def begin_to_close(self) -> bool:
        """Refuse all calls from now on; return whether the strategy was open."""
        with self._lock:
            was_open, self.closed = not self.closed, True
            return was_open


def unpickled_here(what: str, packed: bytes) -> Any:
    """Unpickle what another process has made, or raise SerializationError."""
    try:
        return unpickled(packed)
    except Exception as error:  # whatever a class may raise
        raise SerializationError(
            f"{what} cannot be unpickled here: {error!r}. Install the modules that it needs"
        ) from error
