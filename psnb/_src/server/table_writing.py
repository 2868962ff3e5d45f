"""TableWriting: writes snapshots of a server's tables into files, while the tables change. Pure.

A thread ``psnb-writing`` writes, syncs and computes checksums. What it writes it asks of the
server's one thread, a piece at a time, of which each takes less than a millisecond; the next one is
asked for while one is written. It ends when all is written, something fails, or it was stopped.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from psnb._src.new_file import NewFile, WrittenFile
from psnb._src.server.operations import WritingProgress
from psnb._src.server.snapshot import Snapshot
from psnb._src.server.table_file import TableFile
from psnb._src.threads import Answer
from psnb.errors import CheckpointError, PsnbError

Soon = Callable[[Callable[[], object]], object]
"""Calls a function in the server's one thread, soon; raises RuntimeError if that has ended."""

TICKS = 2
"""Minutes after which a writing that nobody asks for ends: its notebook is gone."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_PIECE = 1 << 20
_LONGEST_WAIT = 600.0
"""Seconds in which the server's thread must give a piece."""


class TableWriting:
    """The files that a server writes into a folder.

    Used by the server's one thread, but for what its own thread calls.

    Parameters
    ----------
    server : str
        What people call the server.
    folder : str
        Where the files are to be, which is there.
    files : mapping of str to Snapshot
        Each file's content; closed when it is written.
    soon : callable
        Calls functions in the server's one thread.
    """

    def __init__(self, server: str, folder: str, files: Mapping[str, Snapshot], soon: Soon) -> None:
        self._server, self._folder, self._soon = server, folder, soon
        self._files = dict(files)
        self._ticks = self._nbytes = 0
        self._written: dict[str, WrittenFile] = {}
        self._ended: Answer[None] = Answer()
        self._stopped = False
        run = partial(self._ended.give, self._run)
        threading.Thread(target=run, name="psnb-writing", daemon=True).start()

    def progress(self) -> WritingProgress:
        """Return how far it is.

        Raises
        ------
        CheckpointError
            If it failed.
        """
        self._ticks = 0
        if not self._ended.done():
            return WritingProgress(self._nbytes, None)
        self._ended.result()
        return WritingProgress(self._nbytes, self._written)

    def tick(self) -> bool:
        """Count a minute; return whether somebody is still there who asks."""
        self._ticks += 1
        return self._ticks < TICKS

    def stop(self) -> None:
        """End it; what is not whole is removed. Idempotent."""
        self._stopped = True
        for taken in self._files.values():
            taken.close()

    # What follows runs in its own thread.

    def _run(self) -> None:
        for name, taken in self._files.items():
            try:
                self._written[name] = self._write(name, taken)
            except PsnbError:
                raise
            except Exception as error:  # also what a file system of fsspec may raise
                raise CheckpointError(
                    f"{self._server} cannot write {name}: {type(error).__name__}: {error}; that "
                    f"was into {self._folder!r}. {_what_to_do(error)}"
                ) from error

    def _write(self, name: str, taken: Snapshot) -> WrittenFile:
        self._check()
        with NewFile(self._folder, name) as file:
            for piece in self._pieces(TableFile(taken)):
                file.write(piece)
                self._nbytes += piece.nbytes
        self._soon(taken.close)
        return file.written(self._server)

    def _check(self) -> None:
        if self._stopped:
            raise CheckpointError(f"{self._server} was told to stop writing")

    def _pieces(self, content: TableFile) -> Iterator[memoryview]:
        yield memoryview(content.head)
        before: Answer[np.ndarray] | None = None
        for piece in content.pieces(_PIECE):
            coming: Answer[np.ndarray] = Answer()
            self._soon(partial(coming.give, content.content, piece))
            if before is not None:
                yield self._received(before)
            before = coming
        if before is not None:
            yield self._received(before)

    def _received(self, answer: Answer[np.ndarray]) -> memoryview:
        array = answer.result(_LONGEST_WAIT)
        self._check()
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _what_to_do(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return "Make room there, or keep fewer checkpoints: max_to_keep="
    return (
        "Servers write checkpoints themselves: all of them must reach the directory, on disks that "
        "they share or by an address like s3://bucket/folder"
    )
