"""Stores: where the partitions of a dataset are, and moving them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from psnb._src.data.memory.memory import Memory, StoreContents
from psnb._src.data.memory.shuffle_plan import ShufflePlan
from psnb.errors import InternalError, WorkerLostError

_ATTEMPTS = 5
"""How often lost partitions are made again while more are lost."""

Call = tuple[str, Callable[..., StoreContents], tuple[Any, ...]]
"""The name of a store, a method of `Memory`, and its arguments."""


class Stores(ABC):
    """A `Memory` in each of some processes; for one thread at a time.

    They are asked before each operation: processes may die, and come back without partitions. A
    partition that no process has any more is made again.

    Attributes
    ----------
    contents : dict of str to StoreContents
        What each had when all were last called; any thread may read it.
    """

    def __init__(self) -> None:
        self.contents: dict[str, StoreContents] = {}

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Return the names of the stores that are there."""

    @abstractmethod
    def ask(self, calls: Iterable[Call]) -> list[StoreContents]:
        """Make calls; every store must answer."""

    @abstractmethod
    def try_to_ask(self, calls: Iterable[Call]) -> dict[str, StoreContents]:
        """Make calls; return the answers of the stores that were not lost."""

    def call_all(self, method: Callable[..., StoreContents], *arguments: Any) -> None:
        """Call a method of all stores, and note what they have; lost ones are left out."""
        self.contents = self.try_to_ask([(name, method, arguments) for name in self.names()])

    def restore(self, generation: int, layout: ShufflePlan) -> dict[int, str]:
        """Ask which store has which partition, have lost ones made again; return the owners.

        Raises
        ------
        WorkerLostError
            If there are no stores, or they are lost several times in a row while they make
            partitions.
        DatasetError
            If a partition cannot be made.
        """
        for _ in range(_ATTEMPTS):
            self.call_all(Memory.survey, generation)
            if not self.contents:
                raise WorkerLostError("no worker is there that has, or could have, the dataset")
            owners = {
                partition: name
                for name, each in self.contents.items()
                for partition in each.held.partitions
            }
            lost = [partition for partition in range(layout.partitions) if partition not in owners]
            if not lost:
                return owners
            names = sorted(self.contents, key=lambda name: len(self.contents[name].held.partitions))
            shares = {name: lost[start :: len(names)] for start, name in enumerate(names)}
            self.try_to_ask(
                (name, Memory.make, (generation, layout, share))
                for name, share in shares.items()
                if share
            )
        raise WorkerLostError(
            f"{len(lost)} of {layout.partitions} partitions of the dataset could not be made "
            "again: each time workers were lost. If that is for want of memory, use a lower "
            "memory_limit, or more partitions (splits=)"
        )

    def spread(self, partitions: int) -> dict[int, str]:
        """Return owners for the partitions, spread evenly over the stores."""
        names = sorted(self.contents)
        return {partition: names[partition % len(names)] for partition in range(partitions)}

    def move(
        self,
        old: int,
        owners: Mapping[int, str],
        new: int,
        layout: ShufflePlan,
        targets: Mapping[int, str],
    ) -> None:
        """Fill a new generation from an old one, and check that everything has arrived.

        Raises
        ------
        WorkerLostError
            If a store is lost, or its process was started again.
        DatasetError
            If a store has no room.
        """
        belonging = by_owner(targets)
        begun = self.ask(
            (name, Memory.begin, (new, numbers)) for name, numbers in belonging.items()
        )
        where = {name: each.address for name, each in zip(belonging, begun, strict=True)}
        to = new, layout, [where[targets[partition]] for partition in range(layout.partitions)]
        moved = self.ask(
            (owner, Memory.scatter, (old, partition, *to)) for partition, owner in owners.items()
        )
        there = self.ask((name, Memory.survey, (new,)) for name in belonging)
        if {each.part for each in there} != {each.part for each in begun}:
            raise WorkerLostError("a worker was started again while examples were sent to it")
        sent = sum(each.sent for each in moved)
        arrived = sum(each.held.examples for each in there)
        if arrived != sent:
            raise InternalError(f"of {sent} examples that were sent, {arrived} have arrived")


def by_owner(owners: Mapping[int, str]) -> dict[str, list[int]]:
    """Return each owner's partitions."""
    partitions: dict[str, list[int]] = {}
    for partition, owner in sorted(owners.items()):
        partitions.setdefault(owner, []).append(partition)
    return partitions


class LocalMemory(Stores):
    """The only store is in this process."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory

    def names(self) -> list[str]:
        return [""]

    def ask(self, calls: Iterable[Call]) -> list[StoreContents]:
        return [method(self.memory, *arguments) for _, method, arguments in calls]

    def try_to_ask(self, calls: Iterable[Call]) -> dict[str, StoreContents]:
        return {name: method(self.memory, *arguments) for name, method, arguments in calls}
