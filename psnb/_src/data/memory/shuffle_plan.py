"""ShufflePlan: which example of a dataset is in which partition, and in which order. Pure.

A dataset is cut into partitions, each in some process. An example has a permanent number: its
source and its position there. Its partition after a shuffle, and its position in that partition,
depend only on that number and the shuffle's seed. So the order of messages does not matter, and a
lost partition can be made again from the sources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from psnb._src.data.random import hashes, mixed
from psnb.errors import ConfigurationError

_BITS = 40
"""A source has fewer than 2**40 examples, and a dataset fewer than 2**24 sources."""


def numbered(source: int, first: int, count: int) -> np.ndarray:
    """Return the numbers of consecutive examples of a source, uint64 ``(count,)``."""
    return np.arange(first, first + count, dtype=np.uint64) | np.uint64(source << _BITS)


@dataclass(frozen=True)
class Stage:
    """One shuffle.

    Attributes
    ----------
    seed : int
        The seed of its random numbers.
    groups : tuple of tuples of int
        The partitions that mix with each other; every partition is in one group.
    """

    seed: int
    groups: tuple[tuple[int, ...], ...]

    def destinations(self, partitions: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return the new partitions of examples in ``partitions``; all are int64 ``(n,)``."""
        members = np.array([partition for group in self.groups for partition in group])
        sizes = np.array([len(group) for group in self.groups])
        group_of = np.empty(len(members), np.int64)
        group_of[members] = np.repeat(np.arange(len(sizes)), sizes)
        group = group_of[partitions]
        share = (hashes(mixed(self.seed, 1), numbers) >> np.uint64(11)) * 2.0**-53
        begins: np.ndarray = np.cumsum(sizes) - sizes
        found: np.ndarray = members[begins[group] + (share * sizes[group]).astype(np.int64)]
        return found

    def refines(self, other: Stage) -> bool:
        """Return whether each group is within a group of the other."""
        return all(any(set(mine) <= set(its) for its in other.groups) for mine in self.groups)


@dataclass(frozen=True)
class SlotShuffle:
    """An exchange of some columns' values among the examples of each partition.

    Attributes
    ----------
    seed : int
        The seed of its random numbers.
    slots : tuple of str
        The columns, all of which an example gets from one other example.
    """

    seed: int
    slots: tuple[str, ...]

    def donors(self, numbers: np.ndarray) -> np.ndarray:
        """Return from which example of a partition each one gets the values, int64 ``(n,)``.

        From none that is itself: in a random order, each gets them from the one before.
        """
        order = np.argsort(hashes(mixed(self.seed, 3), numbers))
        donors = np.empty(len(numbers), np.int64)
        donors[order] = np.roll(order, 1)
        return donors


@dataclass(frozen=True)
class ShufflePlan:
    """The places of all examples of a dataset.

    Attributes
    ----------
    partitions : int
        The number of partitions, which is also the number of sources.
    stages : tuple of Stage
        The shuffles that matter; without any, each partition is its source in the original order.
    exchange : SlotShuffle or None
        What is exchanged when a partition is read; nothing is moved for it.
    """

    partitions: int
    stages: tuple[Stage, ...] = ()
    exchange: SlotShuffle | None = None

    def shuffled(self, seed: int, groups: Iterable[Sequence[int]] | None = None) -> ShufflePlan:
        """Return the plan after one more shuffle, of all partitions or within groups of them."""
        groups = [range(self.partitions)] if groups is None else groups
        stage = Stage(seed, tuple(tuple(group) for group in groups))
        stages = list(self.stages)
        while stages and stages[-1].refines(stage):
            stages.pop()
        return ShufflePlan(self.partitions, (*stages, stage), self.exchange)

    def exchanging(self, slots: Iterable[str], seed: int) -> ShufflePlan:
        """Return the plan with other slots exchanged; with none, as the examples were read.

        Raises
        ------
        ConfigurationError
            If the examples were not shuffled globally: the examples of a partition are neighbours
            then.
        """
        names = tuple(slots)
        if names and self.partitions > 1 and not any(len(each.groups) == 1 for each in self.stages):
            raise ConfigurationError(
                "slots_shuffle exchanges values among examples that lie together, which are "
                "neighbours in the files until they are shuffled: call global_shuffle() first"
            )
        return replace(self, exchange=SlotShuffle(seed, names) if names else None)

    def destinations(self, source: int, numbers: np.ndarray) -> np.ndarray:
        """Return in which partitions examples of a source are, int64 ``(n,)``."""
        partitions = np.full(len(numbers), source)
        for stage in self.stages:
            partitions = stage.destinations(partitions, numbers)
        return partitions

    def order(self, numbers: np.ndarray) -> np.ndarray:
        """Return the permutation that sorts the examples of a partition, int64 ``(n,)``."""
        if self.stages:
            numbers = hashes(mixed(self.stages[-1].seed, 2), numbers)
        return np.argsort(numbers)

    def sources(self, partitions: Iterable[int]) -> list[int]:
        """Return the sources whose examples may be in these partitions."""
        found = set(partitions)
        for stage in reversed(self.stages):
            found = {
                partition for group in stage.groups if found & set(group) for partition in group
            }
        return sorted(found)

    @cached_property
    def fingerprint(self) -> str:
        """A short text that differs between different plans."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]
