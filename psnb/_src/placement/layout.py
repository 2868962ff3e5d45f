"""Layout: on which servers the shards of a strategy are. Pure.

A strategy's parameters are divided into *shards*, numbered from 0; how many there are never
changes. A shard is placed, copied, moved and recovered as a whole; handles name shards, never
servers. The layout says which server has which shard. The notebook changes it, each time with a
higher version, and all other processes follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    heir : ServerAddress or None
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
    heir: ServerAddress | None = None
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
        Seconds without a sign of life after which a server counts as silent.
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
        return any(place.primary is None and place.heir is None for place in self.places)

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
                heir=None,
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
                place.heir and list(place.heir),
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
                server(heir),
                tuple(ServerAddress(*each) for each in leaving),
                *counts,
            )
            for primary, copies, filling, heir, leaving, *counts in places
        ),
    )
