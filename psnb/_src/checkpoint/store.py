"""CheckpointStore: checkpoints in an object store, or wherever else fsspec writes. Pure.

At any time a checkpoint is complete or absent, whichever process is killed.

There is no renaming and there are no locks, so the manifest makes a checkpoint, and is written
last::

    ckpt-000003/manifest.json               the checkpoint, with the names of its files
    files-0f3a…/begun                       when this was begun, in seconds since the epoch
    files-0f3a…/kept                        only if it is never removed as one of the oldest
    files-0f3a…/00000-tables.bin            what a server has written
    …

A manifest is made only where there is none (which S3, GCS, Azure and fsspec's memory can check in
one step), so two saves that end at the same time get different numbers. A removal deletes the
manifest first, and then the folders with its files that no other manifest names: checkpoints may
share files. A save that shares files looks, once the new manifest is there, whether the old one
is still there: if so, no other has removed files without having seen the new one. It is unknown
whether a writer is alive: files that belong to no checkpoint are removed a day after they were
begun. A checkpoint may be removed while it is read, which raises an error. What is read of files is
copied to this machine's folder for temporary files.

Only files that are known to be unneeded are removed: `CheckpointStore._named` says which files are
needed, by every folder with a manifest, whatever its name. A manifest that cannot be read now (no
answer, no room for its copy, a newer format, damage) may need any: then nothing is removed.
"""

from __future__ import annotations

import logging
import math
import re
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from psnb._src.checkpoint.manifest import KEPT, MANIFEST, Manifest, read_manifest
from psnb._src.server.files.partial_copy import PartialCopy
from psnb._src.utils.paths import AnyPath, RemotePath
from psnb.errors import CheckpointError

_NOTHING_REMOVED = (
    "nothing old is removed from %s, as a checkpoint that cannot be read now may need it: %s. If "
    "that stays so, use the psnb that saved it, or move what is damaged away"
)

GONE = "removed just now"
"""What the error of a checkpoint says that another manager has removed."""

logger = logging.getLogger("psnb")

_NAME = re.compile(r"ckpt-(\d{6}|[1-9]\d{6,17})", re.ASCII)
"""As `checkpoint_name` makes them, so no two have one number."""


def checkpoint_name(number: int) -> str:
    """Return the name of a checkpoint.

    Raises
    ------
    CheckpointError
        If there are none after the one before: a checkpoint was renamed.
    """
    name = f"ckpt-{number:06d}"
    if number_of(name) is None:
        raise CheckpointError(
            f"no checkpoint can follow {checkpoint_name(number - 1)}: give it a smaller number"
        )
    return name


def number_of(name: str) -> int | None:
    """Return the number of a checkpoint; None if this is not a name of one."""
    match = _NAME.fullmatch(name)
    return match and int(match[1])


_BEGUN = "begun"
_FILES_FOLDER = "files-"


class StoredCheckpoint:
    """A checkpoint in a store; what is asked for of its files is copied to this machine.

    Parameters
    ----------
    path : Path or RemotePath
        Where it is.

    Attributes
    ----------
    release : callable
        Lets it be removed, where that was kept from happening; idempotent.

    Raises
    ------
    OSError
        If it is not there.
    """

    release: Callable[[], object]

    def __init__(self, path: AnyPath) -> None:
        self.path = path
        if not (path / MANIFEST).exists():
            raise FileNotFoundError("it has no manifest")
        self._copies: dict[str, PartialCopy] = {}
        # At the latest with the last reference to it. Arrays that are mapped stay usable.
        self.release = weakref.finalize(self, _remove, self._copies)

    def manifest(self) -> Manifest:
        """Return its manifest.

        Raises
        ------
        CheckpointError
            If it is damaged, or has a version that cannot be read.
        """
        return read_manifest(self.path, self.file)

    def file(self, name: str, start: int = 0, stop: int | None = None) -> Path:
        """Return one of its files on this machine, by the name that the manifest has.

        Of a copy, only what is between ``start`` and ``stop`` is there.

        Raises
        ------
        OSError
            If it cannot be had.
        """
        if name not in self._copies:
            self._copies.setdefault(name, PartialCopy(RemotePath(str(self.place(name)))))
        return self._copies[name].get(start, stop)

    def place(self, name: str) -> AnyPath:
        """Return where one of its files is."""
        return (self.path.parent if "/" in name else self.path) / name

    def size(self, name: str) -> int:
        """Return the bytes of one of its files; raises as `file` does."""
        return RemotePath(str(self.place(name))).size()

    def has(self, files: Iterable[str]) -> bool:
        """Return whether these of its files are there."""
        try:
            return all(self.size(each) for each in files)
        except OSError:
            return False


