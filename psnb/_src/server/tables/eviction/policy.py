"""Eviction: which rows leave a table when others need their place, or their time is over. Pure.

All of it follows from how rows were used. Where that is equal, the table's rows take turns, so that
what lies side by side in memory is replaced together, and will be again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from psnb._src.server.tables.checks import RECENCY
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.utils.config import to_config
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

LRU, LFU, SCORE = "lru", "lfu", "score"

MOST_UPDATES = 1 << 30
"""The longest time to live: older rows are all of one age."""


@dataclass(frozen=True, slots=True, eq=False)
class RowUsage:
    """How rows were used, as a function of ``evict=`` gets it: arrays ``(n,)``.

    Attributes
    ----------
    age : numpy.ndarray
        Updates of the table (on the row's server) since the row was used last, uint32.
    count : numpy.ndarray
        How many training lookups and pushes have used it, uint32.
    show, click, unseen_days : numpy.ndarray or None
        Of a table with an ``accessor``, float32; see `RowStatistics`.
    """

    age: np.ndarray
    count: np.ndarray
    show: np.ndarray | None = None
    click: np.ndarray | None = None
    unseen_days: np.ndarray | None = None


Score = Callable[[RowUsage], np.ndarray]
"""Gives each row a number, from its own use alone; the lowest leave first."""


@dataclass(frozen=True)
class Eviction:
    """When rows of a shard leave, and which.

    Attributes
    ----------
    max_rows : int or None
        How many rows the shard may have; None for any number.
    evict : str or callable
        Which leave for others: ``"lru"``, ``"lfu"``, ``"score"`` or a `Score`.
    updates, minutes : int or None
        After how many updates without a use, and after how many minutes, a row leaves anyway.
    """

    max_rows: int | None
    evict: str | Score = LRU
    updates: int | None = None
    minutes: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.evict, str) and self.evict not in (LRU, LFU, SCORE):
            raise ConfigurationError(f"there is no evict={self.evict!r}")

    @property
    def expires(self) -> bool:
        """Whether rows leave because their time is over."""
        return self.updates is not None or self.minutes is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """The arrays that are kept for it: when each row was used, and how often."""
        has = {"last_update": True, "uses": self.counts, "last_minute": self.minutes is not None}
        return tuple(name for name in RECENCY if has[name])

    def of_one(self, shards: int) -> Eviction:
        """Return the policy of one of several shards: none has more than its part of all rows."""
        return self if self.max_rows is None else replace(self, max_rows=self.max_rows // shards)

    def describe(self) -> dict[str, Any]:
        """Return it as JSON can hold it; of a function, its name."""
        if isinstance(self.evict, str):
            return to_config(self)
        return to_config(replace(self, evict=LRU)) | {"evict": f"function {shown(self.evict)}"}

    @property
    def counts(self) -> bool:
        """Whether uses are counted."""
        return self.max_rows is not None and self.evict not in (LRU, SCORE)

    def order(
        self, usage: RowUsage, stamps: np.ndarray, accessor: CtrAccessor | None, name: str
    ) -> np.ndarray:
        """Return an unsigned number for each row, ``(n,)``: those with the lowest leave first.

        Raises
        ------
        ConfigurationError
            If a user's function raises, or returns what is no score for each row.
        """
        if self.evict == LRU:
            return stamps
        if self.evict == LFU:
            return _then(usage.count, stamps)
        if self.evict == SCORE:
            assert accessor is not None
            score = accessor.score(usage.show, usage.click)  # type: ignore[arg-type]
            return _then(_ascending(score.astype(np.float32)), stamps)
        return _ascending(_scores(self.evict, usage, name))  # type: ignore[arg-type]


def _then(first: np.ndarray, stamps: np.ndarray) -> np.ndarray:
    found: np.ndarray = (first.astype(np.uint64) << np.uint64(32)) | stamps
    return found


def _ascending(numbers: np.ndarray) -> np.ndarray:
    """Return unsigned integers in the order of floats."""
    kind = np.dtype(f"u{numbers.itemsize}")
    bits, sign = (numbers + 0).view(kind), kind.type(1 << (8 * numbers.itemsize - 1))  # no -0.0
    return np.where(bits & sign, ~bits, bits | sign)


def _scores(evict: Score, usage: RowUsage, name: str) -> np.ndarray:
    what = f"embedding {name!r}: evict={shown(evict)}"
    try:
        found = evict(usage)
    except Exception as error:  # the user's function may raise anything
        raise ConfigurationError(
            f"{what} raised {type(error).__name__}: {error}. Nothing was changed"
        ) from error
    wanted = usage.age.shape
    if (
        not isinstance(found, np.ndarray)
        or found.shape != wanted
        or found.dtype.kind not in "biuf"
        or not np.isfinite(scores := found.astype(np.float64)).all()
    ):
        raise ConfigurationError(
            f"{what} must return an array of {wanted[0]} finite numbers, a score for each row, "
            f"found {shown(found)}. Nothing was changed"
        )
    return scores


BLOCK = 1 << 16
"""Rows whose use is looked at together."""


def blocks(count: int, first: int = 0) -> Iterator[slice]:
    """Yield which rows of ``count`` are looked at together, from one on and then those before."""
    for start in range(first, count, BLOCK):
        yield slice(start, min(start + BLOCK, count))
    for start in range(0, first, BLOCK):
        yield slice(start, min(start + BLOCK, first))


def bound_of_lowest(order: np.ndarray, count: int) -> tuple[np.uint64, int]:
    """Return the highest of the ``count`` lowest numbers, and how many of these are equal to it.

    Parameters
    ----------
    order : numpy.ndarray
        Unsigned, ``(n,)``.
    count : int
        From 1 to n.
    """
    number = np.partition(order, count - 1)[count - 1]
    return np.uint64(number), count - int(np.count_nonzero(order < number))


def in_order(order: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return ids by their numbers, unsigned ``(n,)``; equal ones stay as they are."""
    if not ids.size:
        return ids
    # 16 bits at a time: numpy sorts these by radix.
    rest = order - order.min()
    for _ in range(0, int(rest.max()).bit_length(), 16):
        then = np.argsort(rest.astype(np.uint16), kind="stable")
        ids, rest = ids[then], rest[then] >> rest.dtype.type(16)
    return ids
