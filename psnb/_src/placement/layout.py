"""Layout: on which servers the shards of a strategy are. Pure.

A strategy's parameters are divided into *shards*, numbered from 0; how many there are never
changes. A shard is placed, copied, moved and recovered as a whole; handles name shards, never
servers. The layout says which server has which shard. The notebook changes it, each time with a
higher version, and all other processes follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace


class ServerAddress(NamedTuple):
    """The address of a parameter server.

    Attributes
    ----------
    address : str
        Address of its Dask worker.
    key : str
        Its name there: no later server at the same address has the same.
    """

    address: str
    key: str

    @property
    def name(self) -> str:
        """What people read: its number among its strategy's, as on the dashboard."""
        return f"server {self.key.rpartition('-')[2]}"


class ShardId(NamedTuple):
    """The id of a shard, wherever it is.

    Attributes
    ----------
    strategy : str
        Unique among the strategies of a cluster.
    number : int
        The shard's number in the strategy, from 0.
    """

    strategy: str
    number: int


class ShardPlacement(Struct, frozen=True, array_like=True):
    """The servers that hold a shard.

    Attributes
    ----------
    primary : ServerAddress or None
        The server that answers requests; None if the shard was lost with it.
    synced : tuple of ServerAddress
        Servers that have all that the primary has acknowledged: each may take its place.
    syncing : ServerAddress or None
        A server whose replica is being filled.
    successor : ServerAddress or None
        The replica to which the primary, which has stopped, hands the shard over.
    leaving : tuple of ServerAddress
        Servers that were replicas up to this placement. The primary may not have heard of that yet.
        Until it has confirmed it, they have all that was acknowledged, or no server has.
    term : int
        Higher with each new primary: a server that follows an older one is refused.
    version : int
        Higher with every change.
    """

    primary: ServerAddress | None
    synced: tuple[ServerAddress, ...] = ()
    syncing: ServerAddress | None = None
    successor: ServerAddress | None = None
    leaving: tuple[ServerAddress, ...] = ()
    term: int = 1
    version: int = 1

    @property
    def servers(self) -> tuple[ServerAddress, ...]:
        """All servers that hold the shard, the primary first."""
        found = (self.primary, *self.synced, self.syncing, *self.leaving)
        return tuple(server for server in found if server is not None)

    @property
    def followers(self) -> tuple[ServerAddress, ...]:
        """The servers that the primary sends changes to."""
        return self.synced if self.syncing is None else (*self.synced, self.syncing)

    def next(self, **changes: Any) -> ShardPlacement:
        """Return the next placement, with changes; a new primary begins a new term."""
        if changes.get("primary", self.primary) != self.primary:
            changes["term"] = self.term + 1
        changed = replace(self, **changes)
        return self if changed == self else replace(changed, version=self.version + 1)


class Layout(Struct, frozen=True, array_like=True):
    """Where all shards of a strategy are.

    Attributes
    ----------
    strategy : str
        The strategy's name.
    version : int
        Higher than that of every earlier one.
    replicas : int
        How many replicas of each shard there should be, 0 or 1.
    patience : float
        Seconds without a heartbeat after which a server counts as unresponsive.
    placements : tuple of ShardPlacement
        By the shards' numbers.
    """

    strategy: str
    version: int
    replicas: int
    patience: float
    placements: tuple[ShardPlacement, ...]

    @property
    def servers(self) -> tuple[ServerAddress, ...]:
        """All servers that hold a shard or a replica of one, each once."""
        return tuple(dict.fromkeys(s for each in self.placements for s in each.servers))

    @property
    def incomplete(self) -> bool:
        """Whether a shard was lost with all servers that had it."""
        return any(each.primary is None is each.successor for each in self.placements)

    def served(self, answers: Callable[[ServerAddress], bool]) -> bool | None:
        """Return whether each shard is on a server that answers; None while others may take over.

        Parameters
        ----------
        answers : callable
            Returns whether a server answers, as far as is known.
        """
        left = [
            each for each in self.placements if each.primary is None or not answers(each.primary)
        ]
        if all(any(map(answers, placement.servers)) for placement in left):
            return None if left else True
        return False

    def with_placements(self, placements: Sequence[ShardPlacement]) -> Layout:
        """Return the next layout; this one if nothing has changed."""
        if tuple(placements) == self.placements:
            return self
        return replace(self, version=self.version + 1, placements=tuple(placements))

    def renamed(self, strategy: str, names: Mapping[ServerAddress, ServerAddress]) -> Layout:
        """Return the layout under another name, on those servers only that have other names.

        Nothing is under way in it: replicas that are not complete must begin again.
        """
        placements = [
            placement.next(
                primary=names.get(placement.primary) if placement.primary is not None else None,
                synced=tuple(names[each] for each in placement.synced if each in names),
                syncing=None,
                successor=None,
                leaving=(),
            )
            for placement in self.placements
        ]
        return replace(
            self, strategy=strategy, version=self.version + 1, placements=tuple(placements)
        )

    def packed(self) -> list[Any]:
        """Return the layout as lists, texts and numbers."""
        found: list[Any] = msgspec.to_builtins(self)
        return found


