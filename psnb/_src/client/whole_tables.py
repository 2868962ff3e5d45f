"""Reading and writing whole tables, in segments.

A table is read as it was at one moment (`psnb._src.server.snapshots`); the moments of several
tables differ slightly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from psnb._src.client.requests import Request, on_table
from psnb._src.client.server_client import ServerClient
from psnb._src.placement.layout import ShardId
from psnb._src.server.operations import ReadSegment, ReleaseSnapshot, SnapshotHeader, TakeSnapshot
from psnb._src.server.tables.operations import (
    ClearTable,
    FinishTable,
    PutSegment,
    Segment,
    row_nbytes,
    rows_in_segment,
)
from psnb.errors import ServerLostError

_ATTEMPTS = 5

TableName = tuple[ShardId, str]
"""A shard, and a table there."""


class _TableReader:
    """A table that is being read."""

    def __init__(self, table: TableName, header: SnapshotHeader) -> None:
        self.table = table
        self._name, self.rows = header.snapshot, header.rows
        self.state: Segment = {
            name: np.empty((self.rows, *array.shape[1:]), array.dtype)
            for name, array in header.form.items()
        } | header.tail
        self._names = tuple(header.form)
        self._step = rows_in_segment(header.row_nbytes)
        self.done = 0

    def request(self) -> Request:
        """Return the request for the next segment, or the one that ends the reading."""
        shard, _ = self.table
        if self.done == self.rows:
            return Request(shard, ReleaseSnapshot(self._name))
        stop = min(self.done + self._step, self.rows)
        return Request(shard, ReadSegment(self._name, self.done, stop))

    def take(self, segment: Segment) -> None:
        """Take the segment that was asked for."""
        size = len(segment[self._names[0]])
        for name in self._names:
            self.state[name][self.done : self.done + size] = segment[name]
        self.done += size


def read_states(server_client: ServerClient, tables: Sequence[TableName]) -> list[Segment]:
    """Return the content of tables, each as it was at one moment.

    Raises
    ------
    ServerLostError
        If a server is gone.
    """
    found: dict[TableName, Segment] = {}
    for _ in range(_ATTEMPTS):
        left = [table for table in tables if table not in found]
        if not left:
            return [found[table] for table in tables]
        headers = server_client.call([Request(shard, TakeSnapshot(table)) for shard, table in left])
        under_way = [_TableReader(*each) for each in zip(left, headers, strict=True)]
        while under_way:
            answers = server_client.call([each.request() for each in under_way])
            again = []
            for reading, segment in zip(under_way, answers, strict=True):
                if reading.done == reading.rows:
                    found[reading.table] = reading.state
                elif segment is not None:
                    reading.take(segment)
                    again.append(reading)
                # Otherwise its server was lost meanwhile: start again.
            under_way = again
    names = sorted({table for shard, table in tables if (shard, table) not in found})
    raise ServerLostError(
        f"what {names} hold could not be read: their servers were lost, {_ATTEMPTS} times in a "
        "row; try again when the cluster is at rest"
    )


def read_segments(server_client: ServerClient, table: TableName) -> Iterator[Segment]:
    """Yield the rows of a table as they were at one moment, in segments.

    Raises
    ------
    ServerLostError
        If a server is gone.
    """
    shard, name = table
    (header,) = server_client.call([Request(shard, TakeSnapshot(name))])
    step = rows_in_segment(header.row_nbytes)
    try:
        for start in range(0, header.rows, step):
            stop = min(start + step, header.rows)
            read = Request(shard, ReadSegment(header.snapshot, start, stop))
            (segment,) = server_client.call([read])
            if segment is None:
                raise ServerLostError(
                    f"the server of table {name!r} was lost, or given up, while it was read; "
                    "try again"
                )
            yield segment
    finally:
        with suppress(ServerLostError):  # then there is nothing to release
            server_client.call([Request(shard, ReleaseSnapshot(header.snapshot))])


def write_states(
    server_client: ServerClient,
    states: Sequence[tuple[TableName, Segment, Segment]],
    *,
    numbered: bool = False,
) -> None:
    """Replace the content of tables.

    Parameters
    ----------
    server_client : ServerClient
        The client of the servers.
    states : sequence of tuple
        Each table, its rows, and its tail (see `psnb._src.server.tables.table`).
    numbered : bool
        Whether each segment carries the number of its first row.

    Raises
    ------
    ServerLostError
        If a server is gone; the others may have a part of the new content.
    """
    server_client.call([on_table(*table, ClearTable()) for table, _, _ in states])
    start = [0] * len(states)
    while True:
        requests = []
        for i, (table, rows, _) in enumerate(states):
            size, step = len(next(iter(rows.values()))), rows_in_segment(row_nbytes(rows))
            if start[i] < size:
                segment = {name: array[start[i] : start[i] + step] for name, array in rows.items()}
                if numbered:
                    segment["start"] = np.array([start[i]])
                requests.append(on_table(*table, PutSegment(segment)))
                start[i] += step
        if not requests:
            break
        server_client.call(requests)
    server_client.call([on_table(*table, FinishTable(tail)) for table, _, tail in states])
