"""StrategyCore: psnb's side of a strategy; users hold a `ParameterServerStrategy`.

Thread-safe. It does not refer to its `ParameterServerStrategy`, so that one can be collected. What
lives longer than the strategy (threads, the event loop) holds the core weakly.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from types import ModuleType
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from distributed import Client
from numpy.typing import ArrayLike

from psnb._src.checkpoint.restore import Checkpoint, ModelParts, RestoreChoice
from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.commit import Blocked, end_round
from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.client.model_records import ModelRecord, ModelRecords
from psnb._src.client.parameter_shards import clipped_tables
from psnb._src.client.requests import Request
from psnb._src.client.snapshots import TableSnapshots, prepare_snapshots
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.variable import Variable
from psnb._src.cluster.links import connection_ended, present
from psnb._src.cluster.local import WorkerNames, closure_workers, roles
from psnb._src.dask_compat.reach import (
    cloudpickled,
    event_loop,
    has_ended,
    pool_of,
    scheduler_identity,
    unpickled,
)
from psnb._src.monitor.events import EventKind
from psnb._src.placement.layout import Layout, ServerAddress, ShardId, ShardPlacement
from psnb._src.protocol.lost_shards import advise
from psnb._src.protocol.modules import UploadedModule, Uploads, read_files
from psnb._src.server.operations import EndRound, FenceCommits
from psnb._src.server.tables.sharding import Partitioner
from psnb._src.strategy.ownership import Registry
from psnb._src.strategy.reconciler import (
    LastSave,
    Reconciler,
    ServerDraining,
    measured,
    no_last_save,
    rebalance,
)
from psnb._src.strategy.servers import Servers, ServerWatch
from psnb._src.strategy.tables import MOST_KEPT, Losses, TableFactory, begin_call
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import NAME, truncate
from psnb._src.utils.threads import run_in_thread, run_on_loop
from psnb.errors import (
    CheckpointError,
    ClusterError,
    ConfigurationError,
    CoordinatorClosedError,
    PsnbError,
    SerializationError,
    ServerLostError,
    ServerUnresponsiveError,
)

# Recovery: makes shards again whose servers are lost or do not respond.
#
# On the client's event loop.

_LOOK = 0.2


async def recover_shards(
    client: Client,
    servers: Servers,
    reconciler: Reconciler,
    fences: Sequence[FenceCommits],
    restart_timeout: float,
    check: Callable[[Collection[int]], object] = bool,
) -> list[int]:
    """Host lost shards again, empty, and return which they are: those that no server holds.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    servers : Servers
        The strategy's servers.
    reconciler : Reconciler
        Lets replicas take over, if there are copies.
    fences : sequence of FenceCommits
        Operations that tell new shards which commits were given up.
    restart_timeout : float
        Seconds in which Dask's nannies may start the processes of dead servers again.
    check : callable
        Called with the lost shards before anything is changed, and may raise.

    Raises
    ------
    ClusterError
        If there is no server at all.
    ServerLostError
        If a server dies meanwhile.
    """
    wanted = reconciler.wanted
    while True:
        before, asked = servers.layout, servers.running
        alive, unresponsive, lost, pending = await _look(servers)
        if not pending:
            break
        await reconciler.next_round()
    check(lost)
    if not lost:
        return []
    # This is final: unresponsive servers are not waited for any more.
    for server in set(asked).difference(alive):
        servers.give_up(server)
    usable = await _replaced(client, servers, alive, unresponsive, wanted, restart_timeout)
    async with servers.changing:
        lost = still_lost(lost, before, servers.layout)
        if lost:
            await _host(servers, lost, usable, fences)
    return lost


async def _look(
    servers: Servers,
) -> tuple[list[ServerAddress], list[ServerAddress], list[int], list[int]]:
    """Return the live servers, the unresponsive ones, the lost shards and the pending shards.

    A copy of a pending shard is about to take over.
    """
    layout = servers.layout
    holds: dict[ServerAddress, set[int]] = {}
    unresponsive: list[ServerAddress] = []

    async def look(server: ServerAddress) -> None:
        try:
            holds[server] = set(await servers.control.weigh(server))
        except ServerUnresponsiveError:
            unresponsive.append(server)
        except ServerLostError:
            return

    await asyncio.gather(*(look(server) for server in servers.running))
    lost, pending = missing(layout, holds)
    return list(holds), unresponsive, lost, pending


def missing(
    layout: Layout, holds: Mapping[ServerAddress, Collection[int]]
) -> tuple[list[int], list[int]]:
    """Return which shards are lost, and those of which a copy is about to take over. Pure.

    Parameters
    ----------
    layout : Layout
        Where shards should be.
    holds : mapping of ServerAddress to collection of int
        The servers that answer, and which shards they hold.
    """
    lost: list[int] = []
    pending: list[int] = []
    for index, placement in enumerate(layout.placements):
        if placement.primary is None or index not in holds.get(placement.primary, ()):
            copied = any(index in holds.get(each, ()) for each in placement.synced)
            (pending if copied else lost).append(index)
    return lost, pending


async def _replaced(
    client: Client,
    servers: Servers,
    alive: Sequence[ServerAddress],
    unresponsive: Sequence[ServerAddress],
    wanted: int,
    restart_timeout: float,
) -> list[ServerAddress]:
    """Start servers in place of dead ones and return all that there are.

    It waits for workers that were started as servers. If the strategy's servers were not, or if
    none comes in time, it takes some of the workers that run closures, but not the last one.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + restart_timeout
    used = {server.address for server in (*alive, *unresponsive)}
    most = wanted
    while True:
        cluster, late = await scheduler_identity(client), loop.time() > end
        found = roles(present(cluster))
        wanted = most - stuck(unresponsive, cluster["workers"])
        fresh = [address for address in found.servers if address not in used]
        if not found.servers and (late or not servers.dedicated):
            fresh = [address for address in found.workers if address not in used][:-1]
        if len(alive) + len(fresh) >= wanted or late:
            try:
                started = await servers.start(fresh[: wanted - len(alive)]) if fresh else []
                break
            except ClusterError:  # that of a process which is just about to end, perhaps
                if late:
                    raise
        await asyncio.sleep(_LOOK)
    if not alive and not started:
        raise ClusterError(
            "no worker can be a parameter server: start some with "
            'dask worker ADDRESS --resources "ps=1", then call recover() again'
        )
    return [*alive, *started]