def unpacked(packed: Sequence[Any]) -> Layout:
    """Return the layout that `Layout.packed` was called on."""
    return msgspec.convert(packed, Layout)


# ShardStatus: a server's role for a shard, and the states of the replicas that it feeds. Pure.
#
# These are the states of a shard on one server and of a replica as its primary sees it, with their
# transitions. What they mean for the layout is decided in `psnb._src.placement.next_layout`.
#
# ::
#
#                  placement: it is the primary            placement: its successor takes over, or
# another                  primary         REPLICA ─────────────────────────────▶ PRIMARY
# ────────────────────────────────────▶ RETIRED          ▲                                   ▲
# placement: it is the primary after all │  │          │
# └─────────────────────────────────────────────┘ │
# └────────────────────────────────────────────────────────────────────────────────────┘ a primary
# of a newer term begins to fill or follow it
#
#         SYNCING ──▶ SYNCED       and from both of them to BROKEN
#
# A shard that a server must hold no more is dropped, in any role.


class Role(StrEnum):
    """A server's role for a shard."""

    PRIMARY = "primary"
    """It answers, and sends changes on."""
    REPLICA = "replica"
    """It does what the primary has done."""
    RETIRED = "retired"
    """It was the primary; it answers that the shard is elsewhere."""


ROLES = frozenset(
    {
        (Role.REPLICA, Role.PRIMARY),
        (Role.PRIMARY, Role.RETIRED),
        (Role.RETIRED, Role.PRIMARY),
        (Role.RETIRED, Role.REPLICA),
    }
)
"""Which role may follow which."""


class ReplicaState(StrEnum):
    """How far a replica is, as its primary sees it."""

    SYNCING = "syncing"
    """It lacks something: changes do not wait for it, and it cannot take over."""
    SYNCED = "synced"
    """It has all that was acknowledged: every change waits for it."""
    BROKEN = "broken"
    """It does not follow any more; changes wait until it is known that it will not take over."""


REPLICA_STATES = frozenset(
    {
        (ReplicaState.SYNCING, ReplicaState.SYNCED),
        (ReplicaState.SYNCING, ReplicaState.BROKEN),
        (ReplicaState.SYNCED, ReplicaState.BROKEN),
    }
)
"""Which state may follow which."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The status of a shard on a server.

    Attributes
    ----------
    role : Role
        The server's role.
    version : int
        Version of the place that it has heard of last.
    idle : bool
        Whether it is retired, and all replicas have acknowledged everything.
    replicas : mapping of str to ReplicaState
        The states of its replicas, by the keys of their servers.
    """

    role: Role
    version: int
    idle: bool = False
    replicas: Mapping[str, ReplicaState] = field(default_factory=dict)


# ServerStatus: what a server answers to its strategy's beats. Pure.


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The status of a server.

    Attributes
    ----------
    shards : mapping of int to ShardStatus
        What it holds, by the shards' numbers.
    leaves : bool
        Whether its process was asked to end: its shards must go elsewhere soon.
    writes : bool
        Whether it writes a checkpoint: no other server has the moment that is saved.
    """

    shards: Mapping[int, ShardStatus]
    leaves: bool = False
    writes: bool = False


# Balance: which shards should move, so that servers are loaded evenly. Pure.


def moves(
    layout: Layout, usable: Sequence[ServerAddress], weights: Sequence[float]
) -> list[tuple[int, ServerAddress]]:
    """Return which shards should get another primary, so that servers are loaded evenly.

    Shards on servers that are not usable move in any case, others only if the higher load of the
    two servers becomes lower; so a balanced layout stays as it is.

    Parameters
    ----------
    layout : Layout
        Where shards are.
    usable : sequence of ServerAddress
        Servers that may hold shards.
    weights : sequence of float
        The size of each shard, in bytes.
    """
    # An empty shard will have something one day.
    weight = [each + 1.0 for each in weights]
    holds: dict[ServerAddress, list[int]] = {server: [] for server in usable}
    found: dict[int, ServerAddress] = {}
    homeless = []
    for index, placement in enumerate(layout.placements):
        if placement.primary in holds:
            holds[placement.primary].append(index)
        elif placement.primary is not None:
            homeless.append(index)

    def load(server: ServerAddress) -> float:
        return sum(weight[index] for index in holds[server])

    for index in sorted(homeless, key=lambda index: -weight[index]):
        target = min(usable, key=load)
        holds[target].append(index)
        found[index] = target
    while True:
        heaviest, lightest = max(usable, key=load), min(usable, key=load)
        gap = load(heaviest) - load(lightest)
        fitting = [index for index in holds[heaviest] if weight[index] < gap]
        if not fitting:
            placements = layout.placements
            return sorted(move for move in found.items() if move[1] != placements[move[0]].primary)
        # The shard that brings the two loads closest together.
        index = min(fitting, key=lambda index: abs(gap - 2 * weight[index]))
        holds[heaviest].remove(index)
        holds[lightest].append(index)
        found[index] = lightest
