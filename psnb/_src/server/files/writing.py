"""TableWriting: writes snapshots of a server's tables into files, while the tables change. Pure.

A file has a part for each table. One of the server's `StandbyThreads` writes, syncs and computes
checksums. It asks the server's one thread for the data, a chunk at a time, of which each takes less
than a millisecond; the next one is asked for while one is written. It ends when all is written,
something fails, or it is stopped.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain

import numpy as np

from psnb._src.server.files.file_work import FileWork
from psnb._src.server.memory import refusal
from psnb._src.server.snapshots import Snapshot
from psnb._src.server.tables.saved_files import FilePart
from psnb._src.utils.files import NewFile
from psnb._src.utils.standby import StandbyThreads
from psnb._src.utils.threads import Answer
from psnb.errors import CheckpointError, PsnbError

Soon = Callable[[Callable[[], object]], object]
"""Calls a function in the server's one thread, soon; raises RuntimeError if that has ended."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_CHUNK = 1 << 20
_LONGEST_WAIT = 600.0
"""Seconds in which the server's thread must give a chunk."""


class TableWriting(FileWork):
    """The files that a server writes into a folder.

    Used by the server's one thread, but for what is marked.

    Parameters
    ----------
    server : str
        What people call the server.
    folder : str
        Where the files are to be, which is there.
    files : mapping of str to mapping of str to Snapshot
        The snapshots of each file, by their names; closed when they are written.
    soon : callable
        Calls functions in the server's one thread.
    threads : StandbyThreads
        One of them writes.
    """

    def __init__(
        self,
        server: str,
        folder: str,
        files: Mapping[str, Mapping[str, Snapshot]],
        soon: Soon,
        threads: StandbyThreads,
    ) -> None:
        super().__init__(server, threads)
        self._folder, self._soon, self._files = folder, soon, files

    def stop(self) -> None:
        """End it; unfinished files are removed. Idempotent."""
        super().stop()
        for parts in self._files.values():
            for taken in parts.values():
                taken.close()

    # The rest runs in the thread that writes.

    def _run(self) -> dict[str, FilePart]:
        written: dict[str, FilePart] = {}
        for name, parts in self._files.items():
            try:
                with NewFile(self._folder, name) as file:
                    for key, taken in parts.items():
                        written[key] = self._write(file, name, taken)
            except PsnbError:
                raise
            except MemoryError as error:
                raise refusal(error, f"writing {name}", self._server) from None
            except Exception as error:  # also what a file system of fsspec may raise
                raise CheckpointError(
                    f"{self._server} cannot write {name}: {type(error).__name__}: {error}; that "
                    f"was into {self._folder!r}. {_what_to_do(error)}"
                ) from error
        return written

    def _write(self, file: NewFile, name: str, taken: Snapshot) -> FilePart:
        self._check()
        forms = {name: (taken.form[name].dtype, shape) for name, shape in taken.shapes.items()}
        forms |= {name: (array.dtype, array.shape) for name, array in taken.tail.items()}
        # The largest numbers first: so each array begins at a multiple of its numbers' size.
        forms = dict(sorted(forms.items(), key=lambda each: (-each[1][0].itemsize, each[0])))
        start = file.begin_part()
        for chunk in self._chunks(taken, forms):
            file.write(chunk)
            self._nbytes += chunk.nbytes
        self._soon(taken.close)
        arrays = {each: (dtype.name, shape) for each, (dtype, shape) in forms.items()}
        return FilePart(name, start, file.checksum, arrays)

    def _chunks(self, taken: Snapshot, names: Iterable[str]) -> Iterator[memoryview]:
        """Yield arrays of a snapshot, in pieces; the next ones are asked for meanwhile."""
        before: Answer[list[np.ndarray]] | None = None
        for pieces in chain(self._pieces(taken, names), [None]):
            coming: Answer[list[np.ndarray]] = Answer()
            if pieces is not None:
                self._soon(partial(coming.give, _read, taken, pieces))
            for array in () if before is None else before.result(_LONGEST_WAIT):
                self._check()
                yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            before = coming

    def _pieces(self, taken: Snapshot, names: Iterable[str]) -> Iterator[list[_Piece]]:
        """Yield which rows of which arrays are read at once, where the table is changed."""
        pieces: list[_Piece] = []
        left = _CHUNK
        for name in names:
            whole = name in taken.tail
            form = taken.tail[name] if whole else taken.form[name]
            width = max(1, form.itemsize * math.prod(form.shape[1:]))
            rows = len(np.atleast_1d(form)) if whole else taken.rows
            step = max(1, rows if whole else _CHUNK // width)
            for start in range(0, rows, step):
                stop = min(start + step, rows)
                pieces.append((name, start, stop))
                left -= width * (stop - start)
                if left <= 0:
                    yield pieces
                    pieces, left = [], _CHUNK
        if pieces:
            yield pieces


_Piece = tuple[str, int, int]
"""An array, and which of its rows."""


def _read(taken: Snapshot, pieces: Iterable[_Piece]) -> list[np.ndarray]:
    return [
        taken.tail[name] if name in taken.tail else taken.column(name, start, stop)
        for name, start, stop in pieces
    ]


def _what_to_do(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return "Make room there, or keep fewer checkpoints: max_to_keep="
    return (
        "Servers write checkpoints themselves: all of them must reach the directory, on disks that "
        "they share or by an address like s3://bucket/folder"
    )
