"""Accumulated: the writes of several steps, with one sum for the gradients of each table. Pure.

`accumulating` makes it the buffer of a closure for a while. Its content at the end becomes part of
the closure's own writes, so it is committed with them or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
from msgspec.structs import replace

from psnb._src.client.server_client import ServerClient
from psnb._src.client.updates import ShardWrite, Updates, buffered, current_updates
from psnb._src.placement.layout import ShardId
from psnb._src.server.hashing import summed
from psnb._src.server.tables.operations import OnTable, PushGradient, PushRows, TableOperation
from psnb._src.server.tables.presence import add_to, compacted, union


class Accumulated(Updates):
    """Writes of which the gradients of each table are added up, and which reads do not see.

    Parameters
    ----------
    of : Updates
        The closure's own; its shards' versions are noted there.
    server_client : ServerClient
        The client to read with.
    """

    def __init__(self, of: Updates, server_client: ServerClient) -> None:
        super().__init__(
            counted=of.counted, sync_round=of.sync_round, server_client=server_client, seen=of.seen
        )
        self._gradients: dict[tuple[ShardId, str], PushGradient] = {}
        self._rows: dict[tuple[ShardId, str], list[PushRows]] = {}

    def add(self, writes: Iterable[ShardWrite]) -> None:
        """Add writes; gradients are added to their table's.

        Their norms, by which optimizers may clip, do not give the sum's norm, and are left out.
        """
        for shard, write in writes:
            key, operation = (shard, write.table), write.operation
            match operation:
                case PushGradient() if key in self._gradients:
                    self._gradients[key] = _added(self._gradients[key], operation)
                case PushGradient(gradient=gradient):
                    self._gradients[key] = replace(
                        operation, gradient=np.array(gradient), norm=None
                    )
                case PushRows():
                    self._rows.setdefault(key, []).append(operation)
                case _:
                    super().add([(shard, write)])

    def pending(self, shard: ShardId, table: str) -> list[TableOperation]:
        """Return the writes that a read must show: none of the gradients."""
        return [each for each in super().pending(shard, table) if not each.collected]

    def __bool__(self) -> bool:
        """Return whether there is anything to commit."""
        return super().__bool__() or bool(self._gradients or self._rows)

    def give(self, updates: Updates) -> None:
        """Add all writes to others, with one gradient for each table, after the other writes."""
        updates.add((shard, each) for shard, writes in self._writes.items() for each in writes)
        updates.add(
            (shard, OnTable(table, push)) for (shard, table), push in self._gradients.items()
        )
        updates.add(
            (shard, OnTable(table, _joined(pushes)))
            for (shard, table), pushes in self._rows.items()
        )
        if self.weight is not None:
            updates.weigh(self.weight)


def _added(held: PushGradient, push: PushGradient) -> PushGradient:
    """Return the sum of two gradients over the ranges of either; in the memory of the first one."""
    ranges = union(held.ranges, push.ranges)
    if ranges is held.ranges:
        add_to(held.gradient, push.gradient, None if ranges is not None else push.ranges)
        return held
    extent = push.gradient.size if ranges is None else int(ranges[-1:, 1].sum())
    whole = np.zeros(extent, held.gradient.dtype)
    for each in (held, push):
        add_to(whole, each.gradient, each.ranges)
    return replace(held, gradient=compacted(whole, ranges), ranges=ranges)


def _joined(pushes: list[PushRows]) -> PushRows:
    ids = np.concatenate([each.ids for each in pushes])
    gradients = np.concatenate([each.gradients for each in pushes])
    return PushRows(*summed(ids, gradients), distinct=True, half=pushes[0].half)


@contextmanager
def accumulating(server_client: ServerClient) -> Iterator[None]:
    """Add up the gradients that this closure pushes in the block; reads do not see them.

    Outside of a closure, pushes are made as usual.

    Parameters
    ----------
    server_client : ServerClient
        The client to read with.
    """
    own = current_updates()
    if own is None:
        yield
        return
    accumulated = Accumulated(own, server_client)
    with buffered(accumulated):
        yield
    accumulated.give(own)
