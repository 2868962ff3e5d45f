"""All rows of a table: in parts, so that no server stands still for long.

Exports fetch them while they write them, so memory does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.models.export.exported import RowChunk, TableSource
from psnb._src.models.export.tables import ExportedTable
from psnb._src.server.tables.operations import rows_in_segment
from psnb._src.server.tables.saved_files import by_row
from psnb._src.transport.half_width import widened


def table_source(table: Embedding) -> TableSource:
    """Return a table as `psnb.export` takes it."""
    spec = shards_of(table).spec
    return TableSource(
        **{each.name: getattr(spec, each.name) for each in fields(ExportedTable)},
        scored=spec.accessor is not None,
        chunks=lambda: _growing(table) if spec.rows is None else _fixed(table, spec.rows),
    )


def _fixed(table: Embedding, rows: int) -> Iterator[RowChunk]:
    for part in _parts(table, rows):
        ids = np.arange(part.start, part.stop, dtype=np.uint64)
        yield RowChunk(ids, table.lookup(ids, training=False))


def _growing(table: Embedding) -> Iterator[RowChunk]:
    accessor = table.accessor
    for segment in shards_of(table).segments():
        scores = None if accessor is None else accessor.score(segment["show"], segment["click"])
        yield RowChunk(segment["ids"], widened(segment["values"]), scores)


def read_rows(table: Embedding) -> np.ndarray:
    """Return all rows of a table that has a number of them."""
    assert table.rows is not None
    return np.concatenate([chunk.rows for chunk in _fixed(table, table.rows)])


def write_rows(table: Embedding, ids: np.ndarray, rows: np.ndarray) -> None:
    """Replace the rows of ids."""
    for part in _parts(table, len(ids)):
        table.assign(ids[part], np.ascontiguousarray(rows[part], table.dtype))


def _parts(table: Embedding, count: int) -> Iterator[slice]:
    step = rows_in_segment(table.dim * table.dtype.itemsize)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def replace_rows(table: Embedding, ids: np.ndarray, rows: np.ndarray) -> None:
    """Replace the rows of ids; of a table of any id, these are all then, and keep their use."""
    if table.rows is None:
        shards = shards_of(table)
        states = shards.shard_states()
        kept = [np.isin(state["ids"], ids.view(np.uint64)) for state in states]
        if not all(each.all() for each in kept):
            shards.load_states(
                [
                    {key: each[some] if by_row(key) else each for key, each in state.items()}
                    for state, some in zip(states, kept, strict=True)
                ]
            )
    write_rows(table, ids, rows)
