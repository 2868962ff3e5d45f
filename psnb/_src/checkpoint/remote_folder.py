"""RemoteFolder: checkpoints in an object store, or wherever else fsspec writes. Pure.

There is no renaming and there are no locks, so the manifest makes a checkpoint, and is written
last::

    ckpt-000003/manifest.json               the checkpoint, with the names of its files
    files-0f3a…/begun                       when this was begun, in seconds since the epoch
    files-0f3a…/kept                        only if it is never removed as one of the oldest
    files-0f3a…/0000-00000.safetensors      one file a shard
    …

A manifest is made only where there is none (which S3, GCS, Azure and fsspec's memory can tell in
one step), so of two that end at once each gets a number of its own. Whoever removes a checkpoint
removes the manifest first, and then, of the folders with its files, those that no manifest names by
now: checkpoints may share files. Whoever shares files of a checkpoint looks, once the new manifest
is there, whether the old one is still there: if so, nobody has removed files without having seen
the new one. Nobody can tell whether a writer is alive: files that belong to no
checkpoint are removed a day after they were begun. A checkpoint may be removed while it is read,
which is told. To be read, files are copied to this machine's folder for temporary files.
"""

from __future__ import annotations

import logging
import math
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psnb._src.checkpoint.checkpoint_folder import (
    CANNOT_REMOVE,
    GONE,
    CheckpointFolder,
    PartialCheckpoint,
    StoredCheckpoint,
    checkpoint_name,
    not_there,
    number_of,
    written_at,
)
from psnb._src.checkpoint.manifest import KEPT, MANIFEST, Manifest
from psnb._src.remote_path import Place, RemotePath
from psnb.errors import CheckpointError

logger = logging.getLogger("psnb")

_BEGUN = "begun"
_FILES = "files-"


class RemoteCheckpoint(StoredCheckpoint):
    """A checkpoint in a store; of its files those that are asked for are copied to this machine.

    Parameters
    ----------
    path : RemotePath
        Where it is.

    Raises
    ------
    OSError
        If it is not there.
    """

    path: RemotePath

    def __init__(self, path: RemotePath) -> None:
        self.path = path
        if not (path / MANIFEST).exists():
            raise FileNotFoundError("it has no manifest")
        self._copies = Path(tempfile.mkdtemp(prefix="psnb-checkpoint-"))
        # At the latest with the last reference to it. Arrays that are mapped stay usable.
        self._removed = weakref.finalize(self, shutil.rmtree, self._copies, ignore_errors=True)

    def file(self, name: str) -> Path:
        copy = self._copies / name.replace("/", "-")
        if not copy.exists():
            coming = copy.with_name(f"{copy.name}.{uuid.uuid4().hex}")
            self.place(name).fetch(coming)
            coming.rename(copy)  # only what is whole has its name, in any thread
        return copy

    def size(self, name: str) -> int:
        return self.place(name).size()

    def release(self) -> None:
        self._removed()

    def place(self, name: str) -> RemotePath:
        return (self.path.parent if "/" in name else self.path) / name


class _RemotePartial(PartialCheckpoint):
    """Files that no manifest names yet."""

    def __init__(self, owner: RemoteFolder) -> None:
        name = f"{_FILES}{uuid.uuid4().hex}"
        self.folder: RemotePath = owner.path / name
        self.prefix, self._owner = f"{name}/", owner
        self.finished = False
        self._base: RemotePath | None = None

    def size(self, name: str) -> int:
        return (self.folder / name).size()

    def share(self, base: StoredCheckpoint, files: Iterable[str]) -> None:
        assert isinstance(base, RemoteCheckpoint)
        self._base = base.path

    def finish(self, manifest: Manifest, *, kept: bool) -> RemotePath:
        now = str(time.time())
        if kept:
            (self.folder / KEPT).create(now)
        text = manifest.text()
        number = max(self._owner.numbers(), default=0)
        while True:
            number += 1
            path = self._owner.path / checkpoint_name(number)
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


