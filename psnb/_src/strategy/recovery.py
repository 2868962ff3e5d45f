"""Recovery: shards that are lost, or on servers that do not respond, are made again.

First lost shards are hosted again, empty, on the client's event loop (`recover_shards`).
Then, while no closure runs, they get what a checkpoint has, or begin again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from psnb._src.checkpoint.loading import Checkpoint
from psnb._src.checkpoint.restore import RestoreChoice
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import Handle, shards_of
from psnb._src.cluster.links import present
from psnb._src.cluster.roles import roles
from psnb._src.dask_compat.reach import event_loop, scheduler_identity
from psnb._src.monitor.events import EventKind
from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.server.operations import FenceCommits, HostShards
from psnb._src.strategy.core import StrategyCore
from psnb._src.strategy.losses import begin_call
from psnb._src.strategy.servers import Servers
from psnb._src.strategy.tables import MOST_KEPT
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import NAME, truncate, unknown
from psnb._src.utils.threads import run_on_loop
from psnb.errors import (
    CheckpointError,
    ClusterError,
    ConfigurationError,
    ServerLostError,
    ServerUnresponsiveError,
)

_POLL_INTERVAL = 0.2


async def recover_shards(
    core: StrategyCore,
    fences: Sequence[FenceCommits],
    restart_timeout: float,
    check: Callable[[Collection[int]], object],
) -> None:
    """Host lost shards again, empty, and add them to `StrategyCore.lost`: no server holds them.

    Parameters
    ----------
    core : StrategyCore
        The strategy's.
    fences : sequence of FenceCommits
        Operations that tell new shards which commits were given up.
    restart_timeout : float
        Seconds in which Dask's nannies may start the processes of dead servers again.
    check : callable
        Called, before anything is changed, with all shards whose recovery has not ended; may raise.

    Raises
    ------
    ClusterError
        If there is no server at all.
    ServerLostError
        If a server dies meanwhile.
    """
    servers, most = core.servers, core.reconciler.wanted
    while True:
        before, asked = servers.layout, servers.running
        alive, unresponsive, lost, pending = await _look(servers, core.tables.shards())
        if not pending:  # those whose replica takes over just now
            break
        await core.reconciler.next_round()
    check(core.lost.union(lost))
    if not lost:
        return
    # This is final: unresponsive servers are not waited for any more.
    for server in set(asked).difference(alive):
        servers.give_up(server)
    usable = await _replaced(core, most, alive, unresponsive, restart_timeout)
    async with servers.changing:
        if lost := still_lost(lost, before, servers.layout):
            # Published first: of what was hosted before an interruption, the next try is newer.
            await servers.publish(nowhere(servers.layout, lost))
            layout = hosted_anew(servers.layout, lost, usable)
            given: dict[ServerAddress, dict[int, ShardPlacement]] = {}
            for index in lost:
                placement = layout.placements[index]
                given.setdefault(placement.servers[0], {})[index] = placement
            for server, placements in given.items():
                await servers.control.ask(server, HostShards(placements, fences))
            await servers.publish(layout)
            text = f"shards {lost} are on {', '.join(server.address for server in given)} now"
            servers.events.add(EventKind.SHARDS_RECOVERED, text)
    core.lost.update(lost)


async def _look(
    servers: Servers, made: Collection[int]
) -> tuple[list[ServerAddress], list[ServerAddress], list[int], list[int]]:
    """Return the live servers, the unresponsive ones, the lost shards and the pending shards.

    A copy of a pending shard is about to take over. A shard on which tables were ``made`` and that
    has none is lost as well: its server was hosting it anew when it froze, another one took over
    and had the tables made, and died before the first knew of it.
    """
    layout = servers.layout
    holds: dict[ServerAddress, set[int]] = {}
    unresponsive: list[ServerAddress] = []

    async def look(server: ServerAddress) -> None:
        try:
            tables = await servers.control.measure(server)
            holds[server] = held(tables, made)
        except ServerUnresponsiveError:
            unresponsive.append(server)
        except ServerLostError:
            return

    await asyncio.gather(*(look(server) for server in servers.running))
    lost, pending = missing(layout, holds)
    return list(holds), unresponsive, lost, pending


def held(tables: Mapping[int, Collection[str]], made: Collection[int]) -> set[int]:
    """Return the shards that a server has, by their tables, if it has what was made. Pure."""
    return {shard for shard, names in tables.items() if names or shard not in made}


def missing(
    layout: Layout, holds: Mapping[ServerAddress, Collection[int]]
) -> tuple[list[int], list[int]]:
    """Return the lost shards, and the shards of which a replica is about to take over. Pure.

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
    core: StrategyCore,
    most: int,
    alive: Sequence[ServerAddress],
    unresponsive: Sequence[ServerAddress],
    restart_timeout: float,
) -> list[ServerAddress]:
    """Start servers in place of dead ones and return all that there are.

    It waits for workers that were started as servers. If the strategy's servers were not, or if
    none comes in time, it takes some of the workers that run closures, but not the last one.
    """
    end = time.monotonic() + restart_timeout
    used = {server.address for server in (*alive, *unresponsive)}
    while True:
        cluster, late = await scheduler_identity(core.client), time.monotonic() > end
        found = roles(present(cluster))
        wanted = most - stuck(unresponsive, cluster["workers"])
        fresh = [address for address in found.servers if address not in used]
        if not found.servers and (late or not core.servers.dedicated):
            fresh = [address for address in found.workers if address not in used][:-1]
        if len(alive) + len(fresh) >= wanted or late:
            try:
                started = await core.servers.start(fresh[: wanted - len(alive)]) if fresh else []
                break
            except ClusterError:  # perhaps of a process that is just about to end
                if late:
                    raise
        await asyncio.sleep(_POLL_INTERVAL)
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


