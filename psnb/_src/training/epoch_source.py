"""EpochSource: the dataset of each epoch, on the workers. One thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psnb._src.coordinator.coordinator import ClusterCoordinator
from psnb._src.coordinator.datasets.leased import Epochs, LeasedIterator
from psnb._src.coordinator.datasets.partitioned import PartitionedDataset
from psnb._src.data.dataset import Dataset
from psnb._src.data.memory.in_memory import InMemoryDataset
from psnb._src.data.queue_dataset import QueueDataset
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

Files = Callable[[int], Any] | Sequence[Any]
"""The files of each epoch: a function of its number, from 1 on, or one entry for each epoch."""


class EpochSource:
    """Begins epochs; keeps a dataset on the workers as long as the epochs have the same.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        Puts datasets onto the workers.
    dataset, files
        As for `Trainer.train_from_dataset`.

    Raises
    ------
    ConfigurationError
        If the dataset cannot be leased, or has no files to replace.
    """

    def __init__(self, coordinator: ClusterCoordinator, dataset: Any, files: Files | None) -> None:
        if not callable(dataset):
            _check(dataset)
        if files is not None and not isinstance(dataset, Dataset | QueueDataset | InMemoryDataset):
            raise ConfigurationError(
                f"files= replaces the files of a dataset of psnb.data, "
                f"found {shown(dataset)}: give the "
                "dataset itself, not what create_per_worker_dataset returns"
            )
        self._coordinator, self._dataset, self._files = coordinator, dataset, files
        self._source: Any = None  # `_made` is of it, and kept while it stays the same
        self._made: Epochs | None = None
        self._shuffles = 0  # how often that was shuffled

    def begin(self, epoch: int, state: Mapping[str, Any] | None = None) -> LeasedIterator:
        """Return the iterator of an epoch; with a state, it continues from there.

        A dataset in memory is shuffled first, by a seed that is the epoch's number.
        """
        if self._shuffles > epoch:  # it goes back: what is in memory has another order by now
            self.close()
        # Cut as it was, though there may be another number of workers.
        made = self._place(
            self._of(epoch), epoch, None if state is None else state["dataset"]["splits"]
        )
        if made is self._made and isinstance(made, PartitionedDataset):
            while self._shuffles < epoch:
                self._shuffles += 1
                made.global_shuffle(self._shuffles)
        return made.iterator(state)

    def check(self) -> Epochs | None:
        """Check that the dataset can be leased and has its files, before an epoch needs it.

        Not of one in memory, which would be loaded now; then None is returned.

        Raises
        ------
        ConfigurationError, DatasetError
            If it cannot, or has not.
        """
        _check(self._dataset)  # no function of the epoch
        if isinstance(self._dataset, InMemoryDataset):
            return None
        return self._place(self._dataset, 1)

    def whole(self) -> Epochs:
        """Return the dataset as it is, for closures that read whole splits."""
        return self._place(self._dataset, 1)

    def _place(self, source: Any, epoch: int, splits: int | None = None) -> Epochs:
        """Put a dataset onto the workers, unless it is there."""
        if isinstance(source, Epochs):
            return source
        if self._made is None or source is not self._source:
            self.close()
            made = self._coordinator.create_per_worker_dataset(
                source, sharding="dynamic", splits=splits
            )
            assert isinstance(made, Epochs)
            if isinstance(made, PartitionedDataset):
                made.load_into_memory()
            # So a dataset for all epochs has the same order if training continues in another
            # process.
            varies = self._files is not None or callable(self._dataset)
            self._shuffles = epoch - 1 if varies else 0
            self._made, self._source = made, source
        return self._made

    def close(self) -> None:
        """Let the workers forget what was made here."""
        if isinstance(self._made, PartitionedDataset):
            self._made.release_memory()
        self._made = self._source = None

    def _of(self, epoch: int) -> Any:
        if self._files is not None:
            if callable(self._files):
                files = self._files(epoch)
            elif epoch <= len(self._files):
                files = self._files[epoch - 1]
            else:
                raise ConfigurationError(
                    f"files= has {len(self._files)} entries, one an epoch, and none for epoch "
                    f"{epoch}"
                )
            if isinstance(files, list | tuple) and not files:
                raise ConfigurationError(f"files= has none for epoch {epoch}: give one at least")
            return self._dataset.with_files(files)
        if callable(self._dataset):
            found = self._dataset(epoch)
            _check(found)
            return found
        return self._dataset


def _check(dataset: Any) -> None:
    if not isinstance(dataset, Dataset | QueueDataset | InMemoryDataset | Epochs):
        raise ConfigurationError(
            "a trainer takes a dataset of psnb.data, or what create_per_worker_dataset(..., "
            "sharding='dynamic') returns, or of one in memory; Dataset.from_table takes a frame; "
            f"found {shown(dataset)}"
        )
