"""What notebook, workers and servers send each other about commits. Pure.

See `psnb._src.server.commit_log` for what a shard does with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from psnb._src.placement import ShardId
from psnb._src.server.table_operations import OnTable
from psnb._src.transport import part_unwired


class Commit(NamedTuple):
    """The writes of a closure, or other writes that are applied wholly or not at all.

    Attributes
    ----------
    writer : str
        A coordinator, or a process that writes outside of closures; unique in a cluster.
    number : int
        The number of the commit among the writer's; the same for all attempts of a closure.
    attempt : int
        Which attempt, from 1.
    settled_below : int
        All commits of the writer below this number have ended, so servers may forget them.
    shards : tuple of ShardId
        All shards that take part.
    closures : tuple of tuple
        The closures whose effect it is: number and pickled result of each. The result is None if
        the notebook has it already. It is all that remains of a closure whose worker is lost.
    coordinator : str
        The coordinator of these closures. It is the writer, except where a worker is, which
        exchanges what several closures have learned (mode `Geo`).
    ended_below : int
        All closures of the coordinator below this number have ended.
    pushed : bool
        Whether there are gradients among the writes.
    """

    writer: str
    number: int
    attempt: int = 1
    settled_below: int = 0
    shards: tuple[ShardId, ...] = ()
    closures: tuple[tuple[int, bytes | None], ...] = ()
    coordinator: str = ""
    ended_below: int = 0
    pushed: bool = False

    def wire(self) -> tuple[Any, ...]:
        """Return a plain tuple, of which `unwired` makes it again; see `Message`."""
        return *self[:4], [tuple(shard) for shard in self.shards], *self[5:]

    @classmethod
    def unwired(cls, wire: tuple[Any, ...]) -> Commit:
        """Make one of what `wire` has returned."""
        before, shards, after = wire[:4], wire[4], wire[5:]
        return cls._make((*before, tuple([ShardId(*shard) for shard in shards]), *after))


class Part(NamedTuple):
    """The part of a commit that goes to one shard.

    Attributes
    ----------
    writes : sequence of OnTable
        `TableWrite`s, in order.
    seen : int or None
        If the staleness of the update counts: the version of the shard at the first read, or -1.
    round_number : int or None
        The round that the closure runs in; its pushes wait for the end of that round.
    """

    writes: Sequence[OnTable]
    seen: int | None = None
    round_number: int | None = None

    def wire(self) -> tuple[Any, ...]:
        """Return a plain tuple; see `Commit.wire`."""
        return [write.wire() for write in self.writes], self.seen, self.round_number

    @classmethod
    def unwired(cls, wire: tuple[Any, ...]) -> Part:
        """Make one of what `wire` has returned."""
        return cls([part_unwired(write) for write in wire[0]], *wire[1:])


class Fact(NamedTuple):
    """What a shard reports of a commit that it has prepared or applied.

    Attributes
    ----------
    commit : Commit
        The commit.
    applied : bool
        Whether it is applied.
    """

    commit: Commit
    applied: bool
