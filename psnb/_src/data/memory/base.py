"""DatasetInMemory: the common part of datasets in the memory of one process and of workers.

Only it knows generation and layout; it sends them with every call. A shuffle fills the next
generation, which becomes the dataset when everything has arrived: one that fails changes nothing.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

from psnb._src.data.memory.memory import Memory
from psnb._src.data.memory.shuffle_plan import ShufflePlan
from psnb._src.data.memory.stores import Stores, by_owner
from psnb._src.data.node import nothing_in
from psnb._src.data.random import as_seed
from psnb._src.utils.foreign_names import FixedAttributes
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, WorkerLostError

_SHUFFLE_ATTEMPTS = 3
"""How often a shuffle is tried while workers are lost in the middle of it."""


class LoadUnderWay(Protocol):
    """A generation that is being read, partition by partition."""

    @property
    def generation(self) -> int:
        """Return which."""

    def wait(self) -> None:
        """Wait for the end; raise the first error."""

    def end(self) -> None:
        """Begin no further partitions, and wait for the ones that are being read."""


class DatasetInMemory(FixedAttributes, ABC):
    """Base of the datasets in memory: loading, shuffling and releasing their examples."""

    def __init__(self) -> None:
        self._generations = itertools.count(1)
        self._generation, self._loaded = 0, False
        self._partitions = 0  # unknown, perhaps, until something is loaded
        self._layout = ShufflePlan(0)
        self._loading: LoadUnderWay | None = None

    @property
    @abstractmethod
    def _stores(self) -> Stores:
        """Where the examples are; there may be none before something is loaded."""

    @property
    @abstractmethod
    def _files(self) -> list[str]:
        """The files that are read, if one at least must have a record."""

    @abstractmethod
    def _load(self, generation: int) -> LoadUnderWay:
        """Begin to read everything."""

    @abstractmethod
    def _free(self, generation: int) -> None:
        """Free the memory of all examples; ``generation`` comes after theirs."""

    def load_into_memory(self) -> None:
        """Read everything, and replace what was read before.

        On a cluster, a worker that is free reads the next partition.

        Raises
        ------
        DatasetError
            If something cannot be read; the error names file and record. Or if all files are empty.
            The content of the memory stays.
        WorkerLostError
            On a cluster, if there are no workers, or too many were lost.
        ClosureCancelledError
            If one of your closures fails meanwhile; `ClusterCoordinator.join` raises its error.
        """
        self.preload_into_memory()
        self.wait_preload_done()

    def preload_into_memory(self) -> None:
        """Begin to read everything, and return immediately; does nothing if it has begun already.

        Workers read when nothing else is queued: for example the next dataset during training.
        """
        if self._loading is None:
            self._loading = self._load(next(self._generations))

    def wait_preload_done(self) -> None:
        """Wait until everything is read.

        Raises
        ------
        DatasetError, WorkerLostError, ClosureCancelledError
            As for `load_into_memory`.
        ConfigurationError
            If `preload_into_memory` was not called.
        """
        if self._loading is None:
            raise ConfigurationError("nothing is being read: preload_into_memory() begins it")
        loading, self._loading = self._loading, None
        try:
            loading.wait()
            if files := self._files:
                self._stores.call_all(Memory.survey, loading.generation)
                held = [each.held for each in self._stores.contents.values()]
                # With a worker that is lost some partitions are missing now.
                whole = sum(len(each.partitions) for each in held) == self._partitions
                if whole and not any(each.examples for each in held):
                    raise nothing_in(files)
        except BaseException:  # whatever ends it, an interrupt too: loaded partitions are dropped
            loading.end()
            self._stores.call_all(Memory.forget, loading.generation, self._generation)
            raise
        self._become(loading.generation, ShufflePlan(self._partitions))
        self._loaded = True

    def local_shuffle(self, seed: int | None = None) -> None:
        """Shuffle the examples of each process; nothing is sent between workers.

        Parameters
        ----------
        seed : int, optional
            Makes the order the same for the same partitions on the same workers.

        Raises
        ------
        ConfigurationError, DatasetError, WorkerLostError
            As for `global_shuffle`.
        """
        self._shuffle("local_shuffle", seed)

    def global_shuffle(self, seed: int | None = None) -> None:
        """Shuffle all examples among each other.

        On a cluster, the partitions are spread evenly over the present workers. It needs memory for
        the examples twice while it runs; examples beyond ``memory_limit`` go to files.

        Parameters
        ----------
        seed : int, optional
            The same seed gives the same order, whichever worker has which partitions.

        Raises
        ------
        ConfigurationError
            If nothing is in memory.
        DatasetError
            If there is no room; then nothing is changed.
        WorkerLostError
            If workers are lost several times in a row; nothing has changed, and their partitions
            are made again from the files.
        """
        self._shuffle("global_shuffle", seed)

    def slots_shuffle(self, slots: Sequence[str], seed: int | None = None) -> None:
        """Exchange the values of some slots among the examples, to see what they are worth.

        Evaluate a model before and after: the metric is worse by what these slots tell. An example
        gets the values of all of them from one other example, at random. It is so for all
        iterations until the next `slots_shuffle`, which begins with the values as they were read,
        or `load_into_memory`. Nothing is moved in memory: a partition's values are exchanged when
        it is read, among its examples, so these must be shuffled globally before.

        Parameters
        ----------
        slots : sequence of str
            Columns of the examples, which are dicts; an empty one ends the exchange.
        seed : int, optional
            The same seed gives the same exchange.

        Raises
        ------
        ConfigurationError
            If nothing is in memory, or it was not shuffled globally; or if slots are no names.
        DatasetError
            From an iteration: if there is no such slot.
        """
        self._check_loaded()
        listed = isinstance(slots, Iterable) and not isinstance(slots, str)
        names = tuple(slots) if listed else ()
        if not listed or not all(isinstance(each, str) for each in names):
            raise ConfigurationError(
                f"slots_shuffle takes a list of names of slots, found {shown(slots)}"
            )
        self._layout = self._layout.exchanging(names, as_seed("slots_shuffle", seed))

    def release_memory(self) -> None:
        """Forget all examples; `load_into_memory` reads them again. Idempotent."""
        if self._loading is not None:
            self._loading.end()
            self._loading = None
        self._generation, self._loaded = next(self._generations), False
        self._layout = ShufflePlan(self._partitions)
        self._free(self._generation)

    def _shuffle(self, how: str, seed: int | None) -> None:
        seed = as_seed(how, seed)
        for attempt in range(1, _SHUFFLE_ATTEMPTS + 1):
            owners = self._restored()
            generation = next(self._generations)
            try:
                if how == "global_shuffle":
                    layout = self._layout.shuffled(seed)
                    targets = self._stores.spread(self._partitions)
                else:
                    layout = self._layout.shuffled(seed, by_owner(owners).values())
                    targets = owners
                self._stores.move(self._generation, owners, generation, layout, targets)
            except BaseException as error:  # whatever ends it: the partitions stay as they were
                self._stores.call_all(Memory.forget, generation, self._generation)
                if not isinstance(error, WorkerLostError) or attempt == _SHUFFLE_ATTEMPTS:
                    raise
            else:
                self._become(generation, layout)
                return

    def _restored(self) -> dict[int, str]:
        """Ask which store has which partition, have lost ones made again; return the owners."""
        self._check_loaded()
        return self._stores.restore(self._generation, self._layout)

    def _check_loaded(self) -> None:
        if self._loading is not None:
            self.wait_preload_done()
        if not self._loaded:
            raise ConfigurationError("nothing is in memory: call load_into_memory() first")

    def _become(self, generation: int, layout: ShufflePlan) -> None:
        self._generation, self._layout = generation, layout
        self._stores.call_all(Memory.keep_only, generation)
