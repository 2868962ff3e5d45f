"""Questions about all rows of an embedding: the nearest ones, and all of them in chunks.

Servers answer piece by piece, between other requests, so a question holds none up. What it finds is
not of one moment: each row is as it was when its piece was read. When a shard's rows get other
numbers meanwhile (some were removed, or another server has the shard now), the question begins anew
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.client.arguments import checked_ids
from psnb._src.client.requests import on_table
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.whole_tables import TableName
from psnb._src.server.hashing import distinct
from psnb._src.server.scanning import Metric
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.looking import MOST_QUERIES
from psnb._src.utils.arrays import integers_of, untracked
from psnb._src.utils.checks import choice
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, InvalidArrayError, ServerLostError

_ATTEMPTS = 5
"""How often a question may begin on a shard."""

_MOST_IDS = 1 << 22
"""How many ids of a shard this process holds, about."""

S = TypeVar("S")


def scan(
    shards: SparseShards,
    ask: Callable[[int, str], ops.ScanRows],
    fold: Callable[[S | None, Any], S],
    only: TableName | None = None,
) -> list[S]:
    """Ask all shards of an embedding, or a single one, piece by piece.

    Parameters
    ----------
    shards : SparseShards
        The embedding.
    ask : callable
        Returns the operation for a piece, by its first row and the numbering of rows.
    fold : callable
        Takes what it returned for the piece before, None for the first one, and a piece's answer.
    only : tuple, optional
        The table of a shard.

    Returns
    -------
    list
        What ``fold`` returned at last, for each shard.

    Raises
    ------
    ServerLostError
        If a server is gone, or a shard's rows got other numbers again and again.
    """
    tables = shards.tables if only is None else (only,)
    found: dict[TableName, S | None] = dict.fromkeys(tables)
    attempts = dict.fromkeys(tables, 1)
    places: dict[TableName, tuple[int, str]] = dict.fromkeys(tables, (0, ""))
    while places:
        requests = [on_table(*table, ask(*place)) for table, place in places.items()]
        answers = zip(list(places), shards.server_client.call(requests), strict=True)
        for table, answer in answers:
            if answer is None:
                attempts[table] += 1
                if attempts[table] > _ATTEMPTS:
                    raise ServerLostError(
                        f"rows of embedding {shards.name!r} were removed or moved to another "
                        f"server {_ATTEMPTS} times while all were read; try again when fewer are"
                    )
                places[table], found[table] = (0, ""), None
                continue
            found[table] = fold(found[table], answer)
            if answer.then is None:
                del places[table]
            else:
                places[table] = answer.then, answer.numbering
    return [found[table] for table in tables]  # type: ignore[misc]  # each has an answer


def read_rows(shards: SparseShards, ids: np.ndarray) -> ops.RowsThere:
    """Return which of some ids have a row, and these rows; makes none and counts none."""
    size = ops.rows_in_segment(shards.dim * shards.dtype.itemsize) * len(shards.tables)
    there, parts = np.zeros(ids.size, np.bool_), [np.empty((0, shards.dim), shards.dtype)]
    for start in range(0, ids.size, size):
        some, own = ids[start : start + size], there[start : start + size]
        split = [(shard, np.arange(some.size)[at]) for shard, at in shards.split(some)]
        requests = [on_table(shard, shards.name, ops.ReadRows(some[at])) for shard, at in split]
        values = np.empty((some.size, shards.dim), shards.dtype)
        for (_, at), answer in zip(split, shards.server_client.call(requests), strict=True):
            own[at] = answer.there
            values[at[answer.there]] = answer.values
        if shards.padding_idx is not None:
            values[some == np.uint64(shards.padding_idx)] = 0
        parts.append(values[own])
    return ops.RowsThere(there, np.concatenate(parts))


def read_items(shards: SparseShards, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the ids and the rows of a whole embedding in chunks; see `Embedding.items`."""
    for ids in _all_ids(shards, chunk):
        for start in range(0, ids.size, chunk):
            some = ids[start : start + chunk]
            found = read_rows(shards, some)
            if found.there.any():
                yield some[found.there], found.values


