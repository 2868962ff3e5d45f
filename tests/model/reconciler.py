"""Reconciler: looks after the servers of the simulated world, moves shards and recovers them."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np

from psnb._src.client.requests import Request
from psnb._src.placement.layout import Layout, ServerAddress, ShardId, ShardPlacement
from psnb._src.placement.next_layout import Health, ObservedServer, next_layout
from psnb._src.server.operations import (
    CreateDense,
    CreateTable,
    FollowPlacements,
    HostOperation,
    HostShards,
    MeasureShards,
    OnShard,
)
from psnb._src.server.optimizers import SGD
from psnb._src.strategy.recovery import held, hosted_anew, missing, nowhere, still_lost
from psnb.errors import PsnbError, ServerLostError, ServerUnresponsiveError
from tests.model.world import Process, Server, World, manage, once

TABLE = "t"
ROOM = 400
"""How many closures there can be: each has a row of its own."""

Fences = list[tuple[str, dict[str, Any]]]


def creation() -> CreateDense:
    """Return what makes the table of a shard."""
    return CreateDense(TABLE, np.zeros(ROOM), SGD(1.0))


class Reconciler(Process):
    """Keeps a layout, as `psnb._src.strategy.reconciler` and `psnb._src.strategy.core` do.

    Parameters
    ----------
    world : World
        Where it is.
    servers, shards, replicas : int
        How many.
    creations : sequence of CreateTable
        What makes the tables of a shard.
    """

    def __init__(
        self,
        world: World,
        servers: int,
        shards: int,
        replicas: int,
        creations: Sequence[CreateTable] = (creation(),),
    ) -> None:
        made = [world.server() for _ in range(servers)]
        places = [ShardPlacement(made[i % servers].address) for i in range(shards)]
        world.published = self.layout = Layout("s", 1, replicas, 1.0, tuple(places))
        super().__init__(world, "notebook")
        self._creations = creations
        self._silence: dict[str, int] = {}
        self._observed: dict[ServerAddress, ObservedServer] = {}
        self._beating: dict[str, int] = {}  # the number of the beat that is waited for
        self._beats = 0
        self._homes: dict[int, ServerAddress] = {}
        self._drained: set[ServerAddress] = set()
        self._changing = False  # the layout, and no round may
        self._recovering: Iterator[None] | None = None
        self.unmade: set[int] = set()  # shards that were hosted anew, and lack their tables
        # When a shard came back empty, or by a copy that may have been let go: what was begun
        # before may be missing there.
        self.lost_at: dict[int, int] = {}
        self.risked_at: dict[int, int] = {}
        for server in made:
            mine = {i: p for i, p in enumerate(places) if p.primary == server.address}
            manage(server, HostShards(mine, []))
        for index, place in enumerate(places):
            assert place.primary is not None
            holder = world.servers[place.primary.key]
            holder.run([OnShard(index, each) for each in creations], lambda answers: None)

    @property
    def shards(self) -> tuple[ShardId, ...]:
        return tuple(ShardId("s", index) for index in range(len(self.layout.placements)))

    def watched(self) -> list[Server]:
        """Return the servers that were not given up."""
        servers = self.world.servers.values()
        return [each for each in servers if self._health(each) is not Health.GONE]

    def _health(self, server: Server) -> Health:
        return self._observed.setdefault(server.address, ObservedServer(Health.UNRESPONSIVE)).health

    def round(self) -> None:
        """Make one of the reconciler's rounds."""
        if self._changing:
            return
        for server in self.watched():
            key = server.name
            if key in self._beating:
                self._silence[key] = self._silence.get(key, 0) + 1
                if self._silence[key] > 5 and (server.frozen or self.world.faults):
                    self._silent(server)
                if not server.alive and self.world.chance(0.5):
                    self._observed[server.address] = ObservedServer(Health.GONE)
                    del self._beating[key]
                elif self.world.chance(0.02):
                    del self._beating[key]  # the line broke; what was sent may still arrive
        self._mend()
        for server in self.watched():
            self._beat(server)

    def _silent(self, server: Server) -> None:
        observed = self._observed[server.address]
        if observed.health is Health.ALIVE:
            self._observed[server.address] = ObservedServer(
                Health.UNRESPONSIVE, observed.heard, observed.holdings
            )

    def _mend(self) -> None:
        before, world = self.layout, self.world
        usable = [s.address for s in self.watched() if s.address not in self._drained]
        after = next_layout(before, self._observed, usable, self._homes)
        for index, (old, new) in enumerate(zip(before.placements, after.placements, strict=True)):
            if new.primary == old.primary:
                continue
            if new.primary is None:
                # Lost it is only if all that had it are dead.
                holders = [world.servers[s.key] for s in old.servers if s != old.syncing]
                watched = [each for each in holders if each in self.watched()]
                assert not any(each.alive for each in watched), f"shard {index} was thrown away"
                self.lost_at[index] = world.steps
                world.counts["shards lost"] += 1
            elif new.primary == old.successor:
                world.counts["shards moved"] += 1
            else:
                world.counts["shards taken over"] += 1
                if new.primary in old.leaving:
                    self.risked_at[index] = world.steps
        self._publish(after)

    def _publish(self, layout: Layout) -> None:
        self.layout = self.world.published = self.known = layout

    def _beat(self, server: Server) -> None:
        key = server.name
        if key in self._beating:
            return
        self._beats += 1
        number, layout = self._beats, self.layout
        self._beating[key] = number
        places = {
            index: place
            for index, place in enumerate(layout.placements)
            if server.address in place.servers
        }
        versions = [place.version for place in layout.placements]

        def arrive() -> None:
            if not server.alive:
                return
            packed = pickle.dumps(manage(server, FollowPlacements(places, versions)))
            self.world.send(self, lambda: answered(pickle.loads(packed)))

        def answered(status: Any) -> None:
            if self._beating.get(key) == number:
                del self._beating[key]
                self._silence[key] = 0
                self._observed[server.address] = ObservedServer(
                    Health.ALIVE, layout.version, status.shards
                )

        self.world.send(server, arrive)

    def rearrange(self) -> None:
        """Wish shards elsewhere, or a server empty, or nothing any more."""
        alive = [a for a, observed in self._observed.items() if observed.health is Health.ALIVE]
        self.wish_nothing()
        chance = self.world.random
        if len(alive) > 1 + self.layout.replicas and chance.random() < 0.6:
            self.world.counts["rebalances"] += 1
            if chance.random() < 0.5:
                self._drained = {chance.choice(alive)}
            usable = [each for each in alive if each not in self._drained]
            leaves = chance.random() < 0.5  # as a server does that was asked to end: to any other
            for index, place in enumerate(self.layout.placements):
                moves = place.primary in self._drained and not leaves
                if moves or chance.random() < 0.3:
                    self._homes[index] = chance.choice(usable)

    def wish_nothing(self) -> None:
        self._homes, self._drained = {}, set()

    # Recovery: a step at a time, as the world goes on meanwhile.

    def recover(self) -> None:
        """Begin to recover, or go on with it."""
        if self._recovering is None:
            self._recovering = self._recover()
        if next(self._recovering, True):
            self._recovering = None

    @property
    def recovering(self) -> bool:
        return self._recovering is not None

    def drained(self) -> Iterator[None]:
        """Drain the coordinator; ends when that is done."""
        raise NotImplementedError

    def resumed(self) -> None:
        """Let the coordinator go on."""
        raise NotImplementedError

    def fences(self) -> Fences:
        """Return what new shards must know."""
        raise NotImplementedError

    def _recover(self) -> Iterator[None]:
        try:
            yield from self.drained()
            yield from self._host_lost(self.fences())
            lost = sorted(self.unmade)
            answers: list[Any] = []
            made = [Request(self.shards[i], each) for i in lost for each in self._creations]
            self.world.ask(self, made, answers.extend)
            while len(answers) < len(made):
                yield
            if not any(isinstance(each, Exception) for each in answers):
                self.unmade.clear()
                self.lost_at |= dict.fromkeys(lost, self.world.steps)
                self.world.counts["shards recovered"] += len(lost)
        except PsnbError:
            self.world.counts["recoveries failed"] += 1  # another server died: once more
        finally:
            self._changing = False
            self.resumed()

    def _host_lost(self, fences: Fences) -> Iterator[None]:
        while True:
            servers, before = self.watched(), self.layout
            answers = yield from self._order([(each, MeasureShards()) for each in servers])
            holds = {
                server.address: held(answer, range(len(before.placements)))
                for server, answer in zip(servers, answers, strict=True)
                if not isinstance(answer, Exception)
            }
            lost, pending = missing(before, holds)
            if not pending:
                break
            yield
        if not lost:
            return
        for server in servers:
            if server.address not in holds:
                self._observed[server.address] = ObservedServer(Health.GONE)
                self._beating.pop(server.name, None)
                self.world.send(server, server.kill)
        usable = [*holds] or [self.world.server().address]
        while self.world.chance(0.8):  # others are waited for
            yield
        lost = still_lost(lost, before, self.layout)
        if not lost:
            return
        self._changing = True
        self._publish(nowhere(self.layout, lost))
        layout = hosted_anew(self.layout, lost, usable)
        orders = []
        for address in usable:
            mine = {
                i: layout.placements[i] for i in lost if layout.placements[i].primary == address
            }
            server = self.world.servers[address.key]
            orders.append((server, HostShards(mine, fences)))
        for answer in (yield from self._order(orders)):
            if isinstance(answer, Exception):
                raise answer
        self._publish(layout)
        self._changing = False
        self.unmade |= set(lost)
        self.lost_at |= dict.fromkeys(lost, self.world.steps)

    def _order(
        self, orders: Sequence[tuple[Server, HostOperation]]
    ) -> Generator[None, None, list[Any]]:
        """Give orders, and wait for what comes of them."""
        world = self.world
        found: dict[int, Any] = {}

        def give(position: int, server: Server, operation: HostOperation) -> None:
            packed = pickle.dumps(operation)

            def arrive() -> None:
                if server.alive:
                    answer = manage(server, pickle.loads(packed))
                    world.send(self, lambda: found.setdefault(position, answer), broken)

            def broken() -> None:
                found.setdefault(position, ServerUnresponsiveError("the line broke"))

            world.send(server, once(arrive), broken)

        for position, order in enumerate(orders):
            give(position, *order)
        while len(found) < len(orders):
            yield
            for position, (server, _) in enumerate(orders):
                if not server.alive:
                    found.setdefault(position, ServerLostError("it is gone"))
                elif server.frozen and world.chance(0.05):
                    found.setdefault(position, ServerUnresponsiveError("it says nothing"))
        return [found[position] for position in range(len(orders))]
