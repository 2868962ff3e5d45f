"""What views show of an embedding: what its rows are like, and a row with those near to it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from psnb._src.client.arguments import checked_ids
from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.tables.scan import read_rows
from psnb._src.monitor.protocol import RowFound, RowNear, TableDescribed
from psnb._src.utils.text import NAME, shown, truncate, unknown
from psnb.errors import ConfigurationError

MOST_AGES, MOST_VALUES, MOST_NEAREST = 12, 16, 8
"""How many of them people see."""

Parameters = Mapping[str, DenseShards | SparseShards]


def describe_table(parameters: Parameters, table: str) -> TableDescribed:
    """Return what the rows of an embedding are like; may raise what `Embedding.describe` does."""
    found = _embedding(parameters, table).describe()
    norms, used = found.norms, found.most_used
    return TableDescribed(
        table=table,
        rows=found.rows,
        waiting=found.waiting,
        bytes=found.nbytes,
        edges=norms.edges.tolist(),
        counts=norms.counts.tolist(),
        zeros=norms.zeros,
        not_finite=norms.not_finite,
        mean=norms.mean,
        ages=[] if found.unseen_days is None else _ages(found.unseen_days),
        most_used=[]
        if used is None
        else [(str(each), score) for each, score in zip(used.ids, used.score, strict=True)],
    )


def look_up_row(parameters: Parameters, table: str, row_id: str) -> RowFound:
    """Return a row, and those near to it; raises ConfigurationError if its id has none."""
    embedding = _embedding(parameters, table)
    shards = shards_of(embedding)
    try:
        key = int(row_id)
    except ValueError:
        raise ConfigurationError(
            f"{shown(row_id)} is not an id, which is an integer: psnb.hash_ids makes them of texts"
        ) from None
    own = checked_ids([key], table, embedding.rows)
    row = read_rows(shards, own).values
    if not row.size:
        raise ConfigurationError(f"embedding {table!r} has no row for id {key}")
    near, scores = own[:0], np.empty(0)
    if np.isfinite(row).all() and row.any():  # else it has no direction
        near, scores = embedding.nearest(row[0].astype(np.float64), MOST_NEAREST + 1)
        near, scores = (each[near != own[0]][:MOST_NEAREST] for each in (near, scores))
    found = read_rows(shards, near)  # some may have gone since
    use = None
    if embedding.accessor is not None:
        use = embedding.row_use(np.concatenate([own, near]))
    norms = np.full(near.size, np.nan)
    norms[found.there] = np.linalg.norm(found.values.astype(np.float64), axis=1)
    return RowFound(
        table=table,
        id=str(key),
        values=row[0, :MOST_VALUES].tolist(),
        norm=float(np.linalg.norm(row.astype(np.float64))),
        unseen_days=None if use is None else float(use.unseen_days[0]),
        score=None if use is None else float(use.score[0]),
        nearest=[
            RowNear(
                id=str(each),
                score=float(scores[at]),
                norm=float(norms[at]),
                unseen_days=None if use is None else float(use.unseen_days[at + 1]),
            )
            for at, each in enumerate(near)
        ],
    )


def _embedding(parameters: Parameters, table: str) -> Embedding:
    # As views know its name.
    named = {truncate(name, NAME): each for name, each in parameters.items()}
    found = named.get(table)
    if not isinstance(found, SparseShards):
        tables = [name for name, each in named.items() if isinstance(each, SparseShards)]
        raise ConfigurationError(unknown("embedding", table, tables))
    return Embedding(found)


def _ages(rows: np.ndarray) -> list[tuple[int, int]]:
    """Return days unseen and rows; of many, the last with all that were unseen for longer."""
    days = np.flatnonzero(rows).tolist()
    first = [(day, int(rows[day])) for day in days[: MOST_AGES - 1]]
    rest = days[MOST_AGES - 1 :]
    return [*first, (rest[0], int(rows[rest].sum()))] if rest else first
