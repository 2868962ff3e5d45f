"""Context: what all parts of an iteration share, such as seeds and options. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from psnb._src.data.random_numbers import mixed
from psnb._src.data.stage_book import StageBook

if TYPE_CHECKING:
    from psnb._src.data.stage_counts import StageCounts

AUTOTUNE = -1
"""In place of a number: psnb chooses it, and may change it."""


@dataclass(frozen=True)
class Options:
    """How datasets run.

    Parameters
    ----------
    deterministic : bool
        Whether parallel maps keep the order of elements, by default.
    threads : int or None
        How many threads a parallel map with ``AUTOTUNE`` has; None: one per processor.
    """

    deterministic: bool = True
    threads: int | None = None

    def parallelism(self, asked: int) -> int:
        """Return how many threads to use."""
        return asked if asked != AUTOTUNE else self.threads or os.cpu_count() or 1


@dataclass
class Counters:
    """The counts of an iteration, by place in the chain."""

    errors_ignored: dict[int, int] = field(default_factory=dict)
    stages: StageBook = field(default_factory=StageBook)


@dataclass(frozen=True)
class Context:
    """Passed from each part of a chain to its inputs.

    Attributes
    ----------
    seed : int
        For shuffles without their own seed. It differs between iterations, between places in the
        chain and, for datasets in datasets, between elements.
    place : int
        Differs between places in the chain, and depends on nothing else.
    epoch : int
        0 the first time that a dataset is read; another number each time it is repeated.
    options : Options
        The options of the nearest `Dataset.with_options`.
    counters : Counters
        The iteration's own.
    stage : StageCounts or None
        What reads the part that gets this.
    """

    seed: int
    place: int = 0
    epoch: int = 0
    options: Options = Options()
    counters: Counters = field(default_factory=Counters)
    stage: StageCounts | None = None

    def child(self, index: int) -> Context:
        """Return the context for an input."""
        return replace(self, seed=mixed(self.seed, index), place=mixed(self.place, index))

    def read_by(self, stage: StageCounts) -> Context:
        """Return the context for what a stage reads."""
        return replace(self, stage=stage)

    def element(self, number: int) -> Context:
        """Return the context for the dataset that is made from an element."""
        epoch = mixed(self.epoch, number) if number else self.epoch
        return replace(self, seed=mixed(self.seed, number), epoch=epoch)

    def repeated(self, epoch: int) -> Context:
        """Return the context for another epoch; epoch 0 is like the first reading."""
        return replace(self, epoch=mixed(self.epoch, epoch)) if epoch else self
