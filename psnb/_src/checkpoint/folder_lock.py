"""FolderLock: a lock between processes and threads that use one folder. Pure.

It is the operating system's lock (``flock``) on a file. Each opening of the file has its own lock,
so it works between two managers of one process as between processes. The lock ends with its
process, however that ends: nothing stays locked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

EXCLUSIVE, SHARED, AT_ONCE = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB


class FolderLock:
    """A file that is open and locked until it is released; one thread's at a time.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    mode : str
        As for `open`. NFS locks a file exclusively only if it is open for writing.
    how : int
        `EXCLUSIVE` or `SHARED`; with ``| AT_ONCE`` it does not wait.

    Attributes
    ----------
    file : file object
        The file.
    real : bool
        False if the file system has no locks, like some network file systems: then nobody is kept
        out.

    Raises
    ------
    BlockingIOError
        If another holder has it, and ``how`` says not to wait.
    OSError
        If the file cannot be opened, or is no plain file: to open a pipe would block, and a link
        may lead anywhere.
    """

    def __init__(self, path: Path, mode: str, how: int) -> None:
        with ExitStack() as opened:
            self.file: IO[Any] = opened.enter_context(open(path, mode, opener=_plain))
            try:
                fcntl.flock(self.file, how)
                self.real = True
            except BlockingIOError:
                raise
            except OSError:
                self.real = False
            opened.pop_all()  # it stays open unless this failed or was interrupted

    def release(self) -> None:
        """Unlock the file and close it; a second time does nothing."""
        if self.file.closed:
            return
        with self.file:
            if self.real:
                # Closing is not enough: a process that was forked meanwhile has the file open too.
                fcntl.flock(self.file, fcntl.LOCK_UN)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


def _plain(path: str, flags: int) -> int:
    """Open a file, unless it is a link, a pipe or a device."""
    opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is no plain file", path)
    return opened
