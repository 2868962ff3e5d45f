"""Context: the state that all parts of an iteration share, such as seeds and options."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from psnb._src.data.random import mixed
from psnb._src.data.stages import PipelineProfile, StageCounters
from psnb._src.utils.interrupts import Lock
from psnb.errors import DatasetError

_logger = logging.getLogger("psnb")


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
    """The counts of an iteration.

    Attributes
    ----------
    errors_ignored : dict of int to int
        By place in the chain.
    stages : PipelineProfile
        What the stages have counted.
    empty_files : list of str
        Files without a record, as often as they were passed over.
    any_records : bool
        Whether any file had one.
    partitions : list
        What partitions it has read.
    """

    errors_ignored: dict[int, int] = field(default_factory=dict)
    partitions: list[list[Any]] = field(default_factory=list)
    stages: PipelineProfile = field(default_factory=PipelineProfile)
    empty_files: list[str] = field(default_factory=list)
    any_records: bool = False
    _lock: Lock = field(default_factory=Lock)  # guards the list of files, for a moment

    def add_empty(self, file: str) -> int:
        """Note a file without a record; return how many there are now."""
        with self._lock:
            self.empty_files.append(file)
            return len(self.empty_files)

    def check_files(self) -> None:
        """Raise `DatasetError` if files were read, and none has a record."""
        if self.empty_files and not self.any_records:
            raise nothing_in(self.empty_files)


def nothing_in(files: Sequence[str]) -> DatasetError:
    """Return the error that none of some files has a record."""
    if len(files) == 1:
        return DatasetError(f"{files[0]} is empty: it has no record")
    return DatasetError(f"all {len(files)} files are empty, from {files[0]} on: none has a record")


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
    stage : StageCounters or None
        What reads the part that gets this.
    """

    seed: int
    place: int = 0
    epoch: int = 0
    options: Options = Options()
    counters: Counters = field(default_factory=Counters)
    stage: StageCounters | None = None

    def note_empty(self, file: str) -> None:
        """Count a file without a record; say so of the first, as one may have been cut short."""
        if self.stage is not None:
            self.stage.empty_files += 1
        if self.counters.add_empty(file) == 1:
            _logger.warning(
                "%s is empty and passed over, further ones silently: stages() counts them", file
            )

    def child(self, index: int) -> Context:
        """Return the context for an input."""
        return replace(self, seed=mixed(self.seed, index), place=mixed(self.place, index))

    def read_by(self, stage: StageCounters) -> Context:
        """Return the context for what a stage reads."""
        return replace(self, stage=stage)

    def element(self, number: int) -> Context:
        """Return the context for the dataset that is made from an element."""
        epoch = mixed(self.epoch, number) if number else self.epoch
        return replace(self, seed=mixed(self.seed, number), epoch=epoch)

    def repeated(self, epoch: int) -> Context:
        """Return the context for another epoch; epoch 0 is like the first reading."""
        return replace(self, epoch=mixed(self.epoch, epoch)) if epoch else self