def stuck(unresponsive: Sequence[ServerAddress], there: Collection[str]) -> int:
    """Return how many unresponsive servers still have processes; Dask starts none instead. Pure.

    One that was killed a moment before it was asked counts as unresponsive, too.
    """
    return sum(server.address in there for server in unresponsive)


async def _host(
    servers: Servers,
    lost: Sequence[int],
    usable: Sequence[ServerAddress],
    fences: Sequence[FenceCommits],
) -> None:
    """Host lost shards on servers, empty, and publish the new layout."""
    layout = hosted_anew(servers.layout, lost, usable)
    given: dict[ServerAddress, dict[int, ShardPlacement]] = {}
    for index in lost:
        placement = layout.placements[index]
        given.setdefault(placement.servers[0], {})[index] = placement
    for server, placements in given.items():
        await servers.control.host(server, placements, fences)
    await servers.publish(layout)
    text = f"shards {list(lost)} are on {', '.join(server.address for server in given)} now"
    servers.events.add(EventKind.SHARDS_RECOVERED, text)


def still_lost(lost: Sequence[int], before: Layout, now: Layout) -> list[int]:
    """Return the lost shards that were given to no other server since servers were asked. Pure."""
    return [i for i in lost if now.placements[i].primary in (None, before.placements[i].primary)]