def _remove(copies: dict[str, PartialCopy]) -> None:
    for each in copies.values():
        each.remove()


class PartialCheckpoint:
    """A checkpoint that is being written: files that no manifest names yet.

    Attributes
    ----------
    folder : Path or RemotePath
        The folder of its files, which is there.
    prefix : str
        What comes before the names of its files in the manifest.
    finished : bool
        Whether there may be a manifest that names them.
    """

    def __init__(self, store: CheckpointStore) -> None:
        name = f"{_FILES_FOLDER}{uuid.uuid4().hex}"
        self.folder: AnyPath = store.path / name
        self.prefix, self.finished = f"{name}/", False
        self._store = store
        self._base: AnyPath | None = None

    def share(self, base: StoredCheckpoint, files: Iterable[str]) -> None:
        """Let some files of a checkpoint, which is in use, be files of this one, too.

        They keep their names in the manifest, and stay when the other one is removed.

        Raises
        ------
        OSError
            If that is not possible.
        """
        self._base = base.path

    def finish(self, manifest: Manifest, *, kept: bool) -> AnyPath:
        """Make a checkpoint of it, which is the newest, and return where it is.

        It gets its number here, not when it was begun. So the newest is the one that was finished
        last, and it is not pruned immediately if others have saved meanwhile.

        Parameters
        ----------
        manifest : Manifest
            What is in it.
        kept : bool
            Whether it is never removed as one of the oldest.

        Raises
        ------
        OSError
            If that is not possible; there is none then. But if the answer of a store was lost,
            there may be one, which is whole.
        """
        root = self._store.root
        if kept:
            (root / self.folder.name / KEPT).create(str(time.time()))
        text = manifest.text()
        number = max(self._store.numbers(), default=0)
        while True:
            number += 1
            path = root / checkpoint_name(number)
            path.make_folder()
            # From here on: if the answer is lost, a manifest may be there that names the files. If
            # there is none, they are removed as leftovers.
            self.finished = True
            try:
                (path / MANIFEST).create(text)
                break
            except FileExistsError:  # another one has ended at the same time
                continue
        if self._base is not None and not (self._base / MANIFEST).exists():
            path.remove()
            self.finished = False
            raise OSError(
                f"another manager has removed {self._base.name}, on which it was to build; save "
                "again: then it is a whole one"
            )
        return path


