"""QueueDataset: `Dataset.multi_slot` under the name that Paddle's users know."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self

from psnb._src.data.dataset import Dataset
from psnb._src.data.file_sources import Paths
from psnb._src.data.formats.multi_slot import Slot
from psnb._src.data.formats.records import MAX_RECORD_BYTES
from psnb._src.data.iterator import DatasetIterator
from psnb._src.utils.foreign_names import FixedAttributes


class QueueDataset(FixedAttributes):
    """Batches from files in Paddle's MultiSlot text; nothing is kept in memory.

    Each iteration reads the files once. ``coordinator.create_per_worker_dataset`` with
    ``sharding="dynamic"`` distributes the files over the workers. It is `Dataset.multi_slot` under
    the name that Paddle's users know; to shuffle, see `InMemoryDataset`.

    Parameters
    ----------
    files : path or sequence of paths
        The files to read, with patterns; anything that fsspec opens.
    slots : sequence of Slot
        The slots of a line, in order. Dense ones become arrays, sparse ones `Ragged`.
    batch_size : int
        Lines per batch, also of several files. The last one of each thread may have fewer; on a
        cluster that is in each split.
    threads : int
        How many threads read at the same time, each its share of the files.
    pipe_command : str, optional
        A shell command that each file is piped through.
    max_record_bytes : int
        Limit of a line in bytes; longer ones are refused before memory is allocated for them.
    queue_size : int, optional
        How many batches are read ahead, by a thread of its own, or by each of several; by default 2
        with several, else none. Paddle's queue holds 100.

    Attributes
    ----------
    dataset : Dataset
        The same as a `Dataset`, to which further methods can be applied.

    Raises
    ------
    DatasetError
        If no file matches.
    ConfigurationError
        If an argument is invalid.
    """

    dataset: Dataset

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        slots: Sequence[Slot],
        batch_size: int,
        threads: int = 1,
        pipe_command: str | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        queue_size: int | None = None,
    ) -> None:
        self.dataset = Dataset.multi_slot(
            files, slots, batch_size, threads, pipe_command, max_record_bytes, queue_size
        )

    def with_files(self, files: Paths) -> Self:
        """Return the same over other files; Paddle's ``set_filelist``.

        Parameters
        ----------
        files : path or sequence of paths
            The files to read, with patterns.

        Raises
        ------
        DatasetError
            If no file matches a pattern.
        """
        made = object.__new__(type(self))
        made.dataset = self.dataset.with_files(files)
        return made

    def __iter__(self) -> DatasetIterator:
        return iter(self.dataset)

    def __repr__(self) -> str:
        return f"QueueDataset\n{self.dataset!r}"