def hosted_anew(layout: Layout, lost: Sequence[int], usable: Sequence[ServerAddress]) -> Layout:
    """Return the layout in which lost shards are spread over some servers. Pure."""
    placements = list(layout.placements)
    load = dict.fromkeys(usable, 0)
    for index, placement in enumerate(placements):
        if index not in lost and placement.primary in load:
            load[placement.primary] += 1
    for index in lost:
        server = min(load, key=lambda each: load[each])
        load[server] += 1
        nowhere = {"synced": (), "syncing": None, "successor": None, "leaving": ()}
        placements[index] = placements[index].next(primary=None, **nowhere).next(primary=server)
    return layout.with_placements(placements)


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


def _none() -> None:
    """Stand for a weak reference to what is not there."""


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

        def last_save(then: Callable[[], None]) -> AnyPath:
            known = me()
            return (no_last_save if known is None else known.save_last)(then)

        departures = ServerDraining(event_loop(client), servers, last_save)

        def way(lost: Collection[int]) -> str:
            known = me()
            return "" if known is None else known.losses.summary(lost)

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
        # Both weakly: the event loop holds the core, and must not keep the coordinator.
        self._coordinator: Callable[[], Coordinator | None] = _none
        self._save_last: Callable[[], LastSave | None] = _none  # the coordinator's
        self._fences: Callable[[], Fences] = tuple  # the coordinator's; else there are none
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
        # For the next owner.
        name, packed = parameter.name, cloudpickled(parameter)
        run_on_loop(self._loop, lambda: self.servers.ownership.describe(self.name, name, packed))

    def _note_model(self, name: str, record: ModelRecord) -> None:
        packed = record.packed()
        run_on_loop(self._loop, lambda: self.servers.ownership.note_model(self.name, name, packed))

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

    async def ask(self, requests: Sequence[Request]) -> list[Any]:
        """Do what `attempt` does, on the event loop."""
        return await self.server_client.ask(requests)

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

    @uninterrupted  # except while it waits; what was made is closed then
    def one_coordinator(
        self, make: Callable[[], tuple[C, Callable[[], Fences], LastSave]], kept: set[Any]
    ) -> C:
        """Return the strategy's coordinator, or make it.

        ``make`` also returns its fences, and what saves before a last server ends. The coordinator
        is added to ``kept``, which the strategy has, as it is to live as long as that.
        """
        with self._lock:
            self._require_open()
            known = self._coordinator()
            if known is None:
                known, self._fences, save_last = make()
                self._coordinator = weakref.ref(known)
                self._save_last = weakref.WeakMethod(save_last)
                kept.add(known)
            return cast(C, known)

    def forget_coordinator(self, coordinator: Coordinator, kept: set[Any]) -> None:
        """Forget a coordinator that was closed, so that a new one can be made."""
        with self._lock:
            kept.discard(coordinator)
            if self._coordinator() is coordinator:
                self._coordinator, self._save_last, self._fences = _none, _none, tuple

    def coordinator(self) -> tuple[Coordinator | None, Callable[[], Fences]]:
        """Return the coordinator, if there is one, and what returns its fences."""
        with self._lock:
            return self._coordinator(), self._fences

    @property
    def save_last(self) -> LastSave:
        """What saves before a last server ends."""
        with self._lock:
            return self._save_last() or no_last_save

    def what_is_lost(self) -> str:
        """Return what no server has, and the way on; empty if nothing is lost."""
        lost = self.losses.lost()
        return self.losses.loss_text(lost) if lost else ""

    def settled(self) -> bool:
        """Wait until each shard is on a server that answers; see `Reconciler.settled`."""
        return run_on_loop(self._loop, self.reconciler.settled)

    def note_checkpoint(self, path: AnyPath) -> None:
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

        run_on_loop(self._loop, host, goes_on=True)

    def rebalance(self, drain: Collection[str]) -> int:
        """Spread the shards evenly; see `ParameterServerStrategy.rebalance`."""
        return run_on_loop(
            self._loop,
            lambda: rebalance(self.client, self.servers, self.reconciler, drain),
            goes_on=True,
        )

    def upload(self, module: ModuleType) -> None:
        """Send a local module to all workers and servers; see `ParameterServerStrategy.upload`."""
        self.check_open()
        files = read_files(module)
        run_in_thread(self.client.register_plugin, UploadedModule(files))
        self.uploads.note(files)

    def memory(self) -> dict[str, dict[str, int]]:
        """Ask the servers for the bytes of all tables, by address and table."""
        self.check_open()
        sizes = run_on_loop(self._loop, lambda: measured(self.servers, self.reconciler))
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
            return type(ended)(*ended.args)  # a copy: several threads may raise it
        if has_ended(self.client):
            deed = self.servers.ownership.deed
            return CoordinatorClosedError(connection_ended(deed.name, deed.retention))
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
            run_on_loop(self._loop, lambda: self.servers.ownership.leave(self.name), goes_on=True)

    @uninterrupted
    def hang_up(self) -> None:
        """End servers and connections. Takes no lock, as the garbage collector may call."""
        self._closed = True
        self.reconciler.close()
        self.server_client.close()  # what the watch has asked for ends with it
        self.watch.stop()
        self.servers.close()

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


