"""QueueDataset: Paddle's name for reading files as a stream."""

from __future__ import annotations

import os
from collections.abc import Sequence

from psnb._src.data.dataset import Dataset
from psnb._src.data.formats import MAX_RECORD_BYTES, Slot
from psnb._src.data.iterator import DatasetIterator


class QueueDataset:
    """Batches from files in Paddle's MultiSlot text, of which nothing is kept.

    Iterating over it reads the files once. ``coordinator.create_per_worker_dataset`` of one, with
    ``sharding="dynamic"``, shares the files among the workers. It is `Dataset.multi_slot` under the
    name that Paddle's users know; to shuffle, see `InMemoryDataset`.

    Parameters
    ----------
    files : path or sequence of paths
        What to read, with patterns; anything that fsspec opens.
    slots : sequence of Slot
        What a line has, in this order. Dense ones become arrays, sparse ones `Ragged`.
    batch_size : int
        Lines a batch; the last one of each file may have fewer.
    threads : int
        Files that are read at the same time, each by a thread of its own.
    pipe_command : str, optional
        A command of the shell that each file goes through.
    max_record_bytes : int
        How long a line may be; longer ones are refused, and no memory is taken for them.

    Attributes
    ----------
    dataset : Dataset
        The same as a chain, to go on with.

    Raises
    ------
    DatasetError
        If no file matches.
    ConfigurationError
        If an argument cannot be.
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        slots: Sequence[Slot],
        batch_size: int,
        threads: int = 1,
        pipe_command: str | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self.dataset = Dataset.multi_slot(
            files, slots, batch_size, threads, pipe_command, max_record_bytes
        )

    def __iter__(self) -> DatasetIterator:
        return iter(self.dataset)

    def __repr__(self) -> str:
        return f"QueueDataset\n{self.dataset!r}"
