"""What a worker's steps have of mode Downpour: variables pulled now and then, gradients added up.

`PulledVariables` is a `ServerClient` for closures in front of the real one. Variables that are read
as a whole come from copies, which are pulled again while steps compute with the last ones; all else
goes to the servers. `accumulating` makes an `Accumulated` the buffer of a closure for a while: the
writes of several steps, with one sum for the gradients of each table. Its content at the end
becomes part of the closure's own writes, so it is committed with them or not at all.

Threads: all closure threads of a worker share the copies. One thread at a time, named
``psnb-pull``, fetches new ones; it ends when they are there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import numpy as np
from msgspec.structs import replace

from psnb._src.client.requests import Request, on_table
from psnb._src.client.server_client import FrontClient, ServerClient
from psnb._src.client.updates import ShardWrite, Updates, buffered, current_updates
from psnb._src.client.whole_tables import TableName
from psnb._src.placement.layout import ShardId
from psnb._src.server.hashing import summed
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.bags import push_by_id
from psnb._src.server.tables.presence import add_to, compacted, union


class PulledVariables(FrontClient):
    """A `ServerClient` that keeps copies of variables; thread-safe.

    Parameters
    ----------
    every : int
        After how many batches they are pulled again.
    server_client : ServerClient, optional
        The client of the servers; by default that of the process.
    """

    def __init__(self, every: int, server_client: ServerClient | None = None) -> None:
        super().__init__(server_client)
        self._every = every
        self._lock = threading.Lock()  # guards what follows, for a moment each
        # Values, and the version of the shard when they were read.
        self._copies: dict[TableName, tuple[np.ndarray, int]] = {}
        self._batches = 0
        self._pulls = False  # a thread does
        self._error: Exception | None = None  # of the last pull, for the next reader

    def begin_batch(self) -> None:
        """Note that a batch begins; if it is time, pull again in another thread."""
        with self._lock:
            self._batches += 1
            if self._batches % self._every or self._pulls or not self._copies:
                return
            self._pulls, wanted = True, list(self._copies)
        arguments = (self._behind, wanted)  # the client of this thread's worker
        threading.Thread(target=self._pull, args=arguments, name="psnb-pull", daemon=True).start()

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        """Answer reads of variables from copies, and ask the servers for all else.

        Raises
        ------
        ServerLostError
            If a server that is asked is gone, or was when copies were pulled.
        """
        keys = [
            (each.to, each.operation.tables[0])
            if isinstance(each.to, ShardId)
            and isinstance(each.operation, ops.OnTables)
            and isinstance(each.operation.operation, ops.ReadValues)
            else None
            for each in requests
        ]
        with self._lock:
            error, self._error = self._error, None
            copies = {key: self._copies[key] for key in keys if key in self._copies}
        if error is not None:
            raise error
        versions: dict[ShardId, int] = {}
        others = [at for at, key in enumerate(keys) if key not in copies]
        answers: dict[int, Any] = {}
        if others:
            found = self._behind.call([requests[at] for at in others], versions)
            answers = dict(zip(others, found, strict=True))
            self._keep({key: answers[at] for at in others if (key := keys[at])}, versions)
        if seen is not None:
            # The older of a copy and a freshly fetched one counts.
            for (shard, _), (_, version) in copies.items():
                seen[shard] = min(version, seen.get(shard, version))
            for shard, version in versions.items():
                seen.setdefault(shard, version)
        # Copied: the result belongs to the caller.
        return [
            np.array(copies[key][0]) if key in copies else answers[at]
            for at, key in enumerate(keys)
        ]

    def _pull(self, server_client: ServerClient, wanted: Sequence[TableName]) -> None:
        versions: dict[ShardId, int] = {}
        requests = [on_table(shard, table, ops.ReadValues()) for shard, table in wanted]
        try:
            values = server_client.call(requests, versions)
            self._keep(dict(zip(wanted, values, strict=True)), versions)
        except Exception as error:  # the next reader raises it
            with self._lock:
                self._error = error
        finally:
            with self._lock:
                self._pulls = False

    def _keep(
        self, values: Mapping[TableName, np.ndarray], versions: Mapping[ShardId, int]
    ) -> None:
        made = {key: (np.array(value), versions[key[0]]) for key, value in values.items()}
        with self._lock:
            self._copies |= made


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
        self._gradients: dict[tuple[ShardId, str], ops.PushGradient] = {}
        self._rows: dict[tuple[ShardId, str], list[ops.PushRows]] = {}
        # With which tables each was pushed at first: they are of one kind.
        self._together: dict[tuple[ShardId, str], tuple[str, ...]] = {}

    def add(self, writes: Iterable[ShardWrite]) -> None:
        """Add writes; gradients are added to their table's.

        Their norms, by which optimizers may clip, do not give the sum's norm, and are left out.
        """
        parts = ((shard, of, each) for shard, of in writes for each in of.parts())
        for shard, of, write in parts:
            key, operation = (shard, write.tables[0]), write.operation
            match operation:
                case ops.PushGradient() if key in self._gradients:
                    self._gradients[key] = _added(self._gradients[key], operation)
                case ops.PushGradient(gradient=gradient):
                    self._gradients[key] = replace(
                        operation, gradient=np.array(gradient), norm=None
                    )
                case ops.PushRows(gradients=gradients):
                    by_id = push_by_id(operation, gradients.dtype, gradients.shape[1])
                    self._rows.setdefault(key, []).append(by_id)
                    self._together.setdefault(key, of.tables)
                case _:
                    super().add([(shard, write)])

    def pending(self, shard: ShardId, table: str) -> list[ops.TableOperation]:
        """Return the writes that a read must show: none of the gradients."""
        return [each for each in super().pending(shard, table) if not each.collected]

    def __bool__(self) -> bool:
        """Return whether there is anything to commit."""
        return super().__bool__() or bool(self._gradients or self._rows)

    def give(self, updates: Updates) -> None:
        """Add all writes to others, with one gradient for each table, after the other writes."""
        updates.add((shard, each) for shard, writes in self._writes.items() for each in writes)
        updates.add(
            (shard, ops.on_table(table, push)) for (shard, table), push in self._gradients.items()
        )
        updates.add(_joined(self._rows, self._together))
        if self.weight is not None:
            updates.weigh(self.weight)


def _added(held: ops.PushGradient, push: ops.PushGradient) -> ops.PushGradient:
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


def _joined(
    held: Mapping[tuple[ShardId, str], list[ops.PushRows]],
    together: Mapping[tuple[ShardId, str], tuple[str, ...]],
) -> Iterator[ShardWrite]:
    """Yield one push for each shard and tables ``together``, with the sum of each id's gradients.

    Servers take no push of tables of several kinds, and only the first pushes tell these apart:
    gradients of rows in half width are float32, too.
    """
    groups: dict[
        tuple[ShardId, tuple[str, ...]], list[tuple[str, np.ndarray, np.ndarray, bool]]
    ] = {}
    for (shard, table), pushes in held.items():
        ids = np.concatenate([each.ids for each in pushes])
        gradients = np.concatenate([each.gradients for each in pushes])
        several = groups.setdefault((shard, together[shard, table]), [])
        several.append((table, *summed(ids, gradients), pushes[0].half))
    for (shard, _), several in groups.items():
        names, ids, sums, halves = zip(*several, strict=True)
        offsets = np.array([0, *accumulate([each.size for each in ids])])
        joined = np.concatenate(ids)
        push = ops.PushRows(joined, np.concatenate(sums), offsets, half=halves[0])
        yield shard, ops.OnTables(names, push)


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
