"""Layout: on which servers the shards of a strategy are. Pure.

A strategy's parameters are divided into *shards*, numbered from 0; how many there are never
changes. A shard is placed, copied, moved and recovered as a whole; handles name shards, never
servers. The layout says which server has which shard. The notebook changes it, each time with a
higher version, and all other processes follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple


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


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """The servers that hold a shard.

    Attributes
    ----------
    primary : ServerAddress or None
        The server that answers requests; None if the shard was lost with it.
    copies : tuple of ServerAddress
        Servers that have all that the primary has acknowledged: each may take its place.
    filling : ServerAddress or None
        A server whose copy is being filled.
    successor : ServerAddress or None
        The copy to which the primary, which has stopped, hands the shard over.
    leaving : tuple of ServerAddress
        Servers that were copies up to this place. The primary may not have heard of that yet. Until
        it has confirmed it, they have all that was acknowledged, or no server has.
    term : int
        Higher with each new primary: a server that follows an older one is told so.
    version : int
        Higher with every change.
    """

    primary: ServerAddress | None
    copies: tuple[ServerAddress, ...] = ()
    filling: ServerAddress | None = None
    successor: ServerAddress | None = None
    leaving: tuple[ServerAddress, ...] = ()
    term: int = 1
    version: int = 1

    @property
    def servers(self) -> tuple[ServerAddress, ...]:
        """All servers that hold the shard, the primary first."""
        found = (self.primary, *self.copies, self.filling, *self.leaving)
        return tuple(server for server in found if server is not None)

    @property
    def followers(self) -> tuple[ServerAddress, ...]:
        """The servers that the primary sends changes to."""
        return self.copies if self.filling is None else (*self.copies, self.filling)

    def next(self, **changes: Any) -> ShardPlace:
        """Return the next place, with changes; a new primary begins a new term."""
        if changes.get("primary", self.primary) != self.primary:
            changes["term"] = self.term + 1
        changed = replace(self, **changes)
        return self if changed == self else replace(changed, version=self.version + 1)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where all shards of a strategy are.

    Attributes
    ----------
    strategy : str
        The strategy's name.
    version : int
        Higher than that of every earlier one.
    replicas : int
        How many copies of each shard there should be, 0 or 1.
    patience : float
        Seconds without a heartbeat after which a server counts as unresponsive.
    places : tuple of ShardPlace
        By the shards' numbers.
    """

    strategy: str
    version: int
    replicas: int
    patience: float
    places: tuple[ShardPlace, ...]

    @property
    def servers(self) -> tuple[ServerAddress, ...]:
        """All servers that hold a shard or a copy of one, each once."""
        return tuple(dict.fromkeys(server for place in self.places for server in place.servers))

    @property
    def incomplete(self) -> bool:
        """Whether a shard was lost with all servers that had it."""
        return any(place.primary is None and place.successor is None for place in self.places)

    def served(self, answers: Callable[[ServerAddress], bool]) -> bool | None:
        """Return whether each shard is on a server that answers; None while others may take over.

        Parameters
        ----------
        answers : callable
            Returns whether a server answers, as far as is known.
        """
        left = [each for each in self.places if each.primary is None or not answers(each.primary)]
        if all(any(map(answers, place.servers)) for place in left):
            return None if left else True
        return False

    def with_places(self, places: Sequence[ShardPlace]) -> Layout:
        """Return the next layout; this one if nothing has changed."""
        if tuple(places) == self.places:
            return self
        return replace(self, version=self.version + 1, places=tuple(places))

    def renamed(self, strategy: str, names: Mapping[ServerAddress, ServerAddress]) -> Layout:
        """Return the layout under another name, on those servers only that have other names.

        Nothing is under way in it: copies that are not complete must begin again.
        """
        places = [
            place.next(
                primary=names.get(place.primary) if place.primary is not None else None,
                copies=tuple(names[each] for each in place.copies if each in names),
                filling=None,
                successor=None,
                leaving=(),
            )
            for place in self.places
        ]
        return replace(self, strategy=strategy, version=self.version + 1, places=tuple(places))

    def packed(self) -> list[Any]:
        """Return the layout as lists, texts and numbers."""
        places = [
            [
                place.primary and list(place.primary),
                [list(server) for server in place.copies],
                place.filling and list(place.filling),
                place.successor and list(place.successor),
                [list(server) for server in place.leaving],
                place.term,
                place.version,
            ]
            for place in self.places
        ]
        return [self.strategy, self.version, self.replicas, self.patience, places]