class CheckpointStore:
    """A folder of checkpoints; any number of managers, threads and processes may use it.

    Parameters
    ----------
    path : Path or RemotePath
        Where it is.
    left_after : float
        Seconds after which files that belong to no checkpoint are what a killed writer has left.

    Attributes
    ----------
    path : Path or RemotePath
        Where it is.
    root : RemotePath
        The same, where fsspec finds it.
    """

    path: AnyPath
    _kind: Callable[[Any], StoredCheckpoint] = StoredCheckpoint

    def __init__(self, path: AnyPath, left_after: float = 86400.0) -> None:
        self.path, self.root, self._left_after = path, RemotePath(str(path)), left_after

    def prepare(self) -> None:
        """Check that checkpoints can be written, and remove leftovers of killed processes.

        Raises
        ------
        CheckpointError
            If they cannot be written.
        """
        try:
            self._prepare()
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be written to {str(self.path)!r}: {error}"
            ) from error

    def checkpoints(self) -> list[AnyPath]:
        """Return the complete checkpoints at one moment, oldest first."""
        with self._steady():
            return [self.path / checkpoint_name(number) for number in self.numbers()]

    def numbers(self) -> list[int]:
        """Return the numbers of all checkpoints, in their order."""
        names = self.root.names()
        return sorted(
            number
            for name in names
            if (number := number_of(name)) is not None and self._is_complete(name)
        )

    def written(self, path: AnyPath) -> str:
        """Return when a checkpoint was written, for people to read."""
        try:
            written = (self.root / path.name / MANIFEST).modified()
        except OSError:
            return GONE
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written))

    @contextmanager
    def partial(self) -> Iterator[PartialCheckpoint]:
        """Begin a checkpoint; at the end of the block it is removed, unless it was finished.

        Raises
        ------
        OSError
            If it cannot be begun.
        """
        made = PartialCheckpoint(self)
        folder = self.root / made.folder.name
        try:
            folder.make_folder()
            (folder / _BEGUN).create(str(time.time()))
            yield made
        finally:
            if not made.finished:
                with suppress(OSError):
                    folder.remove()

    def use(self, path: AnyPath) -> StoredCheckpoint:
        """Use a checkpoint.

        Raises
        ------
        CheckpointError
            If it is not there.
        """
        try:
            with self._steady():
                return self._kind(self.path / path.name)
        except OSError as error:
            raise CheckpointError(
                f"{str(path)!r} is not a checkpoint, or was removed since as one of the oldest "
                f"({error}); see the manager's checkpoints"
            ) from error

    def last_kept(self) -> float:
        """Return when the last of the checkpoints that stay was written, in s since the epoch.

        Minus infinity if there is none.
        """
        latest = -math.inf
        for path in self.checkpoints():
            with suppress(CheckpointError, OSError):  # then one more is kept than need be
                latest = max(latest, self._kept_at(path))
        return latest

    def prune(self, keep: int) -> None:
        """Remove all but the newest ``keep`` checkpoints and kept ones; failures are logged.

        Checkpoints that are in use are left for the next time, where that can be known. If one
        cannot be read, a warning says so, and nothing is removed.
        """
        try:
            self._prune(keep)
        except (CheckpointError, OSError) as error:
            logger.warning(_NOTHING_REMOVED, self.path, error)

    def _prune(self, keep: int) -> None:
        if not (old := self.checkpoints()[:-keep]):
            return
        named = self._named()
        found = {path.name: named[path.name] for path in old if path.name in named}
        going = {name: each for name, each in found.items() if not (each[0] / KEPT).exists()}
        for name in going:
            (self.root / name).remove()  # first: without it the others are leftovers
        self._free({folder for folders in going.values() for folder in folders})

    def _steady(self) -> AbstractContextManager[object]:
        """Keep others, briefly, from making, naming or removing checkpoints, where that can be."""
        return nullcontext()

    def _is_complete(self, name: str) -> bool:
        return (self.root / name / MANIFEST).exists()

    def _kept_at(self, path: AnyPath) -> float:
        return _time_in(self._folders(path)[0] / KEPT, -math.inf)

    def _folders(self, path: AnyPath) -> list[RemotePath]:
        """Return the folders in which the files of a checkpoint are, its own first.

        Raises
        ------
        CheckpointError
            If its manifest cannot be read.
        """
        stored = self.use(path)
        try:
            manifest = stored.manifest()
        finally:
            stored.release()
        files = manifest.prefix, *manifest.files
        names = [name.partition("/")[0] for name in files if "/" in name]
        # One that was written on a disk, and copied here, has its files in its own folder.
        own = [] if manifest.prefix else [path.name]
        return [self.root / name for name in dict.fromkeys([*own, *names])]

    def _named(self) -> dict[str, list[RemotePath]]:
        """Return the folders of files that are needed, by the name of their checkpoint.

        Raises
        ------
        CheckpointError, OSError
            If a manifest cannot be read: it may name any.
        """
        while True:
            names = self._with_manifest()
            try:
                found = {name: self._folders(self.path / name) for name in names}
            except CheckpointError:
                if self._with_manifest() == names:
                    raise
                continue
            # One that went meanwhile may have had the same files as one that came meanwhile.
            if self._with_manifest() == names:
                return found

    def _with_manifest(self) -> set[str]:
        """Return the names of all that is a checkpoint, also where people have renamed it."""
        names = self.root.names()
        return {
            name for name in names if not name.startswith(_FILES_FOLDER) and self._is_complete(name)
        }

    def _free(self, folders: set[RemotePath]) -> None:
        """Remove the unneeded ones of some folders of files; files are removed nowhere else.

        Raises
        ------
        CheckpointError, OSError
            If it is not known which these are.
        """
        if not folders:
            return
        needed = {folder for each in self._named().values() for folder in each}
        for folder in sorted(folders - needed):
            folder.remove()

    def _prepare(self) -> None:
        with self.partial():
            pass
        begun_before = time.time() - self._left_after
        old = {
            folder
            for name in self.root.names()
            if name.startswith(_FILES_FOLDER)
            and _time_in((folder := self.root / name) / _BEGUN, math.inf) < begun_before
        }
        try:
            self._free(old)
        except (CheckpointError, OSError) as error:
            logger.warning(_NOTHING_REMOVED, self.path, error)


def _time_in(path: RemotePath, otherwise: float) -> float:
    """Return the time that a file has; ``otherwise`` if there is none."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return otherwise