def still_lost(lost: Sequence[int], before: Layout, now: Layout) -> list[int]:
    """Return the lost shards that were given to no other server since servers were asked. Pure."""
    return [i for i in lost if now.placements[i].primary in (None, before.placements[i].primary)]


def nowhere(layout: Layout, lost: Sequence[int]) -> Layout:
    """Return the layout in which no server has these shards. Pure."""
    placements = list(layout.placements)
    for index in lost:
        term, version = placements[index].term + 1, placements[index].version + 1
        placements[index] = ShardPlacement(None, term=term, version=version)
    return layout.with_placements(placements)


def hosted_anew(layout: Layout, lost: Sequence[int], usable: Sequence[ServerAddress]) -> Layout:
    """Return the layout in which shards that no server has are spread over some servers. Pure."""
    placements = list(layout.placements)
    load = dict.fromkeys(usable, 0)
    for placement in placements:
        if placement.primary in load:
            load[placement.primary] += 1
    for index in lost:
        server = min(load, key=lambda each: load[each])
        load[server] += 1
        placements[index] = placements[index].next(server)
    return layout.with_placements(placements)


def _initial_values(
    parameters: Mapping[str, Handle], initialize: Any
) -> dict[str, Mapping[tuple[int, str], np.ndarray]]:
    """Return the values that variables are to start over with, by shard and table.

    Raises
    ------
    ConfigurationError
        If these are none, or a value has no variable, or another shape or dtype.
    """
    if initialize is True:
        return {}
    if not isinstance(initialize, Mapping):
        raise ConfigurationError(
            "initialize must be True, or a dict of initial values by the names of variables, "
            f"found {truncate(repr(initialize))}"
        )
    given: dict[str, Mapping[tuple[int, str], np.ndarray]] = {}
    for name, value in initialize.items():
        found = parameters.get(name)
        if found is None:
            raise ConfigurationError(f"initialize: {unknown('variable', name, parameters)}")
        if isinstance(found, Embedding):
            raise ConfigurationError(
                f"initialize: {truncate(repr(name), NAME)} is an embedding, whose rows begin "
                "by its initializer: leave it out"
            )
        shards = shards_of(found)
        given[name] = shards.by_table(shards.checked(value, "initial value"))
    return given


