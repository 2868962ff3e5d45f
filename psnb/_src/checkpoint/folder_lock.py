"""FolderLock: how processes and threads that use one folder meet. Pure.

It is the operating system's (``flock``), on a file. Each opening of the file has a lock of its own,
so two managers of one process meet as those of two do; and a lock goes with its process, however
that ends: nothing stays locked.
"""

from __future__ import annotations

import fcntl
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
        `EXCLUSIVE` or `SHARED`; with ``| AT_ONCE`` nothing is waited for.

    Attributes
    ----------
    file : file object
        The file.
    real : bool
        False where the file system has no locks, as some networks' have not: all get one then.

    Raises
    ------
    BlockingIOError
        If another has it and nothing is to be waited for.
    OSError
        If the file cannot be opened.
    """

    def __init__(self, path: Path, mode: str, how: int) -> None:
        with ExitStack() as opened:
            self.file: IO[Any] = opened.enter_context(open(path, mode))
            try:
                fcntl.flock(self.file, how)
                self.real = True
            except BlockingIOError:
                raise
            except OSError:
                self.real = False
            opened.pop_all()  # it stays open unless this was interrupted or in vain

    def release(self) -> None:
        """Unlock the file and close it; a second time does nothing."""
        if self.file.closed:
            return
        with self.file:
            if self.real:
                # Closing is not enough if a process was forked meanwhile, which has it open too.
                fcntl.flock(self.file, fcntl.LOCK_UN)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()
