"""Tables as exports take them: what they are, and their rows in pieces.

Rows are fetched while they are written, so memory does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from psnb._src.export import RowPiece, TableSource
from psnb._src.parameters.embedding import Embedding
from psnb._src.parameters.handles import shards_of
from psnb._src.parameters.states import SEGMENT


def table_source(table: Embedding) -> TableSource:
    """Return a table as `psnb.export` takes it."""
    spec = shards_of(table).spec
    return TableSource(
        spec.name,
        spec.dim,
        spec.rows,
        spec.dtype,
        spec.padding_idx,
        spec.initializer,
        spec.admission,
        spec.seed,
        spec.accessor is not None,
        lambda: _fixed(table, spec.rows) if spec.rows is not None else _growing(table),
    )


def _fixed(table: Embedding, rows: int) -> Iterator[RowPiece]:
    step = max(1, SEGMENT // (table.dim * table.dtype.itemsize))
    for start in range(0, rows, step):
        ids = np.arange(start, min(start + step, rows), dtype=np.uint64)
        yield RowPiece(ids, table.lookup(ids, training=False))


def _growing(table: Embedding) -> Iterator[RowPiece]:
    accessor = table.accessor
    for segment in shards_of(table).segments():
        scores = None if accessor is None else accessor.score(segment["show"], segment["click"])
        yield RowPiece(segment["ids"], segment["values"], scores)
