"""Reconciler: watches the servers of a strategy, and repairs its layout.

Several times a second it sends each server which shards to hold, and the server answers which it
holds; the answer is also the heartbeat (`ServerControl.beat`). From what is observed, a pure
function (`psnb._src.placement.next_layout.next_layout`) computes the next layout. It is published,
and the servers get it with the next beats. So no single message needs to arrive: whatever went
wrong is seen again in the next round.

Threads: the Dask client's event loop. One task makes the rounds; it waits for no server. One task
for each server asks it; one more starts servers in place of lost ones, and one notices the end of
the scheduler. An unexpected exception is
logged, and the next round is made all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Set
from functools import partial

from distributed import Client

from psnb._src.client.comm_client import FAILOVER_TIMEOUT
from psnb._src.cluster.links import present
from psnb._src.cluster.local import roles
from psnb._src.dask_compat.reach import event_loop, has_ended, scheduler_identity
from psnb._src.monitor.events import EventKind
from psnb._src.placement.layout import Layout, ServerAddress, moves
from psnb._src.placement.next_layout import DesiredLayout, Health, SyncPauses, next_layout
from psnb._src.placement.registry import PUBLISH_AGAIN
from psnb._src.protocol.lost_shards import UNKNOWN
from psnb._src.strategy.ownership import scheduler_ends
from psnb._src.strategy.servers import Servers, WatchedServer
from psnb._src.utils.loops import LoopErrors
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import counted
from psnb._src.utils.threads import run_on_loop
from psnb.errors import (
    CheckpointError,
    ClusterError,
    ConfigurationError,
    CoordinatorClosedError,
    ServerLostError,
)

# ServerDraining: servers whose processes were asked to end, until they hold nothing any more.
#
# Such a server says so in its answers (`ServerStatus.leaves`), and its process waits for a while.
# The reconciler moves its shards to others as in any other move. This notices when it holds nothing
# that no other has: then it is asked to stop, and its process ends. If there is no other server
# to take its shards, all is saved, and it ends before any closure goes on: nothing is written that
# would be lost with it.
#
# On the client's event loop; what saves runs in a thread, ``psnb-last-save``.

LastSave = Callable[[Callable[[], None]], AnyPath]
"""Saves all parameters and then calls a function, both before any closure goes on."""

_END_TIMEOUT = 5.0


def no_last_save(then: Callable[[], None]) -> AnyPath:
    """Raise: the `LastSave` where there is no coordinator, so no manager to save with."""
    raise CheckpointError("there is no coordinator whose checkpoint manager could save")


class ServerDraining:
    """The servers of one strategy that leave.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        The client's event loop.
    servers : Servers
        The strategy's.
    last_save : callable
        A `LastSave`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        servers: Servers,
        last_save: LastSave = no_last_save,
    ) -> None:
        self._loop, self._servers, self._last_save = loop, servers, last_save
        self._began: dict[ServerAddress, float] = {}
        self._alone = False  # servers that might help were looked for, and there are none
        self._saving = False  # it was begun; until none leaves any more

    def follow(
        self,
        layout: Layout,
        leaving: Set[ServerAddress],
        usable: Collection[ServerAddress],
        writing: Collection[ServerAddress] = (),
    ) -> None:
        """Go on with each of them, in each round of the reconciler.

        Parameters
        ----------
        layout : Layout
            Where shards are.
        leaving : set of ServerAddress
            The servers that leave.
        usable : collection of ServerAddress
            Those that may take their shards.
        writing : collection of ServerAddress
            Those that write a checkpoint, which is waited for as long as their processes wait.
        """
        self._began = {server: self._began[server] for server in leaving & self._began.keys()}
        for server in leaving:
            if server not in self._began:
                self._began[server] = time.monotonic()
                held = sum(placement.primary == server for placement in layout.placements)
                text = f"parameter {server.name} at {server.address} was asked to end; "
                text += f"its {counted(held, 'shard')} move to {counted(len(usable), 'other')}"
                self._servers.events.add(EventKind.SERVER_RETIRING, text)
        for server in leaving:
            if server not in writing and not holds(layout, server, len(usable)):
                self._report_retired(server, "has handed over all shards")
                self._servers.give_up(server)
        if not leaving:
            self._saving = self._alone = False
        elif not usable and self._alone and not self._saving:
            self._saving = True
            run = partial(self._save, tuple(leaving))
            threading.Thread(target=run, name="psnb-last-save", daemon=True).start()

    def note_recruited(self, count: int) -> None:
        """Note that servers were looked for, and how many there were."""
        self._alone = not count

    def _report_retired(self, server: ServerAddress, how: str) -> None:
        seconds = time.monotonic() - self._began[server]
        text = f"parameter {server.name} at {server.address} {how} within {seconds:.2g} s"
        self._servers.events.add(EventKind.SERVER_RETIRED, text)

    def _save(self, leaving: Collection[ServerAddress]) -> None:
        def end() -> None:
            run_on_loop(self._loop, partial(self._end, leaving), _END_TIMEOUT)

        try:
            path = self._last_save(end)
        except asyncio.CancelledError:
            return  # the client was closed meanwhile
        except Exception as error:  # a boundary, as of all automatic saves
            self._servers.events.add(
                EventKind.CHECKPOINT_FAILED,
                "no other server can take the shards of those that were asked to end, and they "
                f"could not be saved: {error}",
            )
        else:
            text = f"saved {str(path)!r}, as no other server can take the shards"
            self._servers.events.add(EventKind.CHECKPOINT_SAVED, text)

    async def _end(self, leaving: Collection[ServerAddress]) -> None:
        for server in leaving:
            if server in self._began:  # it has not died meanwhile
                self._report_retired(server, "has ended after all was saved,")
        await asyncio.gather(*map(self._servers.dismiss, leaving))


