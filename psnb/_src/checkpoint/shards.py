"""CheckpointReader: a checkpoint's files, checked before anything is loaded. Pure, without Dask.

What the manifest says of arrays must fit the file's size and the parameter. Only then is a part
read, piece by piece, for its checksum; a forged one may claim any size. Of arrays whose numbers
matter, for example ids, a few million are in memory at a time. So a check takes no more memory,
however large a shard is.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from psnb._src.checkpoint.folders import store_at
from psnb._src.checkpoint.manifest import ManifestEntry
from psnb._src.server.files.reading import found_in
from psnb._src.server.operations import CheckedParts
from psnb._src.server.tables.checks import (
    ROW_USE,
    Expected,
    ExpectedRows,
    SavedShard,
    check_saved,
    check_saved_parts,
)
from psnb._src.server.tables.saved_files import FilePart, PartKey, SealedPart
from psnb._src.utils.mapped_arrays import Dtype
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.sealed_json import typed
from psnb.errors import CheckpointError

State = dict[str, np.ndarray]


CheckedKey = tuple[str, int, int, PartKey, str]
"""A part that was checked: its parameter, shard, number of shards, key and checksum."""


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
        known: Mapping[CheckedKey, State] = MappingProxyType({}),
    ) -> list[dict[CheckedKey, State]]:
        """Check that a parameter can be loaded.

        Parameters
        ----------
        entry : ManifestEntry
            The parameter's entry in the manifest.
        expected : Expected
            What the parameter must be.
        known : mapping of tuple to mapping
            The arrays of parts that were checked before, of a parameter with this description. They
            are not read again, and new parts of a shard whose first part is known are checked by
            themselves.

        Returns
        -------
        list of dict of tuple to dict
            Of each shard, the arrays of its parts, the oldest first: mapped into memory, read-only.

        Raises
        ------
        CheckpointError
            If a file is missing or damaged, or does not fit the parameter.
        """
        found = []
        for number, parts in enumerate(entry.shards):
            keys = {
                (entry.name, number, len(entry.shards), part.key, part.checksum): part
                for part in parts
            }
            new = [key for key in keys if key not in known]
            opened = self._opened(entry, number, [keys[key] for key in new], expected)
            if new[:1] == [*keys][:1]:
                self._check_together(entry, number, opened, expected)
            arrays = {}
            for key, each in zip(new, opened, strict=True):
                with self.refusing(keys[key], entry):
                    arrays[key] = each.mapped()
            found.append({key: arrays[key] if key in arrays else known[key] for key in keys})
        return found

    def arrays(
        self, entry: ManifestEntry, known: Mapping[CheckedKey, State] = MappingProxyType({})
    ) -> list[dict[CheckedKey, State]]:
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
        return self.check(entry, described.expected(entry), known)

    def checked(
        self, entry: ManifestEntry, number: int, expected: Expected, owners: int
    ) -> CheckedParts:
        """Check a shard of a parameter, and return what is in it; raises as `check` does.

        ``owners`` is the number of shards that there are now.
        """
        parts = self._opened(entry, number, entry.shards[number], expected)
        rows = self._check_together(entry, number, parts, expected, owners)
        with self.refusing(entry.shards[number][-1], entry):
            return found_in(parts, rows)

    def part(self, entry: ManifestEntry, part: FilePart) -> SealedPart:
        """Return a part of a shard, with a right checksum; raises as `check` does."""
        with self.refusing(part, entry):
            opened = self._open(part)
            opened.check()
            return opened

    def _open(self, part: FilePart) -> SealedPart:
        return SealedPart(self.stored.file(part.file, part.start, part.stop), part)

    def _opened(
        self, entry: ManifestEntry, number: int, parts: Sequence[FilePart], expected: Expected
    ) -> list[SealedPart]:
        """Return parts of a shard, each checked by itself."""
        first, found = entry.shards[number][0], []
        for each in parts:
            with self.refusing(each, entry):
                opened = self._open(each)
                form, read, part = opened.forms, opened.read, each is not first
                check_saved(expected, SavedShard(number, len(entry.shards), form, read, part))
                opened.check()
                found.append(opened)
        return found

    def _check_together(
        self,
        entry: ManifestEntry,
        number: int,
        parts: Sequence[SealedPart],
        expected: Expected,
        owners: int = 1,
    ) -> np.ndarray:
        saved = [SavedShard(number, len(entry.shards), each.forms, each.read) for each in parts]
        with self.refusing(entry.shards[number][-1], entry):
            return check_saved_parts(expected, saved, owners)

    @contextmanager
    def refusing(self, part: FilePart, entry: ManifestEntry) -> Iterator[None]:
        """Say which file has which parameter that cannot be loaded."""
        try:
            yield
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"checkpoint {str(self.path)!r}: {part.file} is damaged, where {entry.name!r} is: "
                f"{error}; restore another one, or copy it again from where it is whole"
            ) from error


_Size = Annotated[int, Meta(ge=0, lt=2**62)]
"""There will never be more rows."""


class _Described(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    dtype: Dtype
    slots: tuple[str, ...]


class _DescribedVariable(_Described, frozen=True, tag="variable"):
    shape: tuple[_Size, ...]

    def expected(self, entry: ManifestEntry) -> Expected:
        return Expected(entry.name, np.dtype(self.dtype), self.slots, self.shape)


class _DescribedTable(_Described, frozen=True, tag="embedding"):
    dim: _Size
    rows: Annotated[int, Meta(gt=0, lt=2**62)] | None
    slot_dtype: Dtype | None = None
    row_wise: tuple[str, ...] = ()

    def expected(self, entry: ManifestEntry) -> Expected:
        fixed = None if self.rows is None else (self.rows, 0, 1)
        # Whether their use is remembered and whether ids wait is not described, and changes no row.
        found = entry.shards[0][0].arrays
        uses, waits = ROW_USE[0] in found, "waiting.ids" in found
        described = entry.name, np.dtype(self.dtype), self.slots, (self.dim,), fixed
        return ExpectedRows(
            *described,
            uses=uses,
            waits=waits,
            slot_dtype=np.dtype(self.slot_dtype) if self.slot_dtype else None,
            row_wise=frozenset(self.row_wise),
        )


_DESCRIBED: Any = _DescribedVariable | _DescribedTable