class RemoteFolder(CheckpointFolder):
    """A folder of checkpoints where fsspec writes.

    Parameters
    ----------
    path : RemotePath
        Where it is.
    left_after : float
        Seconds after which files that belong to no checkpoint are what a killed writer has left.
    """

    path: RemotePath

    def __init__(self, path: RemotePath, left_after: float = 86400.0) -> None:
        self.path, self._left_after = path, left_after

    def prepare(self) -> None:
        try:
            with self.partial():
                pass
            self._remove_leftovers()
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be written to {str(self.path)!r}: {error}"
            ) from error

    def checkpoints(self) -> list[Place]:
        return [self.path / checkpoint_name(number) for number in self.numbers()]

    def numbers(self) -> list[int]:
        """Return the numbers of all checkpoints, in their order."""
        numbers = map(number_of, self.path.names())
        return sorted(
            number
            for number in numbers
            if number is not None and (self.path / checkpoint_name(number) / MANIFEST).exists()
        )

    def written(self, path: Place) -> str:
        try:
            return written_at((self.path / path.name / MANIFEST).modified())
        except OSError:
            return GONE

    @contextmanager
    def partial(self) -> Iterator[PartialCheckpoint]:
        made = _RemotePartial(self)
        try:
            made.folder.make_folder()
            (made.folder / _BEGUN).create(str(time.time()))
            yield made
        finally:
            if not made.finished:
                with suppress(OSError):
                    made.folder.remove()

    def use(self, path: Place) -> StoredCheckpoint:
        try:
            return RemoteCheckpoint(self.path / path.name)
        except OSError as error:
            raise not_there(path, error) from error

    def last_kept(self) -> float:
        latest = -math.inf
        for path in self.checkpoints():
            for folder in self._folders(path)[:1]:
                latest = max(latest, _time_in(folder / KEPT, -math.inf))
        return latest

    def prune(self, keep: int) -> None:
        freed: set[RemotePath] = set()
        try:
            for path in self.checkpoints()[:-keep]:
                folders = self._folders(path)
                if not any((own / KEPT).exists() for own in folders[:1]):
                    (self.path / path.name).remove()  # first: without it the others are leftovers
                    freed.update(folders)
            for folder in sorted(freed - self._used(), key=str) if freed else ():
                folder.remove()
        except OSError as error:
            logger.warning(CANNOT_REMOVE, error)

    def _folders(self, path: Place) -> list[RemotePath]:
        """Return the folders in which the files of a checkpoint are, its own first."""
        try:
            stored = self.use(path)
            try:
                manifest = stored.manifest()
            finally:
                stored.release()
        except CheckpointError:  # it is damaged, or was removed just now
            return []
        files = [file for entry in manifest.entries.values() for file in entry.files]
        names = dict.fromkeys(each.partition("/")[0] for each in (manifest.prefix, *files))
        return [self.path / name for name in names]

    def _used(self) -> set[RemotePath]:
        """Return the folders in which the files of all checkpoints are."""
        while True:
            found = {path: self._folders(path) for path in self.checkpoints()}
            # One that went meanwhile may have had the same files as one that came meanwhile.
            if all(folders or (path / MANIFEST).exists() for path, folders in found.items()):
                return {folder for folders in found.values() for folder in folders}

    def _remove_leftovers(self) -> None:
        begun_before = time.time() - self._left_after
        old = [
            folder
            for name in self.path.names()
            if name.startswith(_FILES)
            and _time_in((folder := self.path / name) / _BEGUN, math.inf) < begun_before
        ]
        if not old:
            return
        used = self._used()
        for folder in old:
            if folder not in used:
                folder.remove()


def _time_in(path: RemotePath, otherwise: float) -> float:
    """Return the time that a file tells; ``otherwise`` if there is none."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return otherwise
