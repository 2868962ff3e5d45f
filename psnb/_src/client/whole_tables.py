"""Whole tables, read and loaded in pieces.

A table is read as it was at one moment (`psnb._src.server.snapshots`); the moments of several
tables differ slightly. It is loaded from what was saved of it. Servers read files themselves, if
they can: then only what to read goes there, piece by piece. Else this process reads and sends the
pieces. So it never holds more than a few.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psnb._src.client.requests import Request, on_table
from psnb._src.client.server_client import ServerClient
from psnb._src.placement.layout import ShardId
from psnb._src.server import operations as ops
from psnb._src.server.tables import operations as table_ops
from psnb._src.server.tables.checks import COUNTS, MINUTES, REMOVED
from psnb._src.server.tables.saved_files import (
    AT_ONCE,
    ArraysInMemory,
    FilePart,
    Later,
    PartKey,
    SavedArrays,
    owned,
    read_segment,
    read_waiting,
    used_later,
)
from psnb._src.server.tables.sharding import Owner
from psnb.errors import (
    CheckpointError,
    CoordinatorClosedError,
    ServerLostError,
    ServerUnresponsiveError,
)

TableName = tuple[ShardId, str]
"""A shard, and a table there."""

_ATTEMPTS = 5

logger = logging.getLogger("psnb")


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


_SENT = 4
"""How many pieces this process holds, if it sends them."""


@dataclass(frozen=True, eq=False)
class SavedPart:
    """A part of a shard that was saved.

    Attributes
    ----------
    arrays : SavedArrays
        What it has; of files that servers read, nothing is read before it is asked for.
    count, removed : int
        How many rows of an embedding, and how many ids have lost theirs before.
    restore : str
        The key under which servers have checked it.
    there : FilePart or None
        Where they find it; None if they have not checked it.
    later : tuple of int
        How much later its rows were used, as the table counts that they go to.
    """

    arrays: SavedArrays
    count: int = 0
    removed: int = 0
    restore: str = ""
    there: FilePart | None = None
    later: Later = AT_ONCE


@dataclass(frozen=True, eq=False)
class SavedState:
    """A shard of a parameter, as it was saved.

    Attributes
    ----------
    parts : sequence of SavedPart
        The oldest first.
    rows : sequence of int
        Of a table of any id, how many rows each of the present shards will get; empty if that is
        not known.
    step, minutes : int
        The optimizer's, and how many minutes the table had counted.
    updates : numpy.ndarray or None
        The counts of updates of a variable's numbers, where they differ.
    """

    parts: Sequence[SavedPart]
    rows: Sequence[int]
    step: int
    minutes: int = 0
    updates: np.ndarray | None = None


def in_memory(state: Mapping[str, np.ndarray]) -> SavedState:
    """Return a shard whose arrays are in memory."""
    arrays = dict(state)
    count = len(arrays["ids"]) if "ids" in arrays else 0
    part = SavedPart(ArraysInMemory(arrays), count)
    step, minutes = int(arrays["step"][0]), int(arrays[MINUTES][0]) if MINUTES in arrays else 0
    return SavedState([part], (), step, minutes, arrays.get(COUNTS))


@dataclass(frozen=True)
class _Piece:
    part: SavedPart
    start: int
    stop: int
    at: int | None
    removes: bool = False  # ids that have lost their rows


@dataclass(eq=False)
class TableLoad:
    """What a table is to get.

    Attributes
    ----------
    table : tuple
        The table.
    parts : sequence of tuple
        Each part from which it gets rows, which of them, and of a variable where the first goes.
    row_nbytes : int
        The bytes of a row, of a variable those of a number.
    last : sequence of SavedPart
        Of each shard that was saved, the part that has the ids that wait for a row.
    tail : Segment
        All else that is not by row.
    owner : Owner, optional
        Which ids it takes; all if it is left out.
    one_in : int
        About one row in ``one_in`` is taken: its shard has that part of a piece.
    rows : int
        How many rows it will have, if it must have room for them first.
    clears : bool
        Whether it has rows that go.
    beside : Segment
        What no checkpoint has.
    """

    table: TableName
    parts: Sequence[tuple[SavedPart, int, int, int | None]]
    row_nbytes: int
    tail: table_ops.Segment
    last: Sequence[SavedPart] = ()
    owner: Owner | None = None
    one_in: int = 1
    rows: int = 0
    clears: bool = False
    beside: table_ops.Segment = field(default_factory=dict)
    reads: bool = field(default=True, init=False)  # its server reads files
    key: str = field(default="", init=False)  # see `loading`
    _place: int = field(default=0, init=False)

    def request(self, change: table_ops.TableChange | ops.ReadsFiles) -> Request:
        """Return the request for a change by which it is loaded, made while tables are."""
        shard, table = self.table
        self._place += 1
        made: table_ops.ShardOperation = (
            change if isinstance(change, ops.ReadsFiles) else table_ops.on_table(table, change)
        )
        which = shard.number, made, self.key, table, self._place
        return Request(shard, ops.OnLoadingShard(*which))

    def withdraw(self) -> None:
        """Give the place of the last change to another one: it was not made."""
        self._place -= 1

    def saved(self) -> dict[PartKey, FilePart]:
        """Return all parts of files that it needs."""
        parts = [part.there for part in (*(part for part, *_ in self.parts), *self.last)]
        return {there.key: there for there in parts if there is not None}

    @property
    def nbytes(self) -> int:
        """The bytes of all that it gets by row."""
        return self.row_nbytes * sum(stop - start for _, start, stop, _ in self.parts)

    def pieces(self) -> Iterator[_Piece]:
        """Yield its parts in pieces, of which it takes about a segment."""
        step = table_ops.rows_in_segment(self.row_nbytes) * min(self.one_in, table_ops.MOST_PIECE)
        for part, first, last, at in self.parts:
            for start in range(0, part.removed, table_ops.SEGMENT // 8):
                stop = min(start + table_ops.SEGMENT // 8, part.removed)
                yield _Piece(part, start, stop, None, removes=True)
            for start in range(first, last, step):
                place = None if at is None else at + start - first
                yield _Piece(part, start, min(start + step, last), place)


@contextmanager
def loading(server_client: ServerClient, loads: Sequence[TableLoad]) -> Iterator[None]:
    """Load tables in the block; see `others_waiting`.

    There is memory for all, which servers keep until the end.

    Raises
    ------
    ServerMemoryError
        If a server has none; nothing was changed.
    ServerLostError
        If a server is gone; nothing was changed.
    """
    with others_waiting(server_client, sorted({each.table[0] for each in loads})) as load:
        for each in loads:
            each.key = load.key
        server_client.call([on_table(*each.table, table_ops.MakeRoom(each.rows)) for each in loads])
        yield


@dataclass
class Load:
    """A load under way.

    Attributes
    ----------
    key : str
        Of `BeginLoading`.
    drops : bool
        Whether all tables of its shards are to be dropped at its end.
    """

    key: str
    drops: bool = False


@contextmanager
def others_waiting(server_client: ServerClient, shards: Sequence[ShardId]) -> Iterator[Load]:
    """Have writes and reads of others wait for the end of the block.

    What they find, and leave, is whole. A commit is wholly before it, and its effect is gone then;
    or wholly after it. Such blocks may nest.

    Raises
    ------
    ServerLostError
        If a server is gone; nothing was changed.
    """
    load = Load(uuid.uuid4().hex)
    try:
        found = server_client.call([Request(each, ops.BeginLoading(load.key)) for each in shards])
        facts = list(zip(shards, found, strict=True))
        applied = {fact.commit[:3] for _, each in facts for fact in each if fact.applied}
        # All have prepared what one has applied. The rest of it would come later, by itself.
        rest = {
            shard: [f.commit for f in each if not f.applied and f.commit[:3] in applied]
            for shard, each in facts
        }
        server_client.call(
            [Request(s, ops.BeginLoading(load.key, each)) for s, each in rest.items() if each]
        )
        yield load
    finally:
        ends = [Request(shard, ops.EndLoading(load.key, load.drops)) for shard in shards]
        try:
            with suppress(CoordinatorClosedError):  # then nothing waits
                outcomes = zip(ends, server_client.attempt(ends), strict=True)
                ends = [end for end, each in outcomes if isinstance(each, ServerUnresponsiveError)]
        finally:
            if ends:  # a server that comes back, or a replica of it, would have all wait
                server_client.insist(ends)


def load_tables(
    server_client: ServerClient,
    loads: Sequence[TableLoad],
    on_round: Callable[[], object] = bool,
) -> None:
    """Replace the content of tables.

    ``on_round`` is called after each piece.

    Raises
    ------
    CheckpointError
        If what was saved cannot be read; a part may be loaded.
    ServerLostError
        If a server is gone; the others may have a part of the new content.
    """
    server_client.call([each.request(table_ops.ClearTable()) for each in loads if each.clears])
    pieces = {load: load.pieces() for load in loads}
    while pieces:
        coming = {load: next(left, None) for load, left in pieces.items()}
        pieces = {load: left for load, left in pieces.items() if coming[load] is not None}
        _put(server_client, {load: coming[load] for load in pieces})  # type: ignore[misc]
        on_round()
    _finish(server_client, loads)


def _put(server_client: ServerClient, pieces: dict[TableLoad, _Piece]) -> None:
    asked: dict[TableLoad, ops.ReadsFiles] = {}
    for load, piece in pieces.items():
        part = piece.part
        if not load.reads or part.there is None:
            continue
        which = load.table[1], part.restore, "", part.there.key, piece.start, piece.stop
        asked[load] = (
            ops.RemoveSaved(*which, load.owner)
            if piece.removes
            else ops.PutSaved(*which, piece.at, load.owner, part.later)
        )
    done = _read_there(server_client, asked)
    read: tuple[_Piece | None, table_ops.Segment] = None, {}
    requests: list[Request] = []
    for load, piece in pieces.items():
        if load in done:
            continue
        if piece.removes:
            ids = piece.part.arrays.read(REMOVED, piece.start, piece.stop)
            ids = ids if load.owner is None else ids[load.owner.takes(ids)]
            server_client.call([*requests, load.request(table_ops.RemoveRows(ids))])
            requests = []
            continue
        if read[0] != piece:  # else several shards get rows of it
            whole = read_segment(piece.part.arrays, piece.start, piece.stop, piece.at)
            read = piece, used_later(whole, piece.part.later)
        segment = read[1] if load.owner is None else owned(read[1], "ids", load.owner)
        requests.append(load.request(table_ops.PutSegment(segment)))
        if len(requests) == _SENT:
            server_client.call(requests)
            requests = []
    server_client.call(requests)


def _finish(server_client: ServerClient, loads: Sequence[TableLoad]) -> None:
    asked = {
        load: ops.FinishSaved(
            *(load.table[1], load.last[0].restore, ""),
            *([part.there.key for part in load.last if part.there], load.owner, load.tail),
        )
        for load in loads
        if load.reads and load.last and load.last[0].there
    }
    excess = _read_there(server_client, asked)
    left = [load for load in loads if load not in excess]
    tails = [
        load.tail | read_waiting([part.arrays for part in load.last], load.owner) for load in left
    ]
    answers = server_client.call(
        [
            load.request(table_ops.FinishTable(tail, load.beside))
            for load, tail in zip(left, tails, strict=True)
        ]
    )
    excess |= dict(zip(left, answers, strict=True))
    lost: Counter[str] = Counter()
    for load, count in excess.items():
        lost[load.table[1]] += count
    for name, count in (+lost).items():
        logger.warning(
            "embedding %r: more rows were loaded than max_rows= lets its shards have: %s of them "
            "have left at once, as evict= says",
            *(name, f"{count:,}"),
        )


def _read_there(
    server_client: ServerClient, asked: Mapping[TableLoad, ops.ReadsFiles]
) -> dict[TableLoad, Any]:
    """Have servers make changes with what they read; return the results of those that were made.

    One that could not read something is not asked to read again.
    """
    requests = [load.request(change) for load, change in asked.items()]
    answers = server_client.attempt(requests) if requests else []
    for load, answer in zip(asked, answers, strict=True):
        if isinstance(answer, CheckpointError):
            load.reads = False
            load.withdraw()
        elif isinstance(answer, Exception):
            raise answer
    return {load: each for load, each in zip(asked, answers, strict=True) if load.reads}