def restore_lost(
    core: StrategyCore, checkpoint: AnyPath | None, *, consistent: bool, restart_timeout: float
) -> Mapping[str, Any]:
    """Load what was lost, and return the checkpoint's metadata.

    Arguments and errors are as for `ParameterServerStrategy.recover`.
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
    saved = Checkpoint(path, parameters, own, models=core.models.compared)
    with _made_again(core, restart_timeout) as lost_now:
        saved.load(None if consistent else lost_now)
    return saved.restored.metadata


def reinitialize(
    core: StrategyCore, initialize: Any, *, consistent: bool, restart_timeout: float
) -> None:
    """Make all parameters as they were at first, or what was lost of them.

    Arguments and errors are as for `ParameterServerStrategy.recover`.
    """
    parameters, every = core.tables.all(), range(len(core.servers.shards))
    given = _initial_values(parameters, initialize)

    def check(lost: Collection[int]) -> None:
        """Raise ConfigurationError unless there is a value for all that starts over."""
        anew = every if consistent else lost
        for name, parts in given.items():
            if not any(shard in anew for shard, _ in parts):
                raise ConfigurationError(
                    f"initialize: variable {name!r:.200} has lost nothing, and with "
                    "consistent=False only what was lost starts over: leave it out, or assign() "
                    "it; nothing was changed"
                )
        if unkept := [each for each in core.tables.unkept(anew) if each not in given]:
            names = truncate(", ".join(map(repr, unkept)))
            raise ConfigurationError(
                f"the initial values of {names} are not kept in this process, which keeps "
                f"{MOST_KEPT >> 20} MiB of them, and none of a strategy that was resumed or "
                f"attached. Give them: {begin_call(core.tables.all(), unkept)}; nothing "
                "was changed"
            )

    with _made_again(core, restart_timeout, check) as lost:
        values = {key: part for each in given.values() for key, part in each.items()}
        core.tables.make_again(every if consistent else lost, _optimizers(core, lost), values)


@contextmanager
def _at_rest(core: StrategyCore) -> Iterator[Callable[[], None]]:
    """Drain the coordinator for as long as the block lasts.

    The returned function drains again, once all shards have tables on servers that respond:
    closures that an unresponsive server has blocked are settled then, and workers have sent their
    updates of mode `Geo`. Later these would come on top of the loaded values.
    """
    coordinator, _ = core.coordinator()
    if coordinator is None:
        yield lambda: None
        return
    paused = coordinator.paused

    def settle() -> None:
        end = time.monotonic() + 2 * core.layout.heartbeat_timeout
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
def _made_again(
    core: StrategyCore, restart_timeout: float, check: Callable[[Collection[int]], object] = bool
) -> Iterator[frozenset[int]]:
    """Host lost shards again, with their tables, and drop these if the block fails.

    Closures continue after a recovery that has failed, and must not find zeros there. In the block
    none runs.
    """
    with _at_rest(core) as settle:
        given_up = core.coordinator()[1]()
        run_on_loop(
            event_loop(core.client),
            lambda: recover_shards(core, given_up, restart_timeout, check),
            goes_on=True,  # an interrupt ends only the waiting for that
        )
        lost = frozenset(core.lost)
        core.tables.make_again(lost, _optimizers(core, lost), {})
        try:
            settle()
            yield lost
        except BaseException:  # an interrupt, too
            core.server_client.attempt(core.tables.drops(lost))
            raise
        core.lost -= lost


def _optimizers(core: StrategyCore, lost: Collection[int]) -> dict[str, Any]:
    # Hyperparameters may have been changed since the parameters were made.
    return {name: each.optimizer_left(lost) for name, each in core.parameters().items()}
