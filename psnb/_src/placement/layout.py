"""Layout: on which servers the shards of a strategy are. Pure.

A strategy's parameters are divided into *shards*, numbered from 0; how many there are never
changes. A shard is placed, copied, moved and recovered as a whole; handles name shards, never
servers. The layout says which server has which shard. The notebook changes it, each time with a
higher version, and all other processes follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

    def next(
        self,
        primary: ServerAddress | None,
        synced: Sequence[ServerAddress] = (),
        syncing: ServerAddress | None = None,
        successor: ServerAddress | None = None,
        leaving: Sequence[ServerAddress] = (),
    ) -> ShardPlacement:
        """Return the next placement, on these servers; a new primary begins a new term."""
        term = self.term + (primary != self.primary)
        servers = primary, tuple(synced), syncing, successor, tuple(leaving)
        changed = ShardPlacement(*servers, term, self.version)
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
    heartbeat_timeout : float
        Seconds without a heartbeat after which a server counts as unresponsive.
    placements : tuple of ShardPlacement
        By the shards' numbers.
    """

    strategy: str
    version: int
    replicas: int
    heartbeat_timeout: float
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
            each.next(
                names.get(each.primary) if each.primary is not None else None,
                [names[server] for server in each.synced if server in names],
            )
            for each in self.placements
        ]
        return replace(
            self, strategy=strategy, version=self.version + 1, placements=tuple(placements)
        )

    def packed(self) -> list[Any]:
        """Return the layout as lists, texts and numbers."""
        return msgspec.to_builtins(self)


def unpacked(packed: Sequence[Any]) -> Layout:
    """Return the layout that `Layout.packed` was called on."""
    return msgspec.convert(packed, Layout)
