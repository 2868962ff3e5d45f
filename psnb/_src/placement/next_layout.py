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


@dataclass(frozen=True, slots=True)
class DesiredLayout:
    """What a layout should become.

    Attributes
    ----------
    usable : collection of ServerAddress
        Servers that may hold shards; shards on the others move away.
    homes : mapping of int to ServerAddress
        Which server should become the primary of which shard, if that matters. Any that is usable,
        if it does not, and the primary is not.
    unfit : mapping of int to collection of ServerAddress
        Servers on which a replica of a shard could not be filled lately: none is begun there.
    """

    usable: Collection[ServerAddress]
    homes: Mapping[int, ServerAddress] = field(default_factory=dict)
    unfit: Mapping[int, Collection[ServerAddress]] = field(default_factory=dict)


_GONE = ObservedServer(Health.GONE)


def next_layout(
    layout: Layout, observed: Mapping[ServerAddress, ObservedServer], desired: DesiredLayout
) -> Layout:
    """Return the next layout, or this one if there is nothing to do at this moment.

    Parameters
    ----------
    layout : Layout
        Where shards are.
    observed : mapping of ServerAddress to ObservedServer
        The servers as last observed; a server that is missing is gone.
    desired : DesiredLayout
        What it should become.
    """
    load = {
        server: sum(server in placement.servers for placement in layout.placements)
        for server in desired.usable
        if observed.get(server, _GONE).health is Health.ALIVE
    }
    placements = []
    for index, placement in enumerate(layout.placements):
        after = _NextPlacement(layout, index, placement, observed, desired).step(load)
        for server in set(after.servers).difference(placement.servers):
            load[server] = load.get(server, 0) + 1
        placements.append(after)
    return layout.with_placements(placements)


class _NextPlacement:
    """One step for one shard."""

    def __init__(
        self,
        layout: Layout,
        index: int,
        placement: ShardPlacement,
        observed: Mapping[ServerAddress, ObservedServer],
        desired: DesiredLayout,
    ) -> None:
        self._layout, self._index, self._placement = layout, index, placement
        self._observed, self._desired = observed, desired

    def step(self, load: Mapping[ServerAddress, int]) -> ShardPlacement:
        """Return the next placement; ``load`` counts the shards of servers, for new replicas."""
        primary = self._placement.primary
        if primary is None:
            return self._placement
        health = self._health(primary)
        if health is not Health.ALIVE or self._is_absent(primary):
            return self._without(primary, health)
        held = self._observed[primary].holdings.get(self._index)
        if held is None or held.version < self._placement.version:
            return self._placement  # this placement has not reached it yet
        return self._onward(primary, held, load)

    def _without(self, primary: ServerAddress, health: Health) -> ShardPlacement:
        """Let a replica take over from a primary that does not answer."""
        placement = self._placement
        # A primary that is only unresponsive may have continued without the replicas that are
        # leaving.
        leaving = placement.leaving if health is not Health.UNRESPONSIVE else ()
        for known in (placement.synced, leaving):
            candidates = sorted(
                filter(self._is_replica, known), key=lambda s: s not in self._desired.usable
            )
            if candidates:
                # Until it has confirmed that it is the primary, the other replicas are as good.
                rest = [*candidates[1:], *([primary] if health is Health.UNRESPONSIVE else [])]
                return placement.next(candidates[0], leaving=rest)
        if health is Health.UNRESPONSIVE or not all(
            map(self._is_lost, (*placement.synced, *placement.leaving))
        ):
            return placement  # a server that comes back has it
        return placement.next(None)

    def _onward(
        self, primary: ServerAddress, held: ShardStatus, load: Mapping[ServerAddress, int]
    ) -> ShardPlacement:
        placement, usable, replicas = self._placement, self._desired.usable, self._layout.replicas
        synced = [each for each in placement.synced if self._follows(each, held)]
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
        home = self._home(primary, synced, syncing, load)
        successor = home if home in synced else None
        good = [each for each in synced if each in usable]
        if successor is None and len(good) >= replicas:
            dropped += [each for each in synced if each not in good[:replicas]]
            synced = good[:replicas]
        if syncing is None is placement.syncing and successor is None and not dropped:
            # Not while a replica is leaving, which would be overwritten; nor in the step in which
            # one has just broken, since the primary would not learn of that.
            unfit = self._desired.unfit.get(self._index, ())
            others = [each for each in load if each not in (primary, *synced, *unfit)]
            if home != primary:
                syncing = home
            elif len(good) < replicas and others:
                syncing = min(others, key=lambda each: load[each])
        leaving = [each for each in dropped if self._health(each) is not Health.GONE]
        return placement.next(primary, synced, syncing, successor, leaving)

    def _home(
        self,
        primary: ServerAddress,
        synced: Sequence[ServerAddress],
        syncing: ServerAddress | None,
        load: Mapping[ServerAddress, int],
    ) -> ServerAddress:
        """Return the server that should become the primary; ``load`` has the usable ones."""
        home = self._desired.homes.get(self._index)
        if home is not None and self._is_alive(home):
            return home
        if primary in self._desired.usable or not load:
            return primary
        # A server that has the shard, or soon will, is the quickest.
        having = [each for each in (*synced, syncing) if each is not None and each in load]
        return having[0] if having else min(load, key=lambda each: load[each])

    def _health(self, server: ServerAddress) -> Health:
        return self._observed.get(server, _GONE).health

    def _is_alive(self, server: ServerAddress) -> bool:
        return self._health(server) is Health.ALIVE

    def _is_absent(self, server: ServerAddress) -> bool:
        """Return whether the layout has reached a server that does not hold the shard."""
        observed = self._observed[server]
        return observed.heard >= self._layout.version and self._index not in observed.holdings

    def _is_replica(self, server: ServerAddress) -> bool:
        return self._is_alive(server) and self._index in self._observed[server].holdings

    def _is_lost(self, server: ServerAddress) -> bool:
        return self._health(server) is Health.GONE or self._is_absent(server)

    def _follows(self, server: ServerAddress, held: ShardStatus) -> bool:
        return self._is_alive(server) and held.replicas.get(server.key) is ReplicaState.SYNCED


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
