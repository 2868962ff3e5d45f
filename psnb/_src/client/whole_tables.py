"""Reading and writing whole tables, in segments.

A table is read as it was at one moment (`psnb._src.server.snapshots`); the moments of several
tables differ slightly.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress

import numpy as np

from psnb._src.client.requests import Request, on_table
from psnb._src.client.server_client import ServerClient
from psnb._src.placement.layout import ShardId
from psnb._src.server import operations as ops
from psnb._src.server.tables import operations as table_ops
from psnb.errors import ServerLostError

_ATTEMPTS = 5

TableName = tuple[ShardId, str]
"""A shard, and a table there."""


def _reading(
    table: TableName, header: ops.SnapshotHeader
) -> Generator[Request, table_ops.Segment | None, table_ops.Segment | None]:
    """Yield the requests for the segments of a table, and return it; None if it was lost."""
    (shard, _), rows = table, header.rows
    state = {
        name: np.empty((rows, *array.shape[1:]), array.dtype) for name, array in header.form.items()
    }
    step = table_ops.rows_in_segment(header.row_nbytes)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        segment = yield Request(shard, ops.ReadSegment(header.snapshot, start, stop))
        if segment is None:
            return None
        for name, array in state.items():
            array[start:stop] = segment[name]
    yield Request(shard, ops.ReleaseSnapshot(header.snapshot))
    return state | header.tail


def read_states(
    server_client: ServerClient, tables: Sequence[TableName]
) -> list[table_ops.Segment]:
    """Return the content of tables, each as it was at one moment.

    Raises
    ------
    ServerLostError
        If a server is gone.
    """
    found: dict[TableName, table_ops.Segment] = {}
    for _ in range(_ATTEMPTS):
        left = [table for table in tables if table not in found]
        if not left:
            return [found[table] for table in tables]
        headers = server_client.call(
            [Request(shard, ops.TakeSnapshot(table)) for shard, table in left]
        )
        under_way = {
            table: _reading(table, each) for table, each in zip(left, headers, strict=True)
        }
        requests = {table: next(reading) for table, reading in under_way.items()}
        while requests:
            answers = zip(requests, server_client.call([*requests.values()]), strict=True)
            requests = {}
            for table, segment in answers:
                try:
                    requests[table] = under_way[table].send(segment)
                except StopIteration as stop:
                    if stop.value is not None:  # otherwise its server was lost: start again
                        found[table] = stop.value
    names = sorted({table for shard, table in tables if (shard, table) not in found})
    raise ServerLostError(
        f"what {names} hold could not be read: their servers were lost, {_ATTEMPTS} times in a "
        "row; try again when the cluster is at rest"
    )


def read_segments(server_client: ServerClient, table: TableName) -> Iterator[table_ops.Segment]:
    """Yield the rows of a table as they were at one moment, in segments.

    Raises
    ------
    ServerLostError
        If a server is gone.
    """
    shard, name = table
    (header,) = server_client.call([Request(shard, ops.TakeSnapshot(name))])
    step = table_ops.rows_in_segment(header.row_nbytes)
    try:
        for start in range(0, header.rows, step):
            stop = min(start + step, header.rows)
            read = Request(shard, ops.ReadSegment(header.snapshot, start, stop))
            (segment,) = server_client.call([read])
            if segment is None:
                raise ServerLostError(
                    f"the server of table {name!r} was lost, or given up, while it was read; "
                    "try again"
                )
            yield segment
    finally:
        with suppress(ServerLostError):  # then there is nothing to release
            server_client.call([Request(shard, ops.ReleaseSnapshot(header.snapshot))])


def write_states(
    server_client: ServerClient,
    states: Sequence[tuple[TableName, table_ops.Segment, table_ops.Segment]],
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
    server_client.call([on_table(*table, table_ops.ClearTable()) for table, _, _ in states])
    start = [0] * len(states)
    while True:
        requests = []
        for i, (table, rows, _) in enumerate(states):
            size, step = (
                len(next(iter(rows.values()))),
                table_ops.rows_in_segment(table_ops.row_nbytes(rows)),
            )
            if start[i] < size:
                segment = {name: array[start[i] : start[i] + step] for name, array in rows.items()}
                if numbered:
                    segment["start"] = np.array([start[i]])
                requests.append(on_table(*table, table_ops.PutSegment(segment)))
                start[i] += step
        if not requests:
            break
        server_client.call(requests)
    server_client.call([on_table(*table, table_ops.FinishTable(tail)) for table, _, tail in states])
