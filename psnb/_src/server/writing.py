"""TableWriting: writes snapshots of a server's tables into files, while the tables change. Pure.

One of the server's `StandbyThreads` writes, syncs and computes checksums. It asks the server's one
thread for the data, a chunk at a time, of which each takes less than a millisecond; the next one is
asked for while one is written. It ends when all is written, something fails, or it is stopped.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from psnb._src.server.file_work import FileWork
from psnb._src.server.memory import refusal
from psnb._src.server.snapshots import Snapshot
from psnb._src.utils.files import NewFile, WrittenFile
from psnb._src.utils.mapped_arrays import safetensors_head
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
    files : mapping of str to Snapshot
        Each file's content; closed when it is written.
    soon : callable
        Calls functions in the server's one thread.
    threads : StandbyThreads
        One of them writes.
    """

    def __init__(
        self,
        server: str,
        folder: str,
        files: Mapping[str, Snapshot],
        soon: Soon,
        threads: StandbyThreads,
    ) -> None:
        super().__init__(server, threads)
        self._folder, self._soon = folder, soon
        self._files = dict(files)

    def stop(self) -> None:
        """End it; unfinished files are removed. Idempotent."""
        super().stop()
        for taken in self._files.values():
            taken.close()

    # The rest runs in the thread that writes.

    def _run(self) -> dict[str, WrittenFile]:
        written: dict[str, WrittenFile] = {}
        for name, taken in self._files.items():
            try:
                written[name] = self._write(name, taken)
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

    def _write(self, name: str, taken: Snapshot) -> WrittenFile:
        self._check()
        with NewFile(self._folder, name) as file:
            for chunk in self._chunks(taken):
                file.write(chunk)
                self._nbytes += chunk.nbytes
        self._soon(taken.close)
        return file.written(self._server)

    def _chunks(self, taken: Snapshot) -> Iterator[memoryview]:
        """Yield the safetensors file of a snapshot, in the order of its bytes."""
        forms = {name: (taken.form[name].dtype, shape) for name, shape in taken.shapes.items()}
        forms |= {name: (array.dtype, array.shape) for name, array in taken.tail.items()}
        # The largest numbers first: so each array begins at a multiple of its numbers' size.
        forms = dict(sorted(forms.items(), key=lambda each: (-each[1][0].itemsize, each[0])))
        yield memoryview(safetensors_head(forms))
        before: Answer[np.ndarray] | None = None
        for content in self._contents(taken, forms):
            coming: Answer[np.ndarray] = Answer()
            self._soon(partial(coming.give, content))
            if before is not None:
                yield self._received(before)
            before = coming
        if before is not None:
            yield self._received(before)

    def _contents(
        self, taken: Snapshot, names: Iterable[str]
    ) -> Iterator[Callable[[], np.ndarray]]:
        """Yield what returns each chunk, to be called where the table is changed."""
        for name in names:
            if name in taken.tail:
                yield partial(taken.tail.__getitem__, name)
                continue
            form = taken.form[name]
            step = max(1, _CHUNK // max(1, form.itemsize * math.prod(form.shape[1:])))
            for start in range(0, taken.rows, step):
                yield partial(taken.column, name, start, min(start + step, taken.rows))

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
