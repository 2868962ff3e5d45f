"""CheckpointReader: a checkpoint's files, checked before anything is loaded. Pure, without Dask.

A file's header comes first: its description of arrays must fit the file's size and the parameter.
Only then is the file read, piece by piece, for its checksum; a forged one may claim any size. Only
arrays whose numbers matter are read into memory, for example ids. So a check needs memory for the
ids of one shard only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct
from safetensors import SafetensorError
from safetensors.numpy import load_file

from psnb._src.checkpoint.folders import store_at
from psnb._src.checkpoint.manifest import DamagedFileError, ManifestEntry
from psnb._src.server.tables.checks import (
    ROW_USE,
    Expected,
    ExpectedRows,
    Form,
    SavedShard,
    check_saved_rows,
    check_saved_slice,
    forms,
)
from psnb._src.utils.files import checksum
from psnb._src.utils.mapped_arrays import Dtype, mapped_arrays
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.sealed_json import typed
from psnb.errors import CheckpointError, InvalidArrayError

State = dict[str, np.ndarray]


FileKey = tuple[str, int, int, str, str]
"""A file that was checked: its parameter, shard, number of shards, name and checksum."""

CheckState = Callable[[SavedShard], object]
"""Raises ConfigurationError unless a saved shard can be loaded."""


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
        check_state: CheckState,
        known: Mapping[FileKey, State] = MappingProxyType({}),
    ) -> list[dict[FileKey, State]]:
        """Check that a parameter can be loaded from its files.

        Parameters
        ----------
        entry : ManifestEntry
            The parameter's entry in the manifest.
        check_state : callable
            Of the parameter to load.
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
            shard: dict[FileKey, State] = {}
            part = len(files) > 1
            for file, expected in files.items():
                key = entry.name, number, len(entry.shards), file, expected
                if key in known:
                    shard[key] = known[key]
                    continue
                with self._refusing(file, entry):
                    whole = _SealedFile(self.stored.file(file), expected)
                    form = forms(file, whole.arrays)
                    check_state(SavedShard(number, len(entry.shards), form, whole.read, part=part))
                    whole.check()
                    shard[key] = whole.arrays
                    if part and len(shard) == len(files) and next(iter(shard)) not in known:
                        last = MergedDeltas(list(shard.values()))
                        check_state(SavedShard(number, len(entry.shards), last.forms(), last.read))
            found.append(shard)
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
        return self.check(entry, lambda saved: described.check_state(entry.name, saved), known)

    def states(self, entry: ManifestEntry) -> Iterator[State]:
        """Read the shards of a parameter into memory; they were checked before.

        Not from the arrays of `check`: a file that was shortened since would end the process.

        Raises
        ------
        CheckpointError
            If one cannot be read.
        """
        for shard in entry.shards:
            parts = []
            for file in shard:
                with self._refusing(file, entry):
                    parts.append(load_file(self.stored.file(file)))
            yield parts[0] if len(parts) == 1 else MergedDeltas(parts).state()

    @contextmanager
    def _refusing(self, file: str, entry: ManifestEntry) -> Iterator[None]:
        """Say which file of which parameter it is that cannot be loaded."""
        try:
            yield
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(
                f"checkpoint {str(self.path)!r}: shard {file} of {entry.name!r} is damaged: "
                f"{error}; restore another one, or copy it again from where it is whole"
            ) from error


class _SealedFile:
    """The arrays of a file, whose checksum is checked before the first is read.

    Parameters
    ----------
    path : pathlib.Path
        The file, of which only the header is read.
    expected : str
        Its checksum.
    """

    def __init__(self, path: Path, expected: str) -> None:
        self.arrays = mapped_arrays(path)
        self._path, self._expected, self._checked = path, expected, False

    def check(self) -> None:
        """Raise DamagedFileError unless the checksum is right; only the first call reads it."""
        if not self._checked and (found := checksum(self._path)) != self._expected:
            raise DamagedFileError(f"its checksum is {found}, expected {self._expected:.16}")
        self._checked = True

    def read(self, name: str) -> np.ndarray:
        """Return an array, as a copy for compiled loops: in a file it may begin at any byte."""
        self.check()
        return self.arrays[name].copy()


_Size = Annotated[int, Meta(ge=0, lt=2**62)]
"""There will never be more rows."""


class _Described(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    dtype: Dtype
    slots: tuple[str, ...]


class _DescribedVariable(_Described, frozen=True, tag="variable"):
    shape: tuple[_Size, ...]

    def check_state(self, name: str, saved: SavedShard) -> None:
        check_saved_slice(Expected(name, np.dtype(self.dtype), self.slots, self.shape), saved)


class _DescribedTable(_Described, frozen=True, tag="embedding"):
    dim: _Size
    rows: Annotated[int, Meta(gt=0, lt=2**62)] | None

    def check_state(self, name: str, saved: SavedShard) -> None:
        fixed = None if self.rows is None else (self.rows, saved.number, saved.shards)
        # Whether their use is remembered and whether ids wait is not described, and changes no row.
        uses, waits = ROW_USE[0] in saved.forms, "waiting.ids" in saved.forms
        expected = name, np.dtype(self.dtype), self.slots, (self.dim,), fixed
        check_saved_rows(ExpectedRows(*expected, uses=uses, waits=waits), saved)


_DESCRIBED: Any = _DescribedVariable | _DescribedTable


class MergedDeltas:
    """The rows of all parts, each as the last part that has it says; all else is the last part's.

    Rows are in the order in which they came first.

    Parameters
    ----------
    parts : sequence of mapping
        The arrays of each part, the oldest first; each was checked by itself.

    Raises
    ------
    ConfigurationError
        If they have different arrays.
    """

    def __init__(self, parts: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._parts = parts
        for part in parts:
            if part.keys() != parts[0].keys():
                raise InvalidArrayError(
                    f"its files have different arrays: {sorted(parts[0])} and {sorted(part)}"
                )

    def forms(self) -> dict[str, Form]:
        """Return the forms of all arrays."""
        count = self._rows.size
        return {
            name: (array.dtype, (count if _by_row(name) else len(array), *array.shape[1:]))
            for name, array in self._parts[-1].items()
        }

    def read(self, name: str) -> np.ndarray:
        """Return an array, which is a copy."""
        if not _by_row(name):
            return self._parts[-1][name].copy()
        first, *later = self._parts
        found = np.empty((self._rows.size, *first[name].shape[1:]), first[name].dtype)
        found[: len(first[name])] = first[name]
        for part, (at, rows) in zip(later, self._replaced, strict=True):
            found[at] = part[name][rows]
        return found

    def state(self) -> dict[str, np.ndarray]:
        """Return all arrays."""
        return {name: self.read(name) for name in self._parts[-1]}

    @cached_property
    def _replaced(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each part but the first: the rows that it has last, and where they are in it."""
        stops = np.cumsum([part["ids"].size for part in self._parts])
        at = np.flatnonzero(self._rows >= stops[0])
        rows = self._rows[at]
        owner = np.searchsorted(stops, rows, side="right")
        return [
            (at[owner == part], rows[owner == part] - stops[part - 1])
            for part in range(1, stops.size)
        ]

    @cached_property
    def _rows(self) -> np.ndarray:
        """Where each row is among the rows of all parts, one after the other."""
        ids = np.concatenate([part["ids"] for part in self._parts])
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        other, end = ordered[1:] != ordered[:-1], np.ones(min(1, ids.size), np.bool_)
        first, last = order[np.append(end, other)], order[np.append(other, end)]
        return last[np.argsort(first)]


def _by_row(name: str) -> bool:
    return name != "step" and not name.startswith("waiting.")
