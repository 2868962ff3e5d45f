"""What a server reads of checkpoints: parts of files, once checked, for its tables. Pure.

A restore has a key. Under it a server first checks parts, in one of its `StandbyThreads`
(`FileChecking`); those that are not on its disks it copies to a temporary folder. Then it may be
asked to change tables by what is in them (`ReadsFiles`): in the same threads such an operation
becomes one with the rows, which is run, and repeated by replicas, like any other. So files are read
where their rows go, and what is under way of them is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from psnb._src.server import operations as ops
from psnb._src.server.files.file_work import FileWork
from psnb._src.server.files.partial_copy import PartialCopy
from psnb._src.server.tables.checks import (
    COUNTS,
    MINUTES,
    REMOVED,
    SavedShard,
    check_saved,
    check_saved_parts,
)
from psnb._src.server.tables.operations import (
    FinishTable,
    OnTables,
    PutSegment,
    RemoveRows,
    Segment,
)
from psnb._src.server.tables.saved_files import (
    FilePart,
    PartKey,
    SealedPart,
    owned,
    read_segment,
    read_waiting,
    used_later,
)
from psnb._src.utils.paths import RemotePath, is_local
from psnb._src.utils.standby import StandbyThreads
from psnb.errors import CheckpointError

_PASSES = 8
"""How often all ids are read to compare them: a server has memory for an eighth of them."""


def checked_parts(asked: ops.SavedParts, parts: Sequence[SealedPart]) -> ops.CheckedParts | None:
    """Check what is in the parts of a shard.

    Raises
    ------
    ConfigurationError, OSError
        If they cannot be loaded.
    """
    if asked.expected is None:
        return None
    saved = [
        SavedShard(asked.number, asked.shards, each.forms, each.read, part=each is not parts[0])
        for each in parts
    ]
    for each in saved:
        check_saved(asked.expected, each, _PASSES)
    rows = check_saved_parts(asked.expected, saved, asked.owners, _PASSES)
    return found_in(parts, rows)


def found_in(parts: Sequence[SealedPart], rows: np.ndarray) -> ops.CheckedParts:
    """Return what is in parts that were checked."""
    counts = [each.forms["values"][1][0] if "ids" in each.forms else 0 for each in parts]
    removed = [each.forms[REMOVED][1][0] if REMOVED in each.forms else 0 for each in parts]
    last = parts[-1]
    updates = last.read(COUNTS) if COUNTS in last.forms else None
    step = int(last.read("step")[0])
    minutes = int(last.read(MINUTES)[0]) if MINUTES in last.forms else 0
    return ops.CheckedParts(counts, removed, rows.tolist(), step, minutes, updates)


_NOTHING: tuple[tuple[PartKey, int, int] | None, Segment] = None, {}


class FileChecking(FileWork):
    """Checks parts of files.

    Parameters
    ----------
    server : str
        What people call the server.
    threads : StandbyThreads
        One of them reads.

    Attributes
    ----------
    shards : list of SavedParts
        What is to be checked; others may follow when these are.
    parts : dict of tuple to SealedPart
        Those that were checked.
    """

    # Not soon: while others check what is larger, or the notebook reads a file itself, nothing is
    # asked for. What stays behind a notebook that died are copies of files.
    ticks = 60

    def __init__(self, server: str, threads: StandbyThreads) -> None:
        super().__init__(server, threads)
        self.shards: Sequence[ops.SavedParts] = ()
        self.parts: dict[PartKey, SealedPart] = {}
        self._copies: dict[str, PartialCopy] = {}  # by address
        self._read = _NOTHING  # the last rows of which several shards here may take theirs

    def check(self, shards: Sequence[ops.SavedParts]) -> None:
        """Begin to check parts, unless it was asked to do so already."""
        if shards != self.shards:
            self.shards = shards
            self.begin()

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
            case ops.PutSaved(table, _, _, part, start, stop, at, owner, later):
                rows = self._rows(part, start, stop, at, kept=owner is not None)
                rows = used_later(rows, later)
                segment = rows if owner is None else owned(rows, "ids", owner)
                return OnTables((table,), PutSegment(segment))
            case ops.RemoveSaved(table, _, _, part, start, stop, owner):
                ids = self._known(part).read(REMOVED, start, stop)
                ids = ids if owner is None else ids[owner.takes(ids)]
                return OnTables((table,), RemoveRows(ids))
            case ops.FinishSaved(table, _, _, parts, owner, tail):
                waiting = read_waiting([*map(self._known, parts)], owner)
                return OnTables((table,), FinishTable({**tail, **waiting}))
        raise CheckpointError(f"nothing is read for {operation}")

    def _rows(self, key: PartKey, start: int, stop: int, at: int | None, *, kept: bool) -> Segment:
        known, rows = self._read  # once: others may read at the same time
        if known != (key, start, stop):
            rows, self._read = {}, _NOTHING  # so that there are not two at a time
            rows = read_segment(self._known(key), start, stop, at)
            self._read = ((key, start, stop), rows) if kept else _NOTHING
        return rows

    def _known(self, key: PartKey) -> SealedPart:
        try:
            return self.parts[key]
        except KeyError:
            raise CheckpointError(f"{self._server} has not checked {key[0]}") from None

    # The rest runs in the threads.

    def _run(self) -> list[ops.CheckedParts | str | None]:
        return [self._checked(each) for each in self.shards]

    def _checked(self, asked: ops.SavedParts) -> ops.CheckedParts | str | None:
        self._check()
        try:
            parts = [*map(self._opened, asked.parts)]
            found = checked_parts(asked, parts)
            for each in parts:
                each.check()
        except Exception as error:  # the notebook looks itself, and raises its own
            self._check()
            return f"{type(error).__name__}: {error}"
        self.parts |= {part.key: each for part, each in zip(asked.parts, parts, strict=True)}
        return found

    def _opened(self, part: FilePart) -> SealedPart:
        if part.key in self.parts:
            return self.parts[part.key]
        path = Path(part.file) if is_local(part.file) else self._fetched(part)
        return SealedPart(path, part, self._note_read)

    def _fetched(self, part: FilePart) -> Path:
        if part.file not in self._copies:
            self._copies[part.file] = PartialCopy(RemotePath(part.file), self._note_read)
        return self._copies[part.file].get(part.start, part.stop)

    def _note_read(self, nbytes: int) -> None:
        self._nbytes += nbytes
        self._check()

    def _remove(self) -> None:
        with suppress(Exception):  # of another thread, which may still write there
            self._ended.result()
        self.parts.clear()
        self._read = _NOTHING
        self._copies.clear()  # that removes them
