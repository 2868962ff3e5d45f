"""Layout: on which servers the shards of a strategy are. Pure.

A strategy's parameters are divided into *shards*, numbered from 0, as many for as long as it lives.
A shard is what is placed, copied, moved and recovered as a whole; handles name shards, never
servers. Which server has which shard is the layout; the notebook changes it, each time under a
higher version, and all others follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class ServerAddress(NamedTuple):
    """Where a parameter server lives.

    Attributes
    ----------
    address : str
        Address of its Dask worker.
    key : str
        Key of its actor there: tells a server from a later one at the same address.
    """

    address: str
    key: str


class ShardId(NamedTuple):
    """A shard, wherever it is.

    Attributes
    ----------
    strategy : str
        Unique among the strategies of a cluster.
    number : int
        From 0, as they are counted in the strategy.
    """

    strategy: str
    number: int


@dataclass(frozen=True, slots=True)
class Place:
    """The servers that hold a shard.

    Attributes
    ----------
    primary : ServerAddress or None
        The one to be asked; None if the shard was lost with it.
    replica : ServerAddress or None
        The one that holds a copy, complete and up to date.
    """

    primary: ServerAddress | None
    replica: ServerAddress | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where all shards of a strategy are.

    Attributes
    ----------
    strategy : str
        Whose.
    version : int
        Higher than that of every earlier one.
    replicas : int
        How many copies of each shard there should be, 0 or 1.
    places : tuple of Place
        By the shards' numbers.
    """

    strategy: str
    version: int
    replicas: int
    places: tuple[Place, ...]

    @property
    def servers(self) -> tuple[ServerAddress, ...]:
        """All servers that hold a shard or a copy of one, each once."""
        found = [server for place in self.places for server in (place.primary, place.replica)]
        return tuple(dict.fromkeys(server for server in found if server is not None))

    def with_places(self, places: Sequence[Place]) -> Layout:
        """Return the next layout."""
        return replace(self, version=self.version + 1, places=tuple(places))

    def packed(self) -> list[Any]:
        """Return it as lists, texts and numbers."""
        places = [
            [server and list(server) for server in (place.primary, place.replica)]
            for place in self.places
        ]
        return [self.strategy, self.version, self.replicas, places]


def unpacked(packed: Sequence[Any]) -> Layout:
    """Return the layout that `Layout.packed` was called on."""
    strategy, version, replicas, places = packed
    return Layout(
        strategy,
        version,
        replicas,
        tuple(Place(*(server and ServerAddress(*server) for server in each)) for each in places),
    )
