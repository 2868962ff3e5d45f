"""StrategyCore: psnb's side of a strategy; users hold a `ParameterServerStrategy`.

Thread-safe. It does not refer to its `ParameterServerStrategy`, so that one can be collected. What
lives longer than the strategy (threads, the event loop) holds the core weakly.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, Protocol, TypeVar, cast

from distributed import Client

from psnb._src.checkpoint import ModelParts
from psnb._src.cluster import CLIENT_ENDED, WorkerNames, closure_workers
from psnb._src.dask_internals import cloudpickled, event_loop, has_ended, pool_of, unpickled
from psnb._src.parameters import (
    CommServerClient,
    DenseShards,
    Embedding,
    ModelRecord,
    ModelRecords,
    Partitioner,
    Request,
    SparseShards,
    TableSnapshots,
    Variable,
    advise,
    apply_round,
    prepare_snapshots,
    shards_of,
)
from psnb._src.placement import Layout, ShardId
from psnb._src.remote_path import Place
from psnb._src.runtime import UploadedModule, Uploads, read_files
from psnb._src.server import FenceCommits
from psnb._src.strategy.departures import Departures, LastSave, no_last_save
from psnb._src.strategy.losses import Losses
from psnb._src.strategy.measuring import measured
from psnb._src.strategy.rebalancing import rebalance
from psnb._src.strategy.reconciler import Reconciler
from psnb._src.strategy.recovery import recover_shards
from psnb._src.strategy.registry import Registry
from psnb._src.strategy.servers import Servers
from psnb._src.strategy.table_factory import TableFactory
from psnb._src.strategy.watch import ServerWatch
from psnb._src.threads import aside, on_loop, uninterrupted
from psnb.errors import (
    CoordinatorClosedError,
    PsnbError,
    SerializationError,
    ServerLostError,
)


class Coordinator(Protocol):
    """What a strategy knows of its coordinator."""

    @property
    def paused(self) -> bool:
        """Whether no closures are begun at present."""

    def drain(self, timeout: float | None = None) -> None:
        """Begin no more closures and wait until none runs."""

    def resume(self) -> None:
        """Begin closures again."""

    def close(self) -> None:
        """Close it; idempotent."""


Fences = Sequence[FenceCommits]
"""Operations that tell new shards which commits were given up."""

C = TypeVar("C", bound=Coordinator)


class StrategyCore:
    """The parts of a strategy, and what other packages do with them.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    servers : Servers
        Its servers, which have started.
    partitioner : callable or None
        How variables are split.
    half : bool
        Whether values and gradients of float32 travel with 16 bits.
    dashboard : str
        The address of Dask's own dashboard; empty if there is none.

    Attributes
    ----------
    client : distributed.Client
        As given.
    servers : Servers
        As given.
    server_client : CommServerClient
        Sends requests to the servers.
    registry : Registry
        The parameters.
    models : ModelRecords
        What of which model is in which parameter.
    tables : TableFactory
        Makes the parameters' tables.
    reconciler : Reconciler
        Repairs the layout.
    watch : ServerWatch
        The servers' figures.
    losses : Losses
        What was lost, and the ways on.
    uploads : Uploads
        The local modules that the workers were sent.
    """

    def __init__(
        self,
        client: Client,
        servers: Servers,
        partitioner: Partitioner | None,
        half: bool,
        dashboard: str,
    ) -> None:
        self.client, self.servers, self.dashboard = client, servers, dashboard
        self.server_client = CommServerClient(
            event_loop(client), pool_of(client), servers.layout_cache
        )
        self.registry = Registry()
        self.models = ModelRecords(self._note_model)
        self.tables = TableFactory(servers, self.server_client, partitioner, half, self._describe)
        self.watch = ServerWatch(servers, self.server_client, self.registry.all)
        me = weakref.ref(self)

        def last_save(then: Callable[[], None]) -> Place:
            known = me()
            return (no_last_save if known is None else known.save_last)(then)

        departures = Departures(event_loop(client), servers, last_save)

        def way(lost: Collection[int]) -> str:
            known = me()
            return "" if known is None else known.losses.briefly(lost)

        # On the event loop, which must not keep the core.
        ended = partial(_end, servers, self.server_client)
        self.losses = Losses(servers, self.registry, self.tables)
        advise(self.losses)
        self.reconciler = Reconciler(client, servers, departures, ended, way)
        self._names = WorkerNames()
        self.uploads = Uploads()
        self._loop = event_loop(client)
        self._lock = threading.Lock()  # guards all fields below; not held during requests
        self._closed = False
        self._coordinator: Coordinator | None = None
        self._fences: Callable[[], Fences] = tuple  # the coordinator's; else there are none
        self._save_last: LastSave = no_last_save  # the coordinator's
        # Shards whose recovery was begun and has not ended. The event loop adds to it, so every
        # operation on it must be one that needs no lock.
        self.lost: set[int] = set()

    @property
    def name(self) -> str:
        """Part of its shards' ids; unique in the cluster. Not the name that views show."""
        return self.servers.name

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """All shards."""
        return self.servers.shards

    @property
    def layout(self) -> Layout:
        """Where all shards are."""
        return self.servers.layout

    def shards_of_strategy(self, name: str) -> Sequence[ShardId]:
        """Return all shards of another strategy; there are none if it is closed."""
        try:
            layout = on_loop(self._loop, lambda: self.servers.layout_cache.refresh(name))
        except (OSError, ServerLostError, RuntimeError):  # the last: the client is closed
            return ()
        return [ShardId(name, number) for number in range(len(layout.places))]

    def parameters(self) -> dict[str, DenseShards | SparseShards]:
        """Return how each parameter is spread over the servers, by name."""
        return {name: shards_of(handle) for name, handle in self.registry.all().items()}

    def model_parts(self, run: Mapping[str, Any]) -> ModelParts:
        """Return what is known of the models here, and of those in what was saved of a run."""
        return ModelParts(*self.models.compared(run.get("models")))

    def take(self) -> None:
        """Take the parameters and models over that an owner before this process has made.

        Raises
        ------
        SerializationError
            If one cannot be unpickled here.
        """
        for name, packed in self.servers.ownership.parameters.items():
            self.registry.add(self.tables.take(unpickled_here(f"parameter {name!r}", packed)))
        for name, packed in self.servers.ownership.models.items():
            self.models.know(name, ModelRecord.unpacked(packed))

    def _describe(self, parameter: Variable | Embedding) -> None:
        # For those who take the strategy over.
        name, packed = parameter.name, cloudpickled(parameter)
        on_loop(self._loop, lambda: self.servers.ownership.describe(self.name, name, packed))

    def _note_model(self, name: str, record: ModelRecord) -> None:
        packed = record.packed()
        on_loop(self._loop, lambda: self.servers.ownership.note_model(self.name, name, packed))

    def prepare_snapshots(self) -> None:
        """Have servers get ready for snapshots of all parameters, and wait for that."""
        prepare_snapshots(self.server_client, self.servers.running)

    def snapshots(self, since: Mapping[tuple[str, int], str] | None = None) -> TableSnapshots:
        """Take snapshots of all parameters, or of what changed since some marks."""
        return TableSnapshots(
            self.server_client, self.parameters(), lambda: self.servers.running, since
        )

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        """Send requests to shards; return errors in the place of answers."""
        return self.server_client.attempt(requests)

    def apply_round(
        self,
        coordinator: str,
        number: int,
        closures: Sequence[int],
        held_up: Callable[[Exception], None],
    ) -> None:
        """Apply what closures pushed in a round as one update; see `parameters.apply_round`."""
        parameters = self.parameters().values()
        apply_round(self.attempt, self.shards, parameters, coordinator, number, closures, held_up)

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

    @uninterrupted  # except while it waits; what was made is closed then
    def one_coordinator(self, make: Callable[[], tuple[C, Callable[[], Fences], LastSave]]) -> C:
        """Return the strategy's coordinator, or make it.

        ``make`` also returns its fences, and what saves before a last server ends.
        """
        with self._lock:
            self._require_open()
            if self._coordinator is None:
                self._coordinator, self._fences, self._save_last = make()
            return cast(C, self._coordinator)

    def forget_coordinator(self, coordinator: Coordinator) -> None:
        """Forget a coordinator that was closed, so that a new one can be made."""
        with self._lock:
            if self._coordinator is coordinator:
                self._coordinator, self._fences, self._save_last = None, tuple, no_last_save

    def coordinator(self) -> tuple[Coordinator | None, Callable[[], Fences]]:
        """Return the coordinator, if there is one, and what returns its fences."""
        with self._lock:
            return self._coordinator, self._fences

    @property
    def save_last(self) -> LastSave:
        """What saves before a last server ends."""
        with self._lock:
            return self._save_last

    def settled(self) -> bool:
        """Wait until each shard is on a server that answers; see `Reconciler.settled`."""
        return on_loop(self._loop, self.reconciler.settled)

    def note_checkpoint(self, path: Place) -> None:
        """Remember a checkpoint, for recovery."""
        self.losses.checkpoint = path

    def host_lost(
        self, restart_timeout: float, check: Callable[[Collection[int]], object] = bool
    ) -> None:
        """Make lost shards again, empty; see `recover_shards`. An interrupt ends only waiting.

        ``check`` is called with all shards whose recovery has not ended, and may raise.
        """
        _, fences = self.coordinator()
        given_up = fences()

        async def host() -> None:
            lost = await recover_shards(
                self.client,
                self.servers,
                self.reconciler,
                given_up,
                restart_timeout,
                lambda lost: check(self.lost.union(lost)),
            )
            self.lost.update(lost)

        on_loop(self._loop, host, goes_on=True)

    def rebalance(self, drain: Collection[str]) -> int:
        """Spread the shards evenly; see `ParameterServerStrategy.rebalance`."""
        return on_loop(
            self._loop,
            lambda: rebalance(self.client, self.servers, self.reconciler, drain),
            goes_on=True,
        )

    def upload(self, module: ModuleType) -> None:
        """Send a local module to all workers and servers; see `ParameterServerStrategy.upload`."""
        self.check_open()
        files = read_files(module)
        aside(self.client.register_plugin, UploadedModule(files))
        self.uploads.note(files)

    def memory(self) -> dict[str, dict[str, int]]:
        """Ask the servers for the bytes of all tables, by address and table."""
        self.check_open()
        sizes = on_loop(self._loop, lambda: measured(self.servers, self.reconciler))
        found: dict[str, dict[str, int]] = {}
        for server, shards in sizes.items():
            tables = found.setdefault(server.address, {})
            for shard in shards.values():
                for table, nbytes in shard.items():
                    tables[table] = tables.get(table, 0) + nbytes
        return found

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    def ended(self) -> CoordinatorClosedError | None:
        """Return why it cannot be used any more and what to do; None if it can."""
        if (ended := self.servers.ended) is not None:
            return type(ended)(*ended.args)  # anew: it may be raised by several threads
        if has_ended(self.client):
            return CoordinatorClosedError(CLIENT_ENDED)
        if self._closed:
            return CoordinatorClosedError(
                "the strategy is closed: make a new one with psnb.ParameterServerStrategy(client)"
            )
        return None

    def check_open(self) -> None:
        """Raise CoordinatorClosedError if it is closed."""
        with self._lock:
            self._require_open()

    def forget(self) -> None:
        """Have the scheduler forget the strategy, if it can be reached."""
        self.reconciler.close()  # it would tell of it again
        with suppress(RuntimeError):  # the loop is closed, or this is its thread
            on_loop(self._loop, self.servers.forget, goes_on=True)

    def leave(self) -> None:
        """Give the strategy up as it is: another process may take it over."""
        self.begin_to_close()
        if (coordinator := self.coordinator()[0]) is not None:
            coordinator.close()
        self.reconciler.close()  # it would tell of it again
        self.server_client.close()
        self.watch.stop()
        with suppress(PsnbError, RuntimeError):  # then it counts as left some seconds later
            on_loop(self._loop, lambda: self.servers.ownership.leave(self.name), goes_on=True)

    def begin_to_close(self) -> bool:
        """Refuse all calls from now on; return whether the strategy was open."""
        with self._lock:
            was_open, self._closed = not self._closed, True
            return was_open

    def _require_open(self) -> None:
        if (ended := self.ended()) is not None:
            raise ended


def unpickled_here(what: str, packed: bytes) -> Any:
    """Unpickle what another process has made, or raise SerializationError."""
    try:
        return unpickled(packed)
    except Exception as error:  # whatever a class may raise
        raise SerializationError(
            f"{what} cannot be unpickled here: {error!r}. Install the modules that it needs"
        ) from error


def _end(servers: Servers, server_client: CommServerClient, why: CoordinatorClosedError) -> None:
    server_client.close(why)
    servers.end(why)