def holds(layout: Layout, server: ServerAddress, others: int) -> bool:
    """Return whether a server holds what others should have first. Pure.

    Parameters
    ----------
    layout : Layout
        Where shards are.
    server : ServerAddress
        The server.
    others : int
        How many others may hold shards: a copy is not waited for if there is no room for it.
    """
    return any(
        server == placement.primary or (server in placement.servers and others > layout.replicas)
        for placement in layout.placements
    )


logger = logging.getLogger("psnb")

_BEAT = 0.2
"""Seconds between two beats of a server, at most."""

_HASTY_BEAT = 0.02
"""The same while shards move or copies are filled: the next step waits for servers' answers."""

_PUBLISH_SOON = 1.0
"""The same, after publishing failed."""

_LOOK_FOR_SERVERS = 1.0


class Reconciler:
    """Makes sure that each shard is on a live server, and has its replicas.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    servers : Servers
        The strategy's.
    departures : ServerDraining
        Sees servers off that leave.
    on_end : callable
        Called if the servers cannot be looked after any more, with the reason: the strategy was
        taken over, or the scheduler has ended.
    way : callable
        Returns what was lost with some shards, and the way on, in words.
    """

    def __init__(
        self,
        client: Client,
        servers: Servers,
        departures: ServerDraining,
        on_end: Callable[[CoordinatorClosedError], None] = lambda error: None,
        way: Callable[[Collection[int]], str] = lambda lost: UNKNOWN,
    ) -> None:
        self._client, self._servers, self._departures = client, servers, departures
        self._on_end, self._way = on_end, way
        self._wanted = len(servers.running)
        self._homes: Mapping[int, ServerAddress] = {}
        self._drained: frozenset[ServerAddress] = frozenset()
        self._pauses = SyncPauses()
        self._watched: dict[ServerAddress, WatchedServer] = {}
        self._news, self._rounds = asyncio.Event(), asyncio.Event()
        self._loop = event_loop(client)
        self._recruiting: asyncio.Task[None] | None = None
        self._recruits = LoopErrors("Looking for parameter servers")
        self._beaten = self._published = self._looked = 0.0
        self._named: tuple[ServerAddress, ...] = ()  # the servers that were published last
        self._task = asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    @property
    def wanted(self) -> int:
        """How many servers there should be."""
        return self._wanted

    def close(self) -> None:
        """End it; returns at once, any thread. Idempotent."""
        self._task.cancel()

    async def arrange(
        self, homes: Mapping[int, ServerAddress], drained: Collection[ServerAddress]
    ) -> None:
        """Move shards to other primaries, and empty servers; returns when that is done.

        If it is cancelled, the layout stays valid, as far as it came.

        Raises
        ------
        ServerLostError
            If a server that shards were to move to does not answer any more.
        """
        # Not the number that is left in the end: a server that dies meanwhile must be replaced.
        wanted = max(self._wanted, len(self._servers.running)) - len(drained)
        self._homes, self._drained = homes, frozenset(drained)
        self._news.set()
        try:
            while not self._arranged():
                await self.next_round()
        finally:
            self._homes, self._drained = {}, frozenset()
        for server in drained:
            self._servers.give_up(server)
        self._wanted = wanted
        # Until the scheduler knows: who ends a process now must get an empty one.
        while not self._task.done() and set(drained) & set(self._named):
            await self.next_round()

    def _arranged(self) -> bool:
        placements = self._servers.layout.placements
        for index, home in self._homes.items():
            watched = self._watched.get(home)
            if home not in self._servers.running or (
                watched is not None and watched.is_unresponsive
            ):
                why = "it was given up" if watched is None else watched.why()
                raise ServerLostError(
                    f"shard {index} cannot move to {home.address}: {why}. The shards are where "
                    "they were or where they should be; call rebalance again"
                )
        left = [
            server
            for server in self._servers.running  # those that have just joined are not watched yet
            if not self.is_unresponsive(server) and server not in self._drained
        ]
        if self._drained and len(left) <= self._servers.layout.replicas:
            raise ServerLostError(
                "too few parameter servers answer to empty others: start some, with dask worker "
                'ADDRESS --resources "ps=1", and call rebalance again'
            )
        moved = all(
            placements[index].primary in (home, None) and not placements[index].successor
            for index, home in self._homes.items()
        )
        return moved and all(self._is_empty(server) for server in self._drained)

    def _is_empty(self, server: ServerAddress) -> bool:
        """Return whether a server has nothing any more that is wanted of it."""
        layout, watched = self._servers.layout, self._watched.get(server)
        if server in layout.servers:
            return False
        if watched is None or watched.is_unresponsive:
            return True
        # Only what it has sent since it knows of that: before, a save might have begun.
        return watched.observed.heard >= layout.version and not watched.observed.writes

    def _answers(self, server: ServerAddress) -> bool:
        watched = self._watched.get(server)
        return watched is not None and not watched.is_unresponsive

    def is_unresponsive(self, server: ServerAddress) -> bool:
        """Return whether a server does not respond, as far as is known."""
        watched = self._watched.get(server)
        return watched is not None and watched.is_unresponsive

    async def settled(self) -> bool:
        """Wait until each shard is on a server that answers, while copies may take over.

        On the client's event loop. Who finds a server lost, or unresponsive, asks this before that
        is an error: then the layout may name others, and it can be tried again.

        Returns
        -------
        bool
            Whether that is so, as far as is known.
        """
        end = self._loop.time() + FAILOVER_TIMEOUT
        while self._loop.time() < end and not self._task.done():
            await self.next_round()  # at least one: what is lost may be noticed only then
            served = self._servers.layout.served(self._answers)
            if served is not None:
                return served
        return False

    async def next_round(self) -> None:
        """Return when one more round was made; on the client's event loop."""
        self._rounds.clear()
        await self._rounds.wait()

    async def _run(self) -> None:
        rounds = asyncio.create_task(self._make_rounds(), name="psnb rounds")
        # Beside the rounds, which wait for the scheduler.
        life = asyncio.create_task(scheduler_ends(self._client), name="psnb scheduler")
        try:
            await asyncio.wait([rounds, life], return_when=asyncio.FIRST_COMPLETED)
            for task in (rounds, life):
                if task.done():
                    task.result()
        except CoordinatorClosedError as error:
            rounds.cancel()
            await asyncio.wait([rounds])  # it reaches no server any more
            self._on_end(error)
        finally:
            rounds.cancel()
            life.cancel()

    async def _make_rounds(self) -> None:
        errors = LoopErrors("Looking after the parameter servers", CoordinatorClosedError)
        try:
            while not has_ended(self._client):
                with errors:
                    await self._round()
                self._rounds.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_HASTY_BEAT if self._is_moving() else _BEAT):
                        await self._news.wait()
                self._news.clear()
        finally:
            self._rounds.set()
            for watched in self._watched.values():
                watched.close()
            if self._recruiting is not None:
                self._recruiting.cancel()

    def _is_moving(self) -> bool:
        placements = self._servers.layout.placements
        return bool(self._homes or self._drained) or any(
            each.syncing is not None or each.successor is not None for each in placements
        )

    async def _round(self) -> None:
        now = self._loop.time()
        passed, self._beaten = min(_BEAT, now - self._beaten), now
        self._follow(passed)
        async with self._servers.changing:
            before = self._servers.layout
            observed = {server: watched.observed for server, watched in self._watched.items()}
            leaving = {server for server, each in observed.items() if each.leaves}
            usable = [each for each in self._servers.running if each not in self._drained | leaving]
            desired = DesiredLayout(usable, self._homes, self._pauses.unfit(now))
            after = next_layout(before, observed, desired)
            self._pauses.note(before, after, now)
            running = self._servers.running
            late = now - self._published > PUBLISH_AGAIN
            if after is not before or running != self._named or late:
                self._named = running
                try:
                    await self._servers.publish(after)
                    self._published = now
                except ServerLostError as error:
                    # It is known here: servers follow it, and workers get it when the scheduler
                    # is there again.
                    logger.warning("where the parameters are cannot be published: %s", error)
                    self._published = now - PUBLISH_AGAIN + _PUBLISH_SOON
        for kind, text in changes(before, after, self._way):
            self._servers.events.add(kind, text)
        able = [each for each in usable if not self.is_unresponsive(each)]
        writing = {server for server, each in observed.items() if each.writes}
        self._departures.follow(after, leaving, able, writing)
        for watched in self._watched.values():
            watched.beat(after, self._news)
        if after is not before:
            self._news.set()  # the next step may be possible at once
        self._recruit(now, len(leaving))

    def _follow(self, passed: float) -> None:
        running = self._servers.running
        for server in running:
            if server not in self._watched:
                self._watched[server] = WatchedServer(server, self._servers.control)
        for server in self._watched.keys() - set(running):
            self._watched.pop(server).close()
        for server, watched in list(self._watched.items()):
            watched.pass_time(passed)
            health = watched.observed.health
            if health is watched.reported or (
                health is Health.UNRESPONSIVE and not watched.is_unresponsive
            ):
                continue
            watched.reported = health
            if health is Health.ALIVE:
                text = f"parameter {server.name} at {server.address} answers again"
                self._servers.events.add(EventKind.SERVER_BACK, text)
            else:
                lost = health is Health.GONE
                kind = EventKind.SERVER_LOST if lost else EventKind.SERVER_UNRESPONSIVE
                self._servers.events.add(kind, watched.why())
            if health is Health.GONE:
                self._servers.lose(server)

    def _recruit(self, now: float, leaving: int) -> None:
        missing = self._wanted - len(self._servers.running) + leaving
        busy = self._recruiting is not None and not self._recruiting.done()
        late = now - self._looked >= _LOOK_FOR_SERVERS
        if missing > 0 and late and not busy and (self._servers.layout.replicas or leaving):
            self._looked = now
            self._recruiting = asyncio.create_task(self._start(missing), name="psnb recruiting")

    async def _start(self, missing: int) -> None:
        with self._recruits:
            try:
                identity = present(await scheduler_identity(self._client))
                used = {server.address for server in self._servers.running}
                fresh = [each for each in roles(identity).servers if each not in used][:missing]
                await self._servers.start(fresh)
                self._departures.note_recruited(len(fresh))
            except (ClusterError, OSError) as error:
                logger.warning("a parameter server cannot be used: %s", error)


