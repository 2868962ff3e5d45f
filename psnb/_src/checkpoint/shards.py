"""CheckpointReader: a checkpoint's files, checked before anything is loaded. Pure, without Dask.

A file's header comes first: its description of arrays must fit the file's size and the parameter.
Only then is the file read, piece by piece, for its checksum; a forged one may claim any size. Of
arrays whose numbers matter, for example ids, a few million are in memory at a time. So a check
takes no more memory, however large a shard is.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct
from safetensors import SafetensorError

from psnb._src.checkpoint.folders import store_at
from psnb._src.checkpoint.manifest import ManifestEntry
from psnb._src.server.operations import CheckedFiles
from psnb._src.server.reading import found_in
from psnb._src.server.tables.checks import (
    ROW_USE,
    Expected,
    ExpectedRows,
    SavedShard,
    check_saved,
    check_saved_files,
)
from psnb._src.server.tables.saved_files import SealedFile
from psnb._src.utils.mapped_arrays import Dtype
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.sealed_json import typed
from psnb.errors import CheckpointError

State = dict[str, np.ndarray]


FileKey = tuple[str, int, int, str, str]
"""A file that was checked: its parameter, shard, number of shards, name and checksum."""


class CheckpointReader:
    """A checkpoint in use: no manager removes it while this object exists. Thread-safe.

    Parameters
    ----------
    path : Path or RemotePath
        Where it is.

    Attributes
    ----------
    path : Path or RemotePath
        Where it is.
    stored : StoredCheckpoint
        Its files.
    manifest : Manifest
        What is in it.
    release : callable
        Ends its use, also if an error's traceback keeps this object; idempotent.

    Raises
    ------
    CheckpointError
        If it is missing, or its manifest is damaged.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path, self.stored = path, store_at(path.parent).use(path)
        self.release = weakref.finalize(self, self.stored.release)
        try:
            self.manifest = self.stored.manifest()
        except BaseException:  # an interrupt, too: the file is not kept open
            self.release()
            raise

    def check(
        self,
        entry: ManifestEntry,
        expected: Expected,
        known: Mapping[FileKey, State] = MappingProxyType({}),
    ) -> list[dict[FileKey, State]]:
        """Check that a parameter can be loaded from its files.

        Parameters
        ----------
        entry : ManifestEntry
            The parameter's entry in the manifest.
        expected : Expected
            What the parameter must be.
        known : mapping of tuple to mapping
            The arrays of files that were checked before, of a parameter with this description. They
            are not read again, and new files of a shard whose first file is known are checked by
            themselves.

        Returns
        -------
        list of dict of tuple to dict
            Of each shard, the arrays of its files, the oldest first: mapped into memory, read-only.

        Raises
        ------
        CheckpointError
            If a file is missing or damaged, or does not fit the parameter.
        """
        found = []
        for number, files in enumerate(entry.shards):
            keys = [(entry.name, number, len(entry.shards), *each) for each in files.items()]
            new = [key for key in keys if key not in known]
            opened = self._opened(entry, number, [file for *_, file, _ in new], expected)
            if keys[0] in new:
                self._check_together(entry, number, opened, expected)
            arrays = dict(zip(new, (each.mapped() for each in opened), strict=True))
            found.append({key: arrays[key] if key in arrays else known[key] for key in keys})
        return found

    def arrays(
        self, entry: ManifestEntry, known: Mapping[FileKey, State] = MappingProxyType({})
    ) -> list[dict[FileKey, State]]:
        """Return the arrays of a parameter, which are checked to be what its entry says.

        They are as `check` returns them, which has the same ``known``.

        Raises
        ------
        CheckpointError
            If a file is missing or damaged, or the entry describes no parameter.
        """
        try:
            described = typed(entry.description, _DESCRIBED)
        except ValueError as error:
            raise CheckpointError(
                f"checkpoint {str(self.path)!r}: {entry.name!r:.200} is not a parameter that this "
                f"psnb reads: {error}"
            ) from error
        return self.check(entry, described.expected(entry.name, self._names(entry, known)), known)

    def checked(
        self, entry: ManifestEntry, number: int, expected: Expected, owners: int
    ) -> CheckedFiles:
        """Check a shard of a parameter, and return what is in it; raises as `check` does.

        ``owners`` is the number of shards that there are now.
        """
        files = self._opened(entry, number, [*entry.shards[number]], expected)
        rows = self._check_together(entry, number, files, expected, owners)
        with self.refusing([*entry.shards[number]][-1], entry):
            return found_in(files, rows)

    def file(self, entry: ManifestEntry, number: int, file: str) -> SealedFile:
        """Return a file of a shard, with a right checksum; raises as `check` does."""
        with self.refusing(file, entry):
            opened = SealedFile(self.stored.file(file), entry.shards[number][file])
            opened.check()
            return opened

    def _names(self, entry: ManifestEntry, known: Mapping[FileKey, State]) -> Collection[str]:
        """Return the names of the arrays of a parameter's first file."""
        file, expected = next(iter(entry.shards[0].items()))
        if (key := (entry.name, 0, len(entry.shards), file, expected)) in known:
            return known[key]
        with self.refusing(file, entry):
            return SealedFile(self.stored.file(file), expected).forms

    def _opened(
        self, entry: ManifestEntry, number: int, names: Sequence[str], expected: Expected
    ) -> list[SealedFile]:
        """Return files of a shard, each checked by itself."""
        files, found = entry.shards[number], []
        first = next(iter(files))
        for name in names:
            with self.refusing(name, entry):
                opened = SealedFile(self.stored.file(name), files[name])
                form, read, part = opened.forms, opened.read, name != first
                check_saved(expected, SavedShard(number, len(entry.shards), form, read, part))
                opened.check()
                found.append(opened)
        return found

    def _check_together(
        self,
        entry: ManifestEntry,
        number: int,
        files: Sequence[SealedFile],
        expected: Expected,
        owners: int = 1,
    ) -> np.ndarray:
        saved = [SavedShard(number, len(entry.shards), each.forms, each.read) for each in files]
        with self.refusing([*entry.shards[number]][-1], entry):
            return check_saved_files(expected, saved, owners)

    @contextmanager
    def refusing(self, file: str, entry: ManifestEntry) -> Iterator[None]:
        """Say which file of which parameter it is that cannot be loaded."""
        try:
            yield
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(
                f"checkpoint {str(self.path)!r}: shard {file} of {entry.name!r} is damaged: "
                f"{error}; restore another one, or copy it again from where it is whole"
            ) from error


_Size = Annotated[int, Meta(ge=0, lt=2**62)]
"""There will never be more rows."""


class _Described(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    dtype: Dtype
    slots: tuple[str, ...]


class _DescribedVariable(_Described, frozen=True, tag="variable"):
    shape: tuple[_Size, ...]

    def expected(self, name: str, found: Collection[str]) -> Expected:
        return Expected(name, np.dtype(self.dtype), self.slots, self.shape)


class _DescribedTable(_Described, frozen=True, tag="embedding"):
    dim: _Size
    rows: Annotated[int, Meta(gt=0, lt=2**62)] | None

    def expected(self, name: str, found: Collection[str]) -> Expected:
        fixed = None if self.rows is None else (self.rows, 0, 1)
        # Whether their use is remembered and whether ids wait is not described, and changes no row.
        uses, waits = ROW_USE[0] in found, "waiting.ids" in found
        described = name, np.dtype(self.dtype), self.slots, (self.dim,), fixed
        return ExpectedRows(*described, uses=uses, waits=waits)


_DESCRIBED: Any = _DescribedVariable | _DescribedTable
