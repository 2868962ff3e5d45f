"""Which ids of a growing table get a row: always, by chance, or after some occurrences. Pure.

After the entry attributes of PaddlePaddle's sparse tables (``ProbabilityEntry``,
``CountFilterEntry``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from psnb._src.server.hashing import hash_ids
from psnb._src.server.kernels import read_only
from psnb._src.utils.checks import integer, is_number
from psnb._src.utils.config import Described
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

MOST_COUNT = 2**31 - 2
"""The hash map can count up to one more than this."""


@dataclass(frozen=True)
class Admission(Described, ABC):
    """Decides which ids get a row when they are pushed, or looked up for training.

    An id that is not admitted gives zeros, takes no gradient and costs no row. Once admitted it
    starts as the initializer says, and stays until `Embedding.shrink` removes it.
    """

    @property
    def min_count(self) -> int:
        """In how many lookups and pushes an id must appear before it gets a row."""
        return 1

    @abstractmethod
    def may_enter(self, ids: np.ndarray, seed: int) -> np.ndarray:
        """Return which of the ids (uint64, ``(n,)``) may ever get a row, bool ``(n,)``."""


@dataclass(frozen=True)
class Always(Admission):
    """Every id gets a row at first sight; the default."""

    def may_enter(self, ids: np.ndarray, seed: int) -> np.ndarray:
        return np.ones(ids.size, bool)


@dataclass(frozen=True)
class Probability(Admission):
    """A share of all ids get rows, the others never.

    Which ids these are depends on table and id alone, not on servers or the order of requests.
    (In Paddle an id may try again each time.)

    Parameters
    ----------
    probability : float
        Above 0, at most 1.

    Raises
    ------
    ConfigurationError
        If it is outside this range.
    """

    probability: float

    def __post_init__(self) -> None:
        if not is_number(self.probability) or not 0 < self.probability <= 1:
            raise ConfigurationError(f"{shown(self)}: probability must be above 0 and at most 1")

    def may_enter(self, ids: np.ndarray, seed: int) -> np.ndarray:
        hashed = np.empty(ids.size, np.uint64)
        hash_ids(read_only(ids), hashed)
        # Hashed twice, with the seed in between: independent of the choice of the shard and of the
        # row's first values.
        hash_ids(read_only(hashed ^ ~np.uint64(seed)), hashed)
        chosen: np.ndarray = (hashed >> np.uint64(11)) < np.uint64(self.probability * 2**53)
        return chosen


@dataclass(frozen=True)
class CountFilter(Admission):
    """An id gets a row with the ``count``-th lookup or push that contains it.

    A lookup or push that has an id several times counts once. (Paddle counts each time, and counts
    lookups alone.) A training step that looks an id up and pushes it counts twice. A closure's
    pushes count once, when it is committed. A waiting id takes a slot of the hash map. In a table
    with a bound no more ids wait than it may have rows: the least often seen are forgotten.

    Parameters
    ----------
    count : int
        At least 1; 1 admits an id at first sight.

    Raises
    ------
    ConfigurationError
        If it is not a whole number in this range.
    """

    count: int

    def __post_init__(self) -> None:
        count = integer(f"{shown(self)}: count", self.count, 1, MOST_COUNT)
        object.__setattr__(self, "count", count)

    @property
    def min_count(self) -> int:
        return self.count

    def may_enter(self, ids: np.ndarray, seed: int) -> np.ndarray:
        return np.ones(ids.size, bool)


ADMISSIONS: dict[str, type[Admission]] = {
    each.__name__: each for each in (Always, CountFilter, Probability)
}
"""All of psnb, by name."""
