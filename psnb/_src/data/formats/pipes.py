"""Reading a file through a shell command.

Threads: one feeds the command if it cannot open the file itself, another reads the command's
standard error. Both end with the command, which ends with the reading.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from psnb._src.data.formats.files import compression_of, opened, reading
from psnb._src.data.formats.records import CHUNK_BYTES, ByteWindow
from psnb._src.utils.paths import is_local
from psnb.errors import DatasetError

_KEPT = 4096
"""How many of the last bytes of standard error are kept for the message."""

_END_SECONDS = 5.0
"""Seconds that threads may take to end after the command, which may have left children behind."""


@contextmanager
def piped(
    path: str, compression: str | None, command: str, offset: int, limit: int
) -> Iterator[ByteWindow]:
    """Run a command of the shell on a file; yield the window on its output, from an offset on.

    Raises
    ------
    DatasetError
        If the file cannot be read, or the output ends and the command has failed: any part of a
        pipeline, where the shell can tell (bash and newer others).
    """
    with opened(path, compression) as file:
        direct = is_local(path) and compression_of(path, compression) is None
        with reading(path):
            process = subprocess.Popen(
                _shell(command),
                stdin=file if direct else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        run = _PipedCommand(process, path, command, None if direct else file)
        try:
            window = ByteWindow(run, path, limit=limit)
            if offset > 0:
                window.discard(offset)
            else:
                window.more()
            yield window
        finally:
            run.end()


def _shell(command: str) -> list[str]:
    """Return how to run a command so that it fails if any part of a pipeline in it does."""
    found = shutil.which("bash")
    if found is not None:
        return [found, "-o", "pipefail", "-c", command]
    # Not every other shell has it: then the last part of a pipeline decides.
    return ["/bin/sh", "-c", f"(set -o pipefail) 2>/dev/null && set -o pipefail\n{command}"]


class _PipedCommand:
    """A running command; its output is read like a file."""

    def __init__(self, process: subprocess.Popen[bytes], path: str, command: str, file: Any):
        self._process = process
        self._path = path
        self._command = command
        self._complaints = b""
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._listen, name="psnb-pipe-errors")]
        if file is not None:
            feeder = threading.Thread(target=self._feed, args=[file], name="psnb-pipe-feeder")
            self._threads.append(feeder)
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def readinto(self, buffer: Any) -> int:
        """Fill a part of a buffer; return how much of it, 0 at the end of a command that did well.

        Raises
        ------
        DatasetError
            At the end, if the command failed or could not be fed.
        """
        count: int = self._process.stdout.readinto(buffer)  # type: ignore[union-attr]
        if count:
            return count
        status = self._process.wait()
        self._join()
        if self._failure is not None:
            with reading(self._path):
                raise self._failure
        # With pipefail, a part whose reader had seen enough (`zcat | head`) ends the shell so.
        if status not in (0, 128 + signal.SIGPIPE):
            how = f"exit status {status}" if status > 0 else f"signal {-status}"
            complaint = self._complaints.decode("utf-8", "replace").strip()
            raise DatasetError(
                f"{self._path}: the command {self._command!r} ended with {how}"
                + (f"; it wrote: {complaint}" if complaint else " and wrote no error")
            )
        return 0

    def end(self) -> None:
        """Kill the command and all that it started, if it is still there."""
        if self._process.returncode is None:
            # It was not waited for yet, so its process id is still its own.
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(_END_SECONDS)

    def _listen(self) -> None:
        errors = self._process.stderr
        assert errors is not None
        while piece := errors.read(_KEPT):
            self._complaints = (self._complaints + piece)[-_KEPT:]

    def _feed(self, file: Any) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        buffer = np.empty(CHUNK_BYTES, np.uint8).data
        try:
            while count := file.readinto(buffer):
                left = buffer[:count]
                while left:
                    left = left[pipe.write(left) :]
        except BrokenPipeError:
            # The command has seen enough; how it ends says whether that is well.
            pass
        except Exception as error:  # raised in the reader's thread
            self._failure = error
        finally:
            with suppress(OSError):
                pipe.close()
