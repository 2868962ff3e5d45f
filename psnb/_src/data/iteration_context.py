"""What an iteration tells all its parts: where random numbers come from, and options. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from psnb._src.data.random_numbers import mixed

AUTOTUNE = -1
"""A number that psnb is to choose, and to change as it sees fit."""


@dataclass(frozen=True)
class Options:
    """How datasets run.

    Parameters
    ----------
    deterministic : bool
        Whether parallel maps keep the order of elements, unless told otherwise.
    threads : int or None
        How many threads a parallel map with ``AUTOTUNE`` has; None: one a processor.
    """

    deterministic: bool = True
    threads: int | None = None

    def parallelism(self, asked: int) -> int:
        """Return how many threads to use."""
        return asked if asked != AUTOTUNE else self.threads or os.cpu_count() or 1


@dataclass
class Counters:
    """What an iteration counts, each number by the place in the chain that counts it."""

    errors_ignored: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """What an iteration hands down from each part to what it reads from.

    Attributes
    ----------
    seed : int
        For shuffles that have none of their own: differs from iteration to iteration, from place
        to place in the chain and, for datasets in datasets, from element to element.
    place : int
        Differs from place to place in the chain, and nothing else.
    epoch : int
        0 the first time that a dataset is read; another number each time it is repeated.
    options : Options
        Those that the nearest `Dataset.with_options` set.
    counters : Counters
        The iteration's own.
    """

    seed: int
    place: int = 0
    epoch: int = 0
    options: Options = Options()
    counters: Counters = field(default_factory=Counters)

    def child(self, index: int) -> Context:
        """Return that of an input."""
        return replace(self, seed=mixed(self.seed, index), place=mixed(self.place, index))

    def element(self, number: int) -> Context:
        """Return that of the dataset that is made of an element."""
        epoch = mixed(self.epoch, number) if number else self.epoch
        return replace(self, seed=mixed(self.seed, number), epoch=epoch)

    def repeated(self, epoch: int) -> Context:
        """Return that of one more reading; the 0th is like the first."""
        return replace(self, epoch=mixed(self.epoch, epoch)) if epoch else self