def unpacked(packed: Sequence[Any]) -> Layout:
    """Return the layout that `Layout.packed` was called on."""
    strategy, version, replicas, patience, places = packed

    def server(found: Sequence[str] | None) -> ServerAddress | None:
        return ServerAddress(*found) if found else None

    return Layout(
        strategy,
        version,
        replicas,
        patience,
        tuple(
            ShardPlace(
                server(primary),
                tuple(ServerAddress(*each) for each in copies),
                server(filling),
                server(successor),
                tuple(ServerAddress(*each) for each in leaving),
                *counts,
            )
            for primary, copies, filling, successor, leaving, *counts in places
        ),
    )


# ShardStatus: a server's role for a shard, and the states of the copies that it feeds. Pure.
#
# These are the states of a shard on one server and of a copy as its primary sees it, with their
# transitions. What they mean for the layout is decided in `psnb._src.placement.next_layout`.
#
# ::
#
#                  place: it is the primary            place: its successor takes over, or another
#                  primary
#         COPY ─────────────────────────────▶ PRIMARY ────────────────────────────────────▶ RETIRED
#          ▲                                   ▲    place: it is the primary after all       │  │
#          │                                   └─────────────────────────────────────────────┘  │
#          └────────────────────────────────────────────────────────────────────────────────────┘
#                  a primary of a newer term begins to fill or follow it
#
#         FILLING ──▶ FILLED       and from both of them to BROKEN
#
# A shard that a server must hold no more is dropped, in any role.


class Role(StrEnum):
    """A server's role for a shard."""

    PRIMARY = "primary"
    """It answers, and sends changes on."""
    COPY = "copy"
    """It does what the primary has done."""
    RETIRED = "retired"
    """It was the primary; it answers that the shard is elsewhere."""


ROLES = frozenset(
    {
        (Role.COPY, Role.PRIMARY),
        (Role.PRIMARY, Role.RETIRED),
        (Role.RETIRED, Role.PRIMARY),
        (Role.RETIRED, Role.COPY),
    }
)
"""Which role may follow which."""


class CopyState(StrEnum):
    """How far a copy is, as its primary sees it."""

    FILLING = "filling"
    """It lacks something: changes do not wait for it, and it cannot take over."""
    FILLED = "filled"
    """It has all that was acknowledged: every change waits for it."""
    BROKEN = "broken"
    """It does not follow any more; changes wait until it is known that it will not take over."""


COPY_STATES = frozenset(
    {
        (CopyState.FILLING, CopyState.FILLED),
        (CopyState.FILLING, CopyState.BROKEN),
        (CopyState.FILLED, CopyState.BROKEN),
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
        Whether it is retired, and all copies have acknowledged everything.
    copies : mapping of str to CopyState
        The states of its copies, by the keys of their servers.
    """

    role: Role
    version: int
    idle: bool = False
    copies: Mapping[str, CopyState] = field(default_factory=dict)


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
        Whether it writes a checkpoint: nobody else has the moment that is saved.
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
    for index, place in enumerate(layout.places):
        if place.primary in holds:
            holds[place.primary].append(index)
        elif place.primary is not None:
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
            places = layout.places
            return sorted(move for move in found.items() if move[1] != places[move[0]].primary)
        # The shard that brings the two loads closest together.
        index = min(fitting, key=lambda index: abs(gap - 2 * weight[index]))
        holds[heaviest].remove(index)
        holds[lightest].append(index)
        found[index] = lightest