def changes(
    before: Layout, after: Layout, way: Callable[[Collection[int]], str]
) -> list[tuple[EventKind, str]]:
    """Return the events to report for a new layout, with the way on from lost shards. Pure."""
    taken: dict[str, list[int]] = {}
    outdated: dict[str, list[int]] = {}
    lost = []
    for index, (old, new) in enumerate(zip(before.placements, after.placements, strict=True)):
        if new.primary == old.primary:
            continue
        if new.primary is None:
            lost.append(index)
        elif new.primary != old.successor:
            taken.setdefault(new.primary.address, []).append(index)
            if new.primary in old.leaving:
                outdated.setdefault(new.primary.address, []).append(index)
    found = [
        (EventKind.SHARDS_TAKEN_OVER, f"replicas of shards {shards} at {address} have taken over")
        for address, shards in taken.items()
    ]
    found += [
        (
            EventKind.UPDATES_LOST,
            f"the replicas of shards {shards} at {address}, which have taken over, were just being "
            "let go, and may lack the latest updates",
        )
        for address, shards in outdated.items()
    ]
    if lost:
        text = f"shards {lost} are lost with all of their replicas"
        found.append((EventKind.SHARDS_LOST, f"{text}: {way(lost)}"))
    return found


# Measuring: how large what servers hold is. On the client's event loop.