class Beginnings:
    """The values that variables start over with, and on which shards parameters do.

    Parameters
    ----------
    core : StrategyCore
        The strategy's.
    initialize : object
        True, or values of variables by name.
    everything : bool
        Whether all parameters start over, or only what was lost.

    Attributes
    ----------
    values : dict
        The given values, by shard and table.

    Raises
    ------
    ConfigurationError
        If ``initialize`` is neither, or a value has no variable, or another shape or dtype.
    """

    def __init__(self, core: StrategyCore, initialize: Any, everything: bool) -> None:
        if initialize is not True and not isinstance(initialize, Mapping):
            raise ConfigurationError(
                "initialize must be True, or a dict of initial values by the names of variables, "
                f"found {truncate(repr(initialize))}"
            )
        self._core, self._everything = core, everything
        self._given: dict[str, Mapping[tuple[int, str], np.ndarray]] = {}
        for name, value in ({} if initialize is True else initialize).items():
            self._given[name] = self._by_table(name, value)
        self.values = {key: part for each in self._given.values() for key, part in each.items()}

    def shards(self, lost: Collection[int]) -> Collection[int]:
        """Return the shards that start over."""
        return range(len(self._core.shards)) if self._everything else lost

    def check(self, lost: Collection[int]) -> None:
        """Raise ConfigurationError unless there is a value for all that starts over."""
        anew = self.shards(lost)
        for name, parts in self._given.items():
            if not any(shard in anew for shard, _ in parts):
                raise ConfigurationError(
                    f"initialize: variable {name!r:.200} has lost nothing, and with "
                    "consistent=False only what was lost starts over: leave it out, or assign() "
                    "it; nothing was changed"
                )
        unkept = [each for each in self._core.tables.unkept(anew) if each not in self._given]
        if unkept:
            names = truncate(", ".join(map(repr, unkept)))
            raise ConfigurationError(
                f"the initial values of {names} are not kept in this process, which keeps "
                f"{MOST_KEPT >> 20} MiB of them, and none of a strategy that was resumed or "
                f"attached. Give them: {begin_call(self._core.registry.all(), unkept)}; nothing "
                "was changed"
            )

    def _by_table(self, name: str, value: ArrayLike) -> Mapping[tuple[int, str], np.ndarray]:
        found = self._core.registry.all().get(name)
        if found is None:
            near = get_close_matches(str(name), self._core.registry.all(), 1)
            meant = f"; is {near[0]!r} meant?" if near else ""
            raise ConfigurationError(f"initialize: no variable is called {name!r:.200}{meant}")
        if isinstance(found, Embedding):
            raise ConfigurationError(
                f"initialize: {truncate(repr(name), NAME)} is an embedding, whose rows begin "
                "by its initializer: leave it out"
            )
        shards = shards_of(found)
        return shards.by_table(shards.checked(value, "initial value"))


