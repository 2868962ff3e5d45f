"""What a server reads of checkpoints: files that it has checked, and rows for its tables. Pure.

A restore has a key. Under it a server first checks files, in one of its `StandbyThreads`
(`FileChecking`); those that are not on its disks it copies to a temporary folder. Then it may be
asked to change tables by what is in them (`ReadsFiles`): in the same threads such an operation
becomes one with the rows, which is run, and repeated by replicas, like any other. So files are read
where their rows go, and what is under way of them is small.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from psnb._src.server import operations as ops
from psnb._src.server.file_work import FileWork
from psnb._src.server.tables.checks import (
    COUNTS,
    SavedShard,
    check_saved,
    check_saved_files,
)
from psnb._src.server.tables.operations import FinishTable, OnTables, PutSegment
from psnb._src.server.tables.saved_files import SealedFile, read_segment, read_waiting
from psnb._src.utils.paths import RemotePath, is_local
from psnb._src.utils.standby import StandbyThreads
from psnb.errors import CheckpointError


def checked_files(asked: ops.SavedFiles, files: Sequence[SealedFile]) -> ops.CheckedFiles | None:
    """Check what is in the files of a shard.

    Raises
    ------
    ConfigurationError, OSError
        If they cannot be loaded.
    """
    if asked.expected is None:
        return None
    saved = [
        SavedShard(asked.number, asked.shards, each.forms, each.read, part=each is not files[0])
        for each in files
    ]
    for each in saved:
        check_saved(asked.expected, each)
    rows = check_saved_files(asked.expected, saved, asked.owners)
    return found_in(files, rows)


def found_in(files: Sequence[SealedFile], rows: np.ndarray) -> ops.CheckedFiles:
    """Return what is in files that were checked."""
    counts = [each.forms["values"][1][0] if "ids" in each.forms else 0 for each in files]
    last = files[-1]
    updates = last.read(COUNTS) if COUNTS in last.forms else None
    return ops.CheckedFiles(counts, rows.tolist(), int(last.read("step")[0]), updates)


class FileChecking(FileWork):
    """Checks files.

    Parameters
    ----------
    server : str
        What people call the server.
    threads : StandbyThreads
        One of them reads.

    Attributes
    ----------
    shards : list of SavedFiles
        What is to be checked; other files may follow when these are.
    files : dict of str to SealedFile
        By address, those that were checked.
    """

    # Not soon: while others check what is larger, or the notebook reads a file itself, nothing is
    # asked for. What stays behind a notebook that died are copies of files.
    ticks = 60

    def __init__(self, server: str, threads: StandbyThreads) -> None:
        super().__init__(server, threads)
        self.shards: Sequence[ops.SavedFiles] = ()
        self.files: dict[str, SealedFile] = {}
        self._copies: Path | None = None
        self._coming: Path | None = None

    def check(self, shards: Sequence[ops.SavedFiles]) -> None:
        """Begin to check files, unless it was asked to do so already."""
        if shards != self.shards:
            self.shards = shards
            self.begin()

    def progress(self) -> ops.FileProgress:
        found = super().progress()
        try:
            coming = 0 if self._coming is None else self._coming.stat().st_size
        except OSError:
            coming = 0
        return msgspec.structs.replace(found, nbytes=found.nbytes + coming)

    def stop(self) -> None:
        """End it, and remove copies of files; idempotent."""
        super().stop()
        self._threads.submit(self._remove)

    def read_here(self, operation: ops.ReadsFiles) -> OnTables:
        """Return an operation with what it shall read; any thread.

        Raises
        ------
        OSError
            If that cannot be read.
        """
        self._ticks = 0
        match operation:
            case ops.PutSaved(table, _, _, file, start, stop, at, owner):
                segment = read_segment(self._known(file), start, stop, at, owner)
                return OnTables((table,), PutSegment(segment))
            case ops.FinishSaved(table, _, _, files, owner, tail):
                waiting = read_waiting([self._known(file) for file in files], owner)
                return OnTables((table,), FinishTable({**tail, **waiting}))
        raise CheckpointError(f"nothing is read for {operation}")

    def _known(self, address: str) -> SealedFile:
        try:
            return self.files[address]
        except KeyError:
            raise CheckpointError(f"{self._server} has not checked {address}") from None

    # The rest runs in the threads.

    def _run(self) -> list[ops.CheckedFiles | str | None]:
        return [self._checked(each) for each in self.shards]

    def _checked(self, asked: ops.SavedFiles) -> ops.CheckedFiles | str | None:
        self._check()
        try:
            files = [self._opened(*each) for each in asked.files.items()]
            found = checked_files(asked, files)
            for each in files:
                each.check()
        except Exception as error:  # the notebook looks itself, and raises its own
            self._check()
            return f"{type(error).__name__}: {error}"
        self.files |= zip(asked.files, files, strict=True)
        return found

    def _opened(self, address: str, expected: str) -> SealedFile:
        if address in self.files:
            return self.files[address]
        path = Path(address) if is_local(address) else self._fetched(RemotePath(address))
        return SealedFile(path, expected, self._note_read)

    def _fetched(self, address: RemotePath) -> Path:
        if self._copies is None:
            self._copies = Path(tempfile.mkdtemp(prefix="psnb-restore-"))
        self._coming = self._copies / uuid.uuid4().hex
        try:
            address.fetch(self._coming)
            self._nbytes += self._coming.stat().st_size
            return self._coming
        finally:
            self._coming = None

    def _note_read(self, nbytes: int) -> None:
        self._nbytes += nbytes
        self._check()

    def _remove(self) -> None:
        with suppress(Exception):  # of another thread, which may still write there
            self._ended.result()
        if self._copies is not None:
            shutil.rmtree(self._copies, ignore_errors=True)