_ATTEMPTS = 5

Sizes = dict[int, dict[str, int]]
"""Bytes by the numbers of shards and the names of their tables."""


async def measured(servers: Servers, reconciler: Reconciler) -> dict[ServerAddress, Sizes]:
    """Return the size of all that servers hold, copies included.

    If one is given up meanwhile, or replicas take over from it, those are asked that there are
    then.

    Raises
    ------
    ServerLostError
        If one is gone, or does not respond, and no other has its shards.
    """
    for left in reversed(range(_ATTEMPTS)):
        asked = servers.layout.servers
        try:
            found = await asyncio.gather(*map(servers.control.measure, asked))
        except ServerLostError:
            if not left or not await reconciler.settled():
                raise
        else:
            break
    return dict(zip(asked, found, strict=True))


# Rebalancing: spreads shards over the servers that there are, or empties some, while in use.
#
# The new places are computed here; the `Reconciler` moves the shards. A shard moves in steps: the
# new server gets a copy, which is filled while the old server works; then the old one stops, the
# copy has everything and takes over. Requests at that moment are sent again.


async def rebalance(
    client: Client, servers: Servers, reconciler: Reconciler, drain: Collection[str]
) -> int:
    """Spread shards over all servers that there are, except those to be drained.

    If it is cancelled, the layout stays valid; another call goes on from there.

    Returns
    -------
    int
        How many shards were moved.
    """
    cluster = await scheduler_identity(client)
    found, listed = roles(present(cluster)), roles(cluster)
    known = {**listed.servers, **listed.workers}
    names = {name: address for address, name in known.items()}
    drained = {names.get(each, each) for each in drain}
    running = {server.address: server for server in servers.running}
    if unknown := drained - running.keys():
        raise ConfigurationError(
            f"rebalance(drain=...): {sorted(known.get(each, each) for each in unknown)} are "
            "not servers of this strategy; it has "
            f"{sorted(known.get(address, address) for address in running)}"
        )
    fresh = [each for each in found.servers if each not in running and each not in drained]
    if len(running) + len(fresh) - len(drained) <= servers.layout.replicas:
        raise ConfigurationError(
            "rebalance(drain=...) would leave too few servers: start others first, with "
            'dask worker ADDRESS --resources "ps=1"'
        )
    await servers.start(fresh)
    sizes = await measured(servers, reconciler)
    layout = servers.layout
    usable = [
        server
        for server in servers.running
        if server.address not in drained
        and (server in sizes or not reconciler.is_unresponsive(server))
    ]
    weights = [0.0] * len(layout.placements)
    for shards in sizes.values():
        for index, tables in shards.items():
            weights[index] = max(weights[index], float(sum(tables.values())))
    wanted = dict(moves(layout, usable, weights)) if usable else {}
    await reconciler.arrange(
        wanted, [server for server in servers.running if server.address in drained]
    )
    if wanted:
        text = f"shards moved: {', '.join(f'{i} to {to.address}' for i, to in wanted.items())}"
        servers.events.add(EventKind.SHARDS_MOVED, text)
    return len(wanted)