def _all_ids(shards: SparseShards, chunk: int) -> Iterator[np.ndarray]:
    """Yield each id once: not too many at a time, and never more than needed of a fixed table."""
    if shards.rows is not None:
        for start in range(0, shards.rows, chunk):
            yield np.arange(start, min(start + chunk, shards.rows), dtype=np.uint64)
        return
    for table in shards.tables:
        (described,) = shards.server_client.call([on_table(*table, ops.DescribeRows())])
        # The ids that have the same low bits in their hashes: these stay the same, whatever numbers
        # rows get, so that a question that begins anew gives no id twice.
        mask = (1 << (described["rows"] // _MOST_IDS).bit_length()) - 1
        for part in range(mask + 1):
            yield _ids(shards, table, part, mask)


def _ids(shards: SparseShards, table: TableName, part: int, mask: int) -> np.ndarray:
    (lists,) = scan(
        shards,
        lambda start, numbering: ops.ListIds(start, numbering, part, mask),
        lambda before, answer: [*(before or []), answer.ids],
        table,
    )
    found, _ = distinct(np.concatenate(lists))  # one may have gone and come back meanwhile
    return found


def find_nearest(
    shards: SparseShards, given: ArrayLike, k: int, metric: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and scores of the rows nearest to ids or vectors; see `Embedding.nearest`."""
    what = f"nearest in embedding {shards.name!r}"
    by = Metric[choice(f"{what}: metric", metric, [each.name.lower() for each in Metric]).upper()]
    queries, own, single = _queries(shards, given, what)
    if by is Metric.COSINE:
        queries = _directions(queries, own, what)
    # What is left out is asked for with the others: the queries' own ids, and padding.
    padding = shards.padding_idx
    wanted = k + (own is not None) + (padding is not None)
    if wanted > ops.MOST_FOUND:
        raise ConfigurationError(f"{what}: k must be {ops.MOST_FOUND - 2:,} at most, found {k}")
    step = min(MOST_QUERIES, ops.MOST_FOUND // wanted)
    keys = np.full((len(queries), k), np.inf)
    ids = np.zeros(keys.shape, np.uint64)
    for start in range(0, len(queries), step):
        at = slice(start, start + step)
        some_keys, some = _scanned(shards, queries[at], wanted, by)
        if own is not None:
            some_keys[some == own[at, None]] = np.inf
        if padding is not None:
            some_keys[some == np.uint64(padding)] = np.inf
        some_keys, some = _best(some_keys, some, k)
        keys[at, : some.shape[1]], ids[at, : some.shape[1]] = some_keys, some
    count = int(np.isfinite(keys).sum(axis=1).min(initial=k))
    keys, ids = keys[:, :count], ids[:, :count]
    scores = np.sqrt(keys) if by is Metric.L2 else 0 - keys  # no zero has a sign
    return (ids[0], scores[0]) if single else (ids, scores)


def _queries(
    shards: SparseShards, given: ArrayLike, what: str
) -> tuple[np.ndarray, np.ndarray | None, bool]:
    """Return vectors, float64 ``(n, dim)``; the ids that they are of; whether there is only one."""
    try:
        array = np.asarray(untracked(given))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArrayError(f"{what}: expected ids or vectors, found {shown(given)}") from error
    if array.dtype.kind == "f" and array.size:
        if array.ndim not in (1, 2) or array.shape[-1] != shards.dim:
            raise InvalidArrayError(
                f"{what}: expected a vector ({shards.dim},) or several (n, {shards.dim}), found "
                f"floats of shape {array.shape}"
            )
        vectors = np.atleast_2d(array).astype(np.float64)
        if not np.isfinite(vectors).all():
            raise InvalidArrayError(f"{what}: some numbers of the vectors are not finite")
        return vectors, None, array.ndim == 1
    ids = checked_ids(integers_of(given, what), shards.name, shards.rows)
    if ids.ndim > 1:
        raise InvalidArrayError(f"{what}: expected an id or ids (n,), found shape {ids.shape}")
    flat = ids.reshape(-1)
    if shards.padding_idx is not None and (flat == np.uint64(shards.padding_idx)).any():
        raise ConfigurationError(f"{what}: id {shards.padding_idx} is padding, and has no row")
    found = read_rows(shards, flat)
    if not found.there.all():
        missing = flat[~found.there]
        raise ConfigurationError(
            f"{what}: {missing.size} of {flat.size} ids have no row, the first is {missing[0]}: "
            "give vectors, such as lookup(ids, training=False), the rows that they would begin with"
        )
    vectors = found.values.astype(np.float64)
    if not np.isfinite(vectors).all():
        bad = flat[~np.isfinite(vectors).all(axis=1)][0]
        raise InvalidArrayError(f"{what}: the row of id {bad} has numbers that are not finite")
    return vectors, flat, ids.ndim == 0


def _directions(queries: np.ndarray, own: np.ndarray | None, what: str) -> np.ndarray:
    """Return vectors of length 1."""
    # The largest number first: squares of very small or large ones are not floats.
    largest = np.abs(queries).max(axis=1, initial=0)
    if not largest.all():
        at = int(np.flatnonzero(largest == 0)[0])
        which = f"vector {at}" if own is None else f"the row of id {own[at]}"
        raise InvalidArrayError(f"{what}: {which} is all zeros, and has no direction")
    scaled = queries / largest[:, None]
    directions: np.ndarray = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    return directions


def _scanned(
    shards: SparseShards, queries: np.ndarray, count: int, by: Metric
) -> tuple[np.ndarray, np.ndarray]:
    def fold(before: tuple[np.ndarray, np.ndarray] | None, new: ops.Nearest) -> Any:
        return _merged([(new.keys, new.ids), *([] if before is None else [before])], count)

    found = scan(
        shards,
        lambda start, numbering: ops.FindNearest(start, numbering, queries, count, int(by)),
        fold,
    )
    return _merged(found, count)


def _merged(parts: list[tuple[np.ndarray, np.ndarray]], count: int) -> Any:
    keys, ids = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    keys, ids = _best(keys, ids, keys.shape[1])
    by_id = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, by_id, 1)
    if (again := ordered[:, 1:] == ordered[:, :-1]).any():  # its row has moved, between pieces
        query, at = np.nonzero(again)
        keys[query, by_id[query, at + 1]] = np.inf
    return _best(keys, ids, count)


def _best(keys: np.ndarray, ids: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the least keys of each row in their order, and their ids, by which ties are broken."""
    order = np.lexsort((ids, keys), axis=1)[:, :count]
    return np.take_along_axis(keys, order, 1), np.take_along_axis(ids, order, 1)
