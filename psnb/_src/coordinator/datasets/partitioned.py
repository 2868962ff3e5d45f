"""PartitionedDataset: a dataset in the workers' memory; each worker has some of its pieces.

Only the notebook knows generation and layout (see `psnb._src.data.memory`); it sends them with
every call. A shuffle fills the next generation, which becomes the dataset when everything has
arrived; so a shuffle that fails changes nothing.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psnb._src.coordinator.closures import DEFAULT_RETRIES, Chooser, RemoteValue, ScheduleOptions
from psnb._src.coordinator.datasets.dataset_services import DatasetServices
from psnb._src.coordinator.datasets.leased import Epochs, LeasedIterator
from psnb._src.coordinator.datasets.partition_statistics import PartitionStatistics
from psnb._src.coordinator.datasets.per_worker import PerWorkerValues
from psnb._src.coordinator.datasets.piece_owners import PieceOwners, by_owner
from psnb._src.coordinator.datasets.whole_splits import WholeSplits
from psnb._src.data import InMemoryDataset, ShufflePlan, Spec, as_seed, identity, slot_names, splits
from psnb._src.excerpt import counted
from psnb._src.foreign_names import SaysWhatToUse
from psnb._src.monitor import WorkerStatistics
from psnb._src.runtime import worker_memory
from psnb.errors import ConfigurationError, WorkerLostError

_LAST = -(1 << 62)
_ATTEMPTS = 3
"""How often a shuffle is tried while workers are lost in the middle of it."""


@dataclass(frozen=True)
class _LoadInProgress:
    """A generation that is being read, piece by piece."""

    generation: int
    remotes: list[RemoteValue]
    withdraw: Callable[[], None]

    def end(self) -> None:
        """Cancel pieces that wait to be read, and wait for those that are being read."""
        self.withdraw()
        for remote in self.remotes:
            remote.wait()


class PartitionedDataset(Epochs[LeasedIterator], SaysWhatToUse):
    """An `InMemoryDataset` on the workers; ``iter`` of it begins an epoch.

    `ClusterCoordinator.create_per_worker_dataset` returns it. In an epoch every worker leases the
    pieces that it has, so every example is used exactly once, whatever process dies: pieces of a
    lost worker are made again from the files, on others.

    Workers that join have no pieces until a `global_shuffle`, and the pieces of a lost worker go to
    one other worker: shuffle globally after either.

    In a shuffle workers send examples directly to each other. While it runs, the examples take
    twice the memory; what is beyond ``memory_limit`` goes to files in the worker's folder.

    Methods wait, for free threads on the workers too, except `preload_into_memory`, `statistics`
    and `progress`. Only one thread at a time may call them.
    """

    def __init__(self, dataset: InMemoryDataset, pieces: int, place: DatasetServices) -> None:
        sources = splits(dataset.source, pieces)
        self._place = place
        # Only their spec is used: what workers iterate over is in their memory.
        self._batches = dataset.source.ragged_batch(dataset.batch_size)
        arguments = dataset.seed, dataset.batch_size, dataset.memory_limit, uuid.uuid4().hex
        make = worker_memory.make_worker_memory
        self._memory = PerWorkerValues(place.registry, make, (sources, *arguments))
        self._holders = PieceOwners(self._memory, place.pinned)
        self._pieces = len(sources)
        self._known = {"splits": pieces, "of": identity(sources), "batch": dataset.batch_size}
        self._generations = itertools.count(1)
        self._generation, self._loaded = 0, False
        self._layout = ShufflePlan(self._pieces)
        self._loading: _LoadInProgress | None = None

    @property
    def element_spec(self) -> Spec:
        """Shapes and dtypes of the batches; see `psnb.data.Dataset.element_spec`."""
        return self._batches.element_spec

    def load_into_memory(self) -> None:
        """Have the workers read the whole dataset; it replaces what was read before.

        A worker that is free reads the next piece.

        Raises
        ------
        DatasetError
            If something cannot be read; the message names file and record. What was in memory
            stays.
        WorkerLostError
            If there are no workers, or too many were lost.
        CancelledError
            If one of your closures fails meanwhile; `ClusterCoordinator.join` raises its error.
        """
        self.preload_into_memory()
        self.wait_preload_done()

    def preload_into_memory(self) -> None:
        """Have the workers begin to read, and return at once; no effect if they are reading.

        They read when nothing else is queued: for example the next dataset during training.
        """
        if self._loading is None:
            generation = next(self._generations)

            def anyone(worker: WorkerStatistics) -> bool:
                return True

            # After all that is queued: it may be read while something else trains.
            options = ScheduleOptions(DEFAULT_RETRIES, _LAST, anyone, detached=True)
            arguments = self._memory, generation
            self._loading = _LoadInProgress(
                generation,
                [
                    self._place.schedule(worker_memory.load, (*arguments, number), options)
                    for number in range(self._pieces)
                ],
                lambda: self._place.pinned.withdraw(anyone, "the dataset is not loaded any more"),
            )

    def wait_preload_done(self) -> None:
        """Wait until everything is read.

        Raises
        ------
        DatasetError, WorkerLostError, CancelledError
            As for `load_into_memory`.
        ConfigurationError
            If `preload_into_memory` was not called.
        """
        if self._loading is None:
            raise ConfigurationError("nothing is being read: preload_into_memory() begins it")
        loading, self._loading = self._loading, None
        try:
            with self._place.progress():
                for remote in loading.remotes:
                    remote.fetch()
        except BaseException:
            loading.end()
            self._holders.tell(worker_memory.forget, loading.generation, self._generation)
            raise
        self._become(loading.generation, ShufflePlan(self._pieces))
        self._loaded = True

    def local_shuffle(self, seed: int | None = None) -> None:
        """Shuffle the examples of each worker; nothing is sent between workers.

        Parameters
        ----------
        seed : int, optional
            Makes the order the same for the same pieces on the same workers.

        Raises
        ------
        ConfigurationError, DatasetError, WorkerLostError
            As for `global_shuffle`.
        """
        self._shuffle(seed, spread=False)

    def global_shuffle(self, seed: int | None = None) -> None:
        """Shuffle all examples, across the workers.

        The pieces are spread evenly over the workers that are there.

        Parameters
        ----------
        seed : int, optional
            Makes the order the same each time, whichever worker has which pieces.

        Raises
        ------
        ConfigurationError
            If nothing is in memory.
        DatasetError
            If a worker has no room; nothing has changed.
        WorkerLostError
            If workers are lost several times in a row; nothing has changed, and their pieces are
            made again from the files.
        """
        self._shuffle(seed, spread=True)

    def slots_shuffle(self, slots: Sequence[str], seed: int | None = None) -> None:
        """Exchange the values of some slots among the examples, to see what they are worth.

        Evaluate a model before and after: the metric is worse by what these slots tell. An example
        gets the values of all of them from one other example, at random. It is so for all
        iterations until the next `slots_shuffle`, which begins with the values as they were read,
        or `load_into_memory`. Nothing is moved in memory: a piece's values are exchanged when it
        is read, among its examples, so these must be shuffled globally before.

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
        names = slot_names(slots)
        self._layout = self._layout.exchanging(names, as_seed("slots_shuffle", seed))

    def release_memory(self) -> None:
        """Have the workers forget all examples; `load_into_memory` reads them again. Idempotent."""
        if self._loading is not None:
            self._loading.end()
            self._loading = None
        self._loaded = False
        self._become(next(self._generations), ShufflePlan(self._pieces))

    def statistics(self) -> PartitionStatistics:
        """Return how many examples are in memory, and how much of it they take.

        As of the last call of another method; cheap, any thread. Paddle's ``get_memory_data_size``
        and ``get_shuffle_data_size`` are ``examples`` here.
        """
        return self._holders.statistics(self._pieces)

    def _begin(self, state: Mapping[str, Any] | None) -> LeasedIterator:
        owners = self._restored()
        # Of the order of the examples, too: it must have been shuffled with the same seeds.
        dataset = {**self._known, "shuffled": self._layout.fingerprint}
        epoch = self._place.leases.open(self._pieces, state, owners, dataset)
        place, make = self._place, worker_memory.make_memory_iterator
        arguments = self._memory, self._generation, self._layout
        batches = self._batches
        return LeasedIterator(
            place.registry,
            place.leases,
            epoch,
            make,
            arguments,
            lambda: batches.element_spec,
        )

    def whole_splits(self) -> WholeSplits:
        """Return the pieces for closures that read one each; for psnb only."""
        owners, present = self._restored(), self._place.leases.present

        def chooser(owner: str) -> Chooser:
            # If its owner is lost, another worker makes the piece again.
            return lambda worker: worker.name == owner or owner not in present()

        arguments = self._memory, self._generation, self._layout
        pieces = PerWorkerValues(self._place.registry, worker_memory.make_memory_splits, arguments)
        return WholeSplits(pieces, [chooser(owners[number]) for number in range(self._pieces)])

    def __repr__(self) -> str:
        now = self.statistics()
        return (
            f"<psnb.PartitionedDataset of {counted(now.examples, 'example')} in "
            f"{counted(now.pieces, 'piece')} on {counted(len(now.workers), 'worker')}>"
        )

    def _shuffle(self, seed: int | None, *, spread: bool) -> None:
        seed = as_seed("global_shuffle" if spread else "local_shuffle", seed)
        for attempt in range(1, _ATTEMPTS + 1):
            owners = self._restored()
            generation = next(self._generations)
            try:
                if spread:
                    layout = self._layout.shuffled(seed)
                    targets = self._holders.spread(self._pieces)
                else:
                    layout = self._layout.shuffled(seed, by_owner(owners).values())
                    targets = owners
                self._holders.move(self._generation, owners, generation, layout, targets)
            except BaseException as error:
                self._holders.tell(worker_memory.forget, generation, self._generation)
                if not isinstance(error, WorkerLostError) or attempt == _ATTEMPTS:
                    raise
            else:
                self._become(generation, layout)
                return

    def _restored(self) -> dict[int, str]:
        """Ask which worker has which piece, have lost pieces made again; return the owners."""
        self._check_loaded()
        return self._holders.restore(self._generation, self._layout)

    def _check_loaded(self) -> None:
        if self._loading is not None:
            self.wait_preload_done()
        if not self._loaded:
            raise ConfigurationError("nothing is in memory: call load_into_memory() first")

    def _become(self, generation: int, layout: ShufflePlan) -> None:
        self._generation, self._layout = generation, layout
        self._holders.tell(worker_memory.keep_only, generation)
