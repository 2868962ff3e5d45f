"""How the rows and ids of parameters are divided over shards. Pure.

Dense variables are split along their first axis into equal ranges of rows. Embedding ids are
assigned one by one: by remainder if the number of rows is fixed, by hash if any id is allowed.
"""

from __future__ import annotations

import itertools

import numpy as np

from psnb._src.server.hashing import hash_ids


def row_ranges(rows: int, shards: int) -> list[tuple[int, int]]:
    """Return ``(start, stop)`` of each shard: ranges that differ by one row at most."""
    bounds = [rows * i // shards for i in range(shards + 1)]
    return list(itertools.pairwise(bounds))


def shard_of_ids(ids: np.ndarray, shards: int, *, growing: bool) -> np.ndarray:
    """Return the shard, int64 ``(n,)``, that holds each of the ids (uint64, ``(n,)``)."""
    if not growing:
        return (ids % np.uint64(shards)).astype(np.int64)
    hashed = np.empty_like(ids)
    hash_ids(ids, hashed)
    # The high bits: the server's own hash map uses the low ones.
    return ((hashed >> np.uint64(32)) % np.uint64(shards)).astype(np.int64)