# Recovery of shards that were lost with servers, while no closure runs.


def bring_back(
    core: StrategyCore, checkpoint: AnyPath | None, *, consistent: bool, restart_timeout: float
) -> Mapping[str, Any]:
    """Load what was lost, and return the checkpoint's metadata.

    The arguments and what it raises are those of `ParameterServerStrategy.recover`.
    """
    path = core.losses.checkpoint if checkpoint is None else checkpoint
    if path is None:
        lost = core.losses.lost()
        raise CheckpointError(
            f"there is no checkpoint to recover from: pass its path, or {core.losses.beginning()} "
            "starts over in place: all parameters, or with consistent=False only what was lost"
            f"{f' ({core.losses.names(lost)})' if lost else ''}. "
            "psnb.CheckpointManager(coordinator, directory).save() saves one, for next time"
        )
    parameters = core.parameters()
    own = RestoreChoice(takes=parameters.__contains__)  # what only the checkpoint has is no loss
    # First: it raises if it cannot be loaded.
    saved = Checkpoint(path, parameters, own, models=core.model_parts)
    with _at_rest(core) as settle:
        core.host_lost(restart_timeout)
        lost_now = frozenset(core.lost)
        with _made_again(core, lost_now):
            settle()
            saved.load(None if consistent else lost_now)
        core.lost -= lost_now
    return saved.restored.metadata


def begin_anew(
    core: StrategyCore, initialize: Any, *, consistent: bool, restart_timeout: float
) -> None:
    """Make all parameters as they were at first, or what was lost of them.

    The arguments and what it raises are those of `ParameterServerStrategy.recover`.
    """
    beginnings = Beginnings(core, initialize, consistent)
    with _at_rest(core) as settle:
        core.host_lost(restart_timeout, beginnings.check)
        lost = frozenset(core.lost)
        with _made_again(core, lost):
            settle()
            optimizers = _optimizers(core, lost)
            core.tables.make_again(beginnings.shards(lost), optimizers, beginnings.values)
        core.lost -= lost


@contextmanager
def _at_rest(core: StrategyCore) -> Iterator[Callable[[], None]]:
    """Drain the coordinator for as long as the block lasts.

    The function that it gives drains again, once all shards have tables on servers that respond:
    what was blocked by one that does not is settled then, and workers have sent what they have
    learned in mode `Geo`. Later it would come on top of what is loaded.
    """
    coordinator, _ = core.coordinator()
    if coordinator is None:
        yield lambda: None
        return
    paused = coordinator.paused

    def settle() -> None:
        end = time.monotonic() + 2 * core.layout.patience
        while True:
            try:
                return coordinator.drain()
            except ServerUnresponsiveError:  # asked before there was another server, or it is one
                if time.monotonic() > end:
                    raise

    try:
        with suppress(ServerUnresponsiveError):
            coordinator.drain()
        yield settle
    finally:
        if not paused:
            coordinator.resume()


@contextmanager
def _made_again(core: StrategyCore, lost: Collection[int]) -> Iterator[None]:
    """Make the tables of lost shards again, and drop them if the block fails.

    Closures go on after a recovery that has failed, and must not find zeros there.
    """
    core.tables.make_again(lost, _optimizers(core, lost), {})
    try:
        yield
    except BaseException:  # an interrupt, too
        core.attempt(core.tables.drops(lost))
        raise


def _optimizers(core: StrategyCore, lost: Collection[int]) -> dict[str, Any]:
    # Hyperparameters may have been changed since the parameters were made.
    return {name: each.optimizer_left(lost) for name, each in core.parameters().items()}
