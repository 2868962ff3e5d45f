"""The next layout, computed from what the servers report. Pure.

It is called again and again, and takes one step each time, from any state: servers follow late,
twice or never, die, freeze and wake at any moment. Only the notebook decides; a server follows the
newest placement that has reached it (`psnb._src.server.server`). At every step:

- The layout lists a replica (`ShardPlacement.synced`) only while the primary waits for it with
  every change, so the replica has all that was acknowledged, and may take over.
- A primary may stop waiting for a replica only after the layout no longer lists that replica. Until
  the primary has confirmed that layout, the replica is *leaving*: if the primary is gone, it takes
  over. (If the primary had the layout, and continued alone, then its acknowledged writes after that
  are lost with it, as it was the last that had them.)
- A server that is *unresponsive* may come back. Its shard goes to a replica, if one answers; if
  none does, it stays where it is. A shard is lost when all servers that had it are *gone*.
- There are never fewer replicas than before while servers are drained or balanced: the shard is
  copied first, and the old primary stays as a replica until the new one answers.
- A server that *leaves*, since its process was asked to end, is drained: its shards move while it
  still answers. If it is gone before that, it is like any other server that is gone.

After van Renesse and Schneider, *Chain Replication for Supporting High Throughput and
Availability*, OSDI 2004, where a master decides in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.placement.status import ReplicaState, ShardStatus


class Health(StrEnum):
    """Whether a server answers."""

    ALIVE = "alive"
    UNRESPONSIVE = "unresponsive"
    """It does not respond, and may come back with all that it holds."""
    GONE = "gone"
    """Its process has ended, and what it held is lost."""


@dataclass(frozen=True, slots=True)
class ObservedServer:
    """What was observed of a server.

    Attributes
    ----------
    health : Health
        Whether it answers.
    heard : int
        Version of the layout that had reached it when it reported its holdings; 0 if it never did.
    holdings : mapping of int to ShardStatus
        The holdings that it reported, by the shards' numbers.
    leaves : bool
        Whether it reported that its process will end soon.
    writes : bool
        Whether it reported that it writes a checkpoint.
    """

    health: Health
    heard: int = 0
    holdings: Mapping[int, ShardStatus] = field(default_factory=dict)
    leaves: bool = False
    writes: bool = False


_GONE = ObservedServer(Health.GONE)


def next_layout(
    layout: Layout,
    observed: Mapping[ServerAddress, ObservedServer],
    usable: Collection[ServerAddress],
    homes: Mapping[int, ServerAddress] = MappingProxyType({}),
    unfit: Mapping[int, Collection[ServerAddress]] = MappingProxyType({}),
) -> Layout:
    """Return the next layout, or this one if there is nothing to do at this moment.

    Parameters
    ----------
    layout : Layout
        Where shards are.
    observed : mapping of ServerAddress to ObservedServer
        The servers as last observed; a server that is missing is gone.
    usable : collection of ServerAddress
        Servers that may hold shards; shards on the others move away.
    homes : mapping of int to ServerAddress
        Which server should become the primary of which shard, if that matters. Any that is usable,
        if it does not, and the primary is not.
    unfit : mapping of int to collection of ServerAddress
        Servers on which a replica of a shard could not be filled lately: none is begun there.
    """
    load = {
        server: sum(server in placement.servers for placement in layout.placements)
        for server in usable
        if observed.get(server, _GONE).health is Health.ALIVE
    }
    placements = []
    for index, placement in enumerate(layout.placements):
        bad = unfit.get(index, ())
        after = _NextPlacement(layout, index, observed, usable, homes.get(index), bad, load).step()
        for server in set(after.servers).difference(placement.servers):
            load[server] = load.get(server, 0) + 1
        placements.append(after)
    return layout.with_placements(placements)


@dataclass(frozen=True, slots=True)
class _NextPlacement:
    """One step for one shard; ``load`` counts the shards of servers, for new replicas."""

    layout: Layout
    index: int
    observed: Mapping[ServerAddress, ObservedServer]
    usable: Collection[ServerAddress]
    home: ServerAddress | None
    unfit: Collection[ServerAddress]
    load: Mapping[ServerAddress, int]

    def step(self) -> ShardPlacement:
        """Return the next placement."""
        placement = self.layout.placements[self.index]
        primary = placement.primary
        if primary is None:
            return placement
        health = self._health(primary)
        if health is not Health.ALIVE or self._is_absent(primary):
            return self._without(placement, primary, health)
        held = self.observed[primary].holdings.get(self.index)
        if held is None or held.version < placement.version:
            return placement  # it has not reached the primary yet
        return self._onward(placement, primary, held)

    def _without(
        self, placement: ShardPlacement, primary: ServerAddress, health: Health
    ) -> ShardPlacement:
        """Let a replica take over from a primary that does not answer."""
        # A primary that is only unresponsive may have continued without the replicas that are
        # leaving.
        leaving = placement.leaving if health is not Health.UNRESPONSIVE else ()
        for known in (placement.synced, leaving):
            candidates = [
                each
                for each in known
                if self._is_alive(each) and self.index in self.observed[each].holdings
            ]
            if candidates:
                candidates.sort(key=lambda each: each not in self.usable)
                # Until it has confirmed that it is the primary, the other replicas are as good.
                rest = [*candidates[1:], *([primary] if health is Health.UNRESPONSIVE else [])]
                return placement.next(candidates[0], leaving=rest)
        if health is Health.UNRESPONSIVE or not all(
            self._health(each) is Health.GONE or self._is_absent(each)
            for each in (*placement.synced, *placement.leaving)
        ):
            return placement  # a server that comes back has it
        return placement.next(None)

    def _onward(
        self, placement: ShardPlacement, primary: ServerAddress, held: ShardStatus
    ) -> ShardPlacement:
        usable, load, replicas = self.usable, self.load, self.layout.replicas
        synced = [
            each
            for each in placement.synced
            if self._is_alive(each) and held.replicas.get(each.key) is ReplicaState.SYNCED
        ]
        dropped = [each for each in placement.synced if each not in synced]
        syncing = placement.syncing
        if syncing is not None and not self._is_alive(syncing):
            syncing = None
        elif syncing is not None:
            state = held.replicas.get(syncing.key, ReplicaState.BROKEN)
            if state is ReplicaState.SYNCED:
                synced.append(syncing)
            if state is not ReplicaState.SYNCING:
                syncing = None
        if placement.successor in synced and held.idle:
            # All servers that have it hold the very same now, also the old primary.
            rest = [each for each in (*synced, primary) if each != placement.successor]
            rest.sort(key=lambda each: each not in usable)
            kept = max(1, replicas)
            return placement.next(placement.successor, rest[:kept], syncing, leaving=rest[kept:])
        home = self._home(primary, [*synced, syncing])
        successor = home if home in synced else None
        good = [each for each in synced if each in usable]
        if successor is None and len(good) >= replicas:
            dropped += [each for each in synced if each not in good[:replicas]]
            synced = good[:replicas]
        if syncing is None is placement.syncing and successor is None and not dropped:
            # Not while a replica is leaving, which would be overwritten; nor in the step in which
            # one has just broken, since the primary would not learn of that.
            others = [each for each in load if each not in (primary, *synced, *self.unfit)]
            if home != primary:
                syncing = home
            elif len(good) < replicas and others:
                syncing = min(others, key=lambda each: load[each])
        leaving = [each for each in dropped if self._health(each) is not Health.GONE]
        return placement.next(primary, synced, syncing, successor, leaving)

    def _home(
        self, primary: ServerAddress, replicas: Sequence[ServerAddress | None]
    ) -> ServerAddress:
        """Return the server that should become the primary."""
        if self.home is not None and self._is_alive(self.home):
            return self.home
        if primary in self.usable or not self.load:
            return primary
        # A server that has the shard, or soon will, is the quickest.
        having = [each for each in replicas if each is not None and each in self.load]
        return having[0] if having else min(self.load, key=lambda each: self.load[each])

    def _health(self, server: ServerAddress) -> Health:
        return self.observed.get(server, _GONE).health

    def _is_alive(self, server: ServerAddress) -> bool:
        return self._health(server) is Health.ALIVE

    def _is_absent(self, server: ServerAddress) -> bool:
        """Return whether the layout has reached a server that does not hold the shard."""
        observed = self.observed[server]
        return observed.heard >= self.layout.version and self.index not in observed.holdings


_FIRST, _LONGEST = 1.0, 60.0
"""Seconds to the second try, and between two tries at most; each is twice as long as the last."""


class SyncPauses:
    """Servers on which a replica of a shard could not be filled lately.

    A server that has no memory for a replica has none a moment later, and each try sends it all of
    the shard. So the tries are further and further apart.
    """

    def __init__(self) -> None:
        # The pause, and when it is over.
        self._pauses: dict[tuple[int, ServerAddress], tuple[float, float]] = {}

    def note(self, before: Layout, after: Layout, now: float) -> None:
        """Note the outcome for replicas that were being filled; ``now`` in seconds."""
        for index, (old, new) in enumerate(zip(before.placements, after.placements, strict=True)):
            server = old.syncing
            if server is None or server == new.syncing:
                continue
            last, _ = self._pauses.pop((index, server), (0.0, 0.0))
            if server not in new.servers:
                pause = min(2 * last or _FIRST, _LONGEST)
                self._pauses[index, server] = pause, now + pause

    def unfit(self, now: float) -> dict[int, set[ServerAddress]]:
        """Return by shard the servers on which none may be begun yet."""
        found: dict[int, set[ServerAddress]] = {}
        for (index, server), (_, end) in self._pauses.items():
            if now < end:
                found.setdefault(index, set()).add(server)
        return found
