"""Reconciler: watches the servers of a strategy, and repairs its layout.

Once a second it tells each server which shards to hold, and the server answers which it holds; the
answer is also the heartbeat (`ServerControl.heartbeat`). While something is to be done or waited
for, it does so several times a second; a connection that breaks is noticed at once. From what is
observed, a pure function (`psnb._src.placement.next_layout.next_layout`) computes the next layout.
It is published, and the servers get it with the next heartbeats. So no single message needs to
arrive: whatever went wrong is seen again in the next round.

Threads: the Dask client's event loop. One task makes the rounds; it waits for no server. One task
for each server asks it; one more starts servers in place of lost ones, and one notices the end of
the scheduler. An unexpected exception is logged, and the next round is made all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from distributed import Client

from psnb._src.client.comm_client import FAILOVER_TIMEOUT
from psnb._src.cluster.links import present
from psnb._src.cluster.roles import roles
from psnb._src.dask_compat.reach import event_loop, has_ended, scheduler_identity
from psnb._src.monitor.events import EventKind
from psnb._src.placement.layout import Layout, ServerAddress
from psnb._src.placement.next_layout import (
    Health,
    ObservedServer,
    SyncPauses,
    next_layout,
)
from psnb._src.placement.registry import PUBLISH, PUBLISH_AGAIN
from psnb._src.protocol.lost_shards import UNKNOWN
from psnb._src.strategy.control import ServerControl, gone, unresponsive
from psnb._src.strategy.draining import LastSave, ServerDraining, no_last_save
from psnb._src.strategy.nearly_full import NearlyFull
from psnb._src.strategy.scheduler_life import scheduler_ends
from psnb._src.strategy.servers import Servers
from psnb._src.transport.questions import INTERVAL, questions_of, until_beat
from psnb._src.utils.loops import LoopErrors
from psnb._src.utils.process_memory.limits import MemoryUse
from psnb._src.utils.threads import start_task
from psnb.errors import ClusterError, CoordinatorClosedError, ServerLostError

logger = logging.getLogger("psnb")

_HEARTBEAT_INTERVAL = 1.0
"""Seconds between two heartbeats of a server, at most, while all is well."""

_HEARTBEATS = 10
"""How many there are, at least, in each `heartbeat_timeout` that is not very short."""

_BUSY_INTERVAL = 0.2
"""Seconds between two heartbeats, at most, while something is amiss or someone waits."""

_BUSY_SECONDS = 1.0
"""Seconds for which someone counts as waiting who has waited for a round."""

_INTERVAL_WHILE_MOVING = 0.02
"""The same while shards move or copies are filled: the next step waits for servers' answers."""

_RECRUIT_INTERVAL = 1.0


