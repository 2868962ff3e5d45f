"""MemoryPiece: the examples of one piece, in memory or in a file. Thread-safe."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable, Iterator

import cloudpickle

from psnb._src.data.memory.numbered_examples import NumberedExamples, joined
from psnb._src.data.memory.shuffle_plan import ShufflePlan
from psnb.errors import DatasetError


def over() -> DatasetError:
    """Return the error for access to examples that were dropped."""
    return DatasetError(
        "the dataset was loaded, shuffled or released since this iteration began: begin another "
        "one, iter(dataset)"
    )


class MemoryPiece:
    """Collects chunks as they come, and returns them in the order of a `ShufflePlan`.

    Attributes
    ----------
    examples, bytes_in_memory, bytes_on_disk : int
        Its size; may be read without the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the chunks and the file
        self._path = ""
        self._chunks: list[NumberedExamples] = []
        self._ordered = self._dropped = False
        self.examples = self.bytes_in_memory = self.bytes_on_disk = 0

    def add(self, chunk: NumberedExamples) -> None:
        """Add some examples."""
        with self._lock:
            self._chunks.append(chunk)
            self._ordered = False
            self.examples += len(chunk.numbers)
            self.bytes_in_memory += chunk.nbytes

    def chunks(self) -> Iterator[NumberedExamples]:
        """Yield all chunks that are there now, in any order.

        Raises
        ------
        DatasetError
            If the piece was dropped, or the file cannot be read.
        """
        with self._lock:  # the chunks in memory may be spilled meanwhile
            self._check()
            in_memory, end = list(self._chunks), self.bytes_on_disk
        yield from self._written(end)
        yield from in_memory

    def read(self, layout: ShufflePlan) -> NumberedExamples | None:
        """Return all examples in order; None if there are none. Needs memory for them twice.

        Chunks in memory are kept in this order: all calls must pass the same plan.

        Raises
        ------
        DatasetError
            As for `chunks`.
        """
        with self._lock:
            self._check()
            if not self.examples:
                return None
            if self._ordered:
                return self._chunks[0]
            written = list(self._written(self.bytes_on_disk))
            together = joined([*written, *self._chunks])
            found = together.take(layout.order(together.numbers))
            if not written:
                self._chunks, self._ordered = [found], True
                self.bytes_in_memory = found.nbytes
            return found

    def spill(self, make_path: Callable[[], str]) -> None:
        """Write the chunks in memory to a file; ``make_path`` names it the first time.

        Raises
        ------
        DatasetError
            If that fails; then nothing is lost.
        """
        with self._lock:
            end = self.bytes_on_disk
            try:
                self._path = self._path or make_path()
                # Not appended, so that the rest of a failed write is overwritten.
                with open(self._path, "r+b" if end else "wb") as file:
                    file.seek(end)
                    for chunk in self._chunks:
                        cloudpickle.dump(chunk, file, protocol=5)
                    file.truncate()
                    size = file.tell()
            except OSError as error:
                raise DatasetError(
                    f"{self.bytes_in_memory:,} bytes of a dataset are beyond its memory_limit and "
                    f"cannot be written to disk: {error}. Free room there, raise "
                    "memory_limit, or use more workers"
                ) from error
            self._chunks, self._ordered = [], False
            self.bytes_in_memory, self.bytes_on_disk = 0, size

    def drop(self) -> None:
        """Forget everything; idempotent."""
        with self._lock:
            self._chunks, self._dropped = [], True
            if self.bytes_on_disk:
                with contextlib.suppress(OSError):
                    os.remove(self._path)
            self.examples = self.bytes_in_memory = self.bytes_on_disk = 0

    def _check(self) -> None:
        if self._dropped:
            raise over()

    def _written(self, end: int) -> Iterator[NumberedExamples]:
        if not end:
            return
        try:
            with open(self._path, "rb") as file:
                while file.tell() < end:
                    yield pickle.load(file)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise DatasetError(
                f"{self._path}, where a dataset keeps what is beyond its memory_limit, cannot be "
                f"read any more: {error}. Load the dataset again"
            ) from error
