"""How the rows and ids of parameters are divided over shards. Pure.

Dense variables are split along their first axis into equal ranges of rows. Embedding ids are
assigned one by one: by remainder if the number of rows is fixed, by hash if any id is allowed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from psnb._src.server.hashing import find_own, hash_ids
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import scratch
from psnb._src.utils.checks import check_fields, integer
from psnb._src.utils.text import shown


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


def evenly(at: np.ndarray) -> slice | np.ndarray:
    """Return places (int64, ascending) as a slice, if they are evenly spaced.

    By a slice numpy copies rows in a third of the time.
    """
    steps = at[1:] - at[:-1]
    if steps.size and steps[0] > 0 and (steps == steps[0]).all():
        return slice(int(at[0]), int(at[-1]) + 1, int(steps[0]))
    return at


def as_items(rows: np.ndarray) -> np.ndarray:
    """Return a matrix as an array whose items are its rows: a view, if it is contiguous.

    So numpy copies some of them in half the time.
    """
    whole = np.ascontiguousarray(rows)
    return whole.view(np.dtype((np.void, whole.itemsize * whole.shape[1])))[:, 0]


class Owner(NamedTuple):
    """Which ids a shard takes.

    Attributes
    ----------
    number, shards : int
        The number of the shard, and how many there are.
    growing : bool
        Whether the table takes any id.
    """

    number: int
    shards: int
    growing: bool

    def takes(self, ids: np.ndarray) -> np.ndarray:
        """Return where in ``ids`` (uint64, ``(n,)``) its own are, ascending."""
        at = scratch(ids.size, np.int64)
        return at[: find_own(read_only(ids), self.shards, self.number, self.growing, at)]


Partitioner = Callable[[tuple[int, ...], np.dtype], int]
"""Takes a variable's shape and dtype, returns the number of shards along its first axis."""


class _Counts:
    """Checks the fields of a partitioner, which are whole numbers, 1 or more."""

    def __post_init__(self) -> None:
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]  # of its subclasses
        check_fields(self, lambda name, value: integer(f"{shown(self)}: {name}", value, 1), *names)


@dataclass(frozen=True)
class FixedShards(_Counts):
    """Split every variable into the same number of shards (fewer if it has fewer rows).

    After TensorFlow's ``FixedShardsPartitioner``.

    Parameters
    ----------
    shards : int
        At least 1.

    Raises
    ------
    ConfigurationError
        If ``shards`` is not a positive integer.
    """

    shards: int

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> int:
        """Return the number of shards for a variable of this shape and dtype."""
        return min(self.shards, shape[0]) if shape and shape[0] else 1


@dataclass(frozen=True)
class MinSize(_Counts):
    """Split a variable into as many shards as possible, each of a minimum size.

    After TensorFlow's ``MinSizePartitioner``, with its defaults. As in TensorFlow, the last byte
    counts: a variable of two and a half times ``min_shard_bytes`` becomes three shards, a little
    below it.

    Parameters
    ----------
    min_shard_bytes : int
        At least 1; the default is 256 KiB.
    max_shards : int
        At least 1. The default, 1, splits nothing: set it to the number of servers.

    Raises
    ------
    ConfigurationError
        If an argument is not a positive integer.
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int = 1

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> int:
        """Return the number of shards for a variable of this shape and dtype."""
        shards = -(-math.prod(shape) * dtype.itemsize // self.min_shard_bytes)
        return max(1, min(shards, self.max_shards, shape[0] if shape else 1))


@dataclass(frozen=True)
class MaxSize(_Counts):
    """Split a variable into as few shards as keep each below a maximum size.

    After TensorFlow's ``MaxSizePartitioner``. A row is never split: a shard has one at least.

    Parameters
    ----------
    max_shard_bytes : int
        At least 1.
    max_shards : int, optional
        No more shards than these, even if they are larger then; None for no limit.

    Raises
    ------
    ConfigurationError
        If an argument is not a positive integer.
    """

    max_shard_bytes: int
    max_shards: int | None = None

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> int:
        """Return the number of shards for a variable of this shape and dtype."""
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        if not shape or not shape[0] or not row_bytes:
            return 1
        shards = -(-shape[0] // max(1, self.max_shard_bytes // row_bytes))
        return shards if self.max_shards is None else min(shards, self.max_shards)