class Reconciler:
    """Makes sure that each shard is on a live server, and has its replicas.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    servers : Servers
        The strategy's.
    last_save : callable
        Saves all when no other server can take the shards of those that leave.
    on_end : callable
        Called with the reason if the reconciler has to stop: the strategy was taken over, or the
        scheduler has ended.
    way : callable
        Returns a text: which parameters were lost with some shards, and what can be done.

    Attributes
    ----------
    wanted : int
        How many servers there should be.
    close : callable
        Ends it; returns immediately, any thread. Idempotent.
    """

    def __init__(
        self,
        client: Client,
        servers: Servers,
        last_save: LastSave = no_last_save,
        on_end: Callable[[CoordinatorClosedError], None] = lambda error: None,
        way: Callable[[Collection[int]], str] = lambda lost: UNKNOWN,
    ) -> None:
        self._client, self._servers = client, servers
        self._on_end, self._way = on_end, way
        self.wanted = len(servers.running)
        self._homes: Mapping[int, ServerAddress] = {}
        self._drained: frozenset[ServerAddress] = frozenset()
        self._pauses = SyncPauses()
        self._watched: dict[ServerAddress, WatchedServer] = {}
        self._news, self._rounds = asyncio.Event(), asyncio.Event()
        beat = min(_HEARTBEAT_INTERVAL, servers.control.heartbeat_timeout / _HEARTBEATS)
        self._beat = max(_BUSY_INTERVAL, beat)
        self._busy_until = 0.0  # someone waits for rounds
        self._loop = event_loop(client)
        self._draining = ServerDraining(self._loop, servers, last_save)
        self._recruiting: asyncio.Task[None] | None = None
        self._recruits = LoopErrors("Looking for parameter servers")
        self._last_round = self._published = self._looked = 0.0
        self._named: tuple[ServerAddress, ...] | None = ()  # the servers that were published last
        self._questions = questions_of(client)
        self._renewing: set[asyncio.Task[None]] = set()
        self._task = asyncio.run_coroutine_threadsafe(self._run(), self._loop)
        self.close = self._task.cancel

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
        wanted = max(self.wanted, len(self._servers.running)) - len(drained)
        self._homes, self._drained = homes, frozenset(drained)
        self._news.set()
        try:
            while not self._arranged():
                await self.next_round()
        finally:
            self._homes, self._drained = {}, frozenset()
        for server in drained:
            self._servers.give_up(server)
        self.wanted = wanted
        # Until the scheduler knows: if it retires a process now, this must be an empty one.
        while not self._task.done() and set(drained) & set(self._named or drained):
            await self.next_round()

    def _arranged(self) -> bool:
        placements = self._servers.layout.placements
        for index, home in self._homes.items():
            if home not in self._servers.running or self.is_unresponsive(home):
                watched = self._watched.get(home)
                why = "it was given up" if watched is None else watched.why()
                raise ServerLostError(
                    f"shard {index} cannot move to {home.address}: {why}. The shards are where "
                    "they were or where they should be; call rebalance again"
                )
        left = [
            server
            for server in self._servers.running  # servers that have just joined are not watched yet
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
        # Only answers since it knows of that: a save might have begun before.
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

        On the client's event loop. A request that finds a server lost, or unresponsive, asks this
        before it fails: afterwards the layout may name other servers, and it can be sent again.

        Returns
        -------
        bool
            Whether that is so, as far as is known.
        """
        end = self._loop.time() + FAILOVER_TIMEOUT
        while self._loop.time() < end and not self._task.done():
            await self.next_round()  # at least one: a loss may be noticed only then
            served = self._servers.layout.served(self._answers)
            if served is not None:
                return served
        return False

    async def next_round(self) -> None:
        """Return when one more round was made; on the client's event loop."""
        now = self._loop.time()
        if now >= self._busy_until:  # it may pause for longer
            self._news.set()
        self._busy_until = now + _BUSY_SECONDS
        self._rounds.clear()
        await self._rounds.wait()

    async def _run(self) -> None:
        rounds = asyncio.create_task(self._make_rounds(), name="psnb rounds")
        # Apart from the rounds, which wait for the scheduler.
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
                    async with asyncio.timeout(self._pause()):
                        await self._news.wait()
                self._news.clear()
        finally:
            self._rounds.set()
            for watched in self._watched.values():
                watched.close()
            for task in (*self._renewing, *filter(None, [self._recruiting])):
                task.cancel()

    def _pause(self) -> float:
        """Return the seconds until the next round, if nothing happens before."""
        now, layout = self._loop.time(), self._servers.layout
        if (
            self._homes
            or self._drained
            or any(
                each.syncing is not None or each.successor is not None for each in layout.placements
            )
        ):
            return _INTERVAL_WHILE_MOVING
        well = (
            now >= self._busy_until
            and self._watched.keys() == set(self._servers.running)
            and len(self._watched) >= self.wanted
            and all(each.is_well(layout.version) for each in self._watched.values())
        )
        return until_beat(now, self._beat) if well else _BUSY_INTERVAL

    async def _round(self) -> None:
        now = self._loop.time()
        passed, self._last_round = min(self._beat, now - self._last_round), now
        self._follow(passed)
        async with self._servers.changing:
            before = self._servers.layout
            observed = {server: watched.observed for server, watched in self._watched.items()}
            leaving = {server for server, each in observed.items() if each.leaves}
            usable = [each for each in self._servers.running if each not in self._drained | leaving]
            unfit = self._pauses.unfit(now)
            after = next_layout(before, observed, usable, self._homes, unfit)
            self._pauses.note(before, after, now)
            running = self._servers.running
            if after is not before or running != self._named:
                self._named = running
                try:
                    await self._servers.publish(after)
                    self._published = now
                except ServerLostError as error:
                    # It is known here: servers follow it, and workers get it when the scheduler
                    # is there again.
                    logger.warning("where the parameters are cannot be published: %s", error)
                    self._published = -math.inf
        if now - self._published > PUBLISH_AGAIN - INTERVAL and not self._renewing:
            start_task(self._renew(), self._renewing, "psnb renewal")
        for kind, text in changes(before, after, self._way):
            self._servers.events.add(kind, text)
        able = [each for each in usable if not self.is_unresponsive(each)]
        writing = {server for server, each in observed.items() if each.writes}
        self._draining.follow(after, leaving, able, writing)
        for watched in self._watched.values():
            watched.send_heartbeat(after)
        if after is not before:
            self._news.set()  # the next step may be possible immediately
        self._recruit(now, len(leaving))

    async def _renew(self) -> None:
        """Publish the layout again, as the owner's heartbeat, with other questions."""
        servers = self._servers
        try:
            refusal = await self._questions.ask(
                PUBLISH, lambda: servers.ownership.publication(servers.layout, servers.running)
            )
        except (OSError, RuntimeError) as error:
            logger.warning("the owner's heartbeat does not reach the Dask scheduler: %s", error)
        else:
            if refusal or self._published == -math.inf:
                # The next round publishes it by itself: as that has failed, or to know what a
                # refusal means.
                self._named = None
                self._news.set()
            self._published = self._loop.time()

    def _follow(self, passed: float) -> None:
        running = self._servers.running
        for server in running:
            if server not in self._watched:
                self._watched[server] = WatchedServer(server, self._servers.control, self._news)
        for server in self._watched.keys() - set(running):
            self._watched.pop(server).close()
        for server, watched in list(self._watched.items()):
            watched.pass_time(passed)
            if text := watched.nearly_full.news(watched.memory):
                self._servers.events.add(EventKind.SERVER_NEARLY_FULL, text)
            health = watched.observed.health
            if health is watched.reported or (
                health is Health.UNRESPONSIVE and not watched.is_unresponsive
            ):
                continue
            watched.reported = health
            if health is Health.ALIVE:
                text = f"parameter {server.name} at {server.address} answers again"
                self._servers.events.add(EventKind.SERVER_BACK, text)
            elif health is Health.GONE:
                self._servers.events.add(EventKind.SERVER_LOST, watched.why())
                self._servers.give_up(server, ended=True)
            else:
                self._servers.events.add(EventKind.SERVER_UNRESPONSIVE, watched.why())

    def _recruit(self, now: float, leaving: int) -> None:
        missing = self.wanted - len(self._servers.running) + leaving
        busy = self._recruiting is not None and not self._recruiting.done()
        late = now - self._looked >= _RECRUIT_INTERVAL
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
                self._draining.alone = not fresh
            except (ClusterError, OSError) as error:
                logger.warning("a parameter server cannot be used: %s", error)


def changes(
    before: Layout, after: Layout, way: Callable[[Collection[int]], str]
) -> list[tuple[EventKind, str]]:
    """Return the events for a new layout, with what can be done about lost shards. Pure."""
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


class WatchedServer:
    """What the reconciler knows of one server.

    Attributes
    ----------
    observed : ObservedServer
        What was observed of it.
    reported : Health
        The health that was reported last.
    memory : MemoryUse or None
        What it has of its memory, as of the last heartbeat.
    nearly_full : NearlyFull
        Whether that was reported.
    """

    def __init__(self, server: ServerAddress, control: ServerControl, news: asyncio.Event) -> None:
        self.server, self._control, self._news = server, control, news
        self._connection = control.connection(server)
        self._connection.on_broken = news.set  # the next beat comes now and shows more
        self._heard, self._silence = 0, 0.0
        self._asking: asyncio.Task[None] | None = None
        self._errors = LoopErrors(f"Asking {server.name} how it is")
        self._gone: str | None = None
        # It has sent nothing yet: that is no reason to let its replicas take over.
        self.observed = ObservedServer(Health.ALIVE)
        self.reported = Health.ALIVE
        self.memory: MemoryUse | None = None
        self.nearly_full = NearlyFull(server)

    def send_heartbeat(self, layout: Layout) -> None:
        """Ask the server, unless it has not answered yet."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(layout), name="psnb heartbeat")

    def is_well(self, version: int) -> bool:
        """Return whether it has followed a layout, as far as is known, and nothing is pending."""
        seen = self.observed
        idle = seen.health is Health.ALIVE and not (seen.leaves or seen.writes or self._silence)
        return idle and self._connection.connected and seen.heard >= version

    def pass_time(self, seconds: float) -> None:
        """Count time in which the server could have answered."""
        self._silence = 0.0 if self._connection.heard > self._heard else self._silence + seconds
        self._heard = self._connection.heard
        if self.observed.health is Health.ALIVE and self.is_unresponsive:
            self.observed = replace(self.observed, health=Health.UNRESPONSIVE)

    @property
    def is_unresponsive(self) -> bool:
        """Whether its last heartbeat is too long ago."""
        return self._silence >= self._control.heartbeat_timeout

    def why(self) -> str:
        """Return what is wrong with it, as a text."""
        return self._gone or unresponsive(self.server, self._silence)

    def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, layout: Layout) -> None:
        connected, before = self._connection.connected, self.observed
        with self._errors:
            try:
                status = await self._control.heartbeat(self.server, layout)
            except ConnectionRefusedError as error:
                self._gone = gone(self.server, error)
                self.observed = ObservedServer(Health.GONE)
            except OSError:
                if connected:  # else it was not reached, and is unresponsive if that lasts
                    self._news.set()
            else:
                self.memory = status.memory
                self.observed = ObservedServer(
                    Health.ALIVE, layout.version, status.shards, status.leaves, status.writes
                )
            if self.observed != before:
                self._news.set()
