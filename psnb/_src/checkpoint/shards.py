"""The files of a checkpoint. Pure, without Dask.

A checkpoint is a folder::

    ckpt-000003/
      manifest.json              what is in it: one entry a parameter, and the caller's metadata
      kept                       only if it is never removed as one of the oldest; empty
      0000-00000.safetensors     one file a shard: values, optimizer state, ids of embedding rows
      0000-00000-01.safetensors  a delta has such, too: of the rows that changed
      …

Servers write their shards into a partial one, each by itself, and sync them; then the manifest is
written, and it becomes a checkpoint in one step. (How, and how those who use a folder stay apart,
is in `psnb._src.checkpoint.store`.) Nothing in it is pickled. A shard is a unit of writing only: a
parameter is read from all of its shards, for any number of servers. What did not change since an
earlier checkpoint is not written again, if the caller says so: the new one shares the file (see
`DeltaBase`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from msgspec import Meta, Struct
from safetensors import SafetensorError
from safetensors.numpy import load_file

from psnb._src.checkpoint.deltas import MergedDeltas
from psnb._src.checkpoint.store import (
    CheckpointStore,
    DamagedFileError,
    Manifest,
    ManifestEntry,
    PartialCheckpoint,
    StoredCheckpoint,
    checked_metadata,
    file_name,
    use,
)
from psnb._src.server.tables.checks import forms
from psnb._src.server.tables.states import (
    ROW_USE,
    Expected,
    ExpectedRows,
    SavedShard,
    check_saved_rows,
    check_saved_slice,
)
from psnb._src.utils.files import WrittenFile, checksum
from psnb._src.utils.mapped_arrays import Dtype, mapped_arrays
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.sealed_json import typed
from psnb.errors import CheckpointError

# DeltaBase: a checkpoint that the next one may build on, and the marks of its moment. Pure.

ShardKey = tuple[str, int]
"""The name of a parameter, and the number of one of its shards."""


@dataclass(frozen=True)
class DeltaBase:
    """A checkpoint that was written just now.

    A delta shares files with it, as a part of its own: so each checkpoint is whole in itself, and
    may be copied, kept and removed without the others.

    Attributes
    ----------
    path : Path or RemotePath
        Where it is.
    depth : int
        On how many others it builds.
    shards : mapping of tuple to mapping of str to str
        The files of each shard, with their checksums.
    marks : mapping of tuple to str
        Of each shard, the servers' mark of that moment.
    """

    path: AnyPath
    depth: int
    shards: Mapping[ShardKey, Mapping[str, str]]
    marks: Mapping[ShardKey, str]


class UsedBase(NamedTuple):
    """One that is in use, so that it is not removed."""

    stored: StoredCheckpoint
    known: DeltaBase


@contextmanager
def in_use(folder: CheckpointStore, base: DeltaBase | None) -> Iterator[UsedBase | None]:
    """Use one; None if there is none, or another manager has removed it, or a file is not there."""
    try:
        stored = None if base is None else folder.use(base.path)
    except CheckpointError:
        stored = None
    if base is None or stored is None:
        yield None
        return
    try:
        files = chain.from_iterable(base.shards.values())
        yield UsedBase(stored, base) if stored.has(files) else None
    finally:
        stored.release()


State = dict[str, np.ndarray]


class Described(Protocol):
    """A parameter, as the manifest describes it."""

    @property
    def optimizer(self) -> Any:
        """The description of its optimizer, or None."""

    @property
    def tables(self) -> Sequence[object]:
        """Its tables, one a shard."""

    def describe(self) -> Mapping[str, Any]:
        """Return the description that must be equal to load it."""


class TakenShard(Protocol):
    """What was taken of a shard."""

    @property
    def mark(self) -> str:
        """The servers' mark of the moment."""

    @property
    def whole(self) -> bool:
        """Whether it is all of the shard, not only what changed."""

    @property
    def nothing(self) -> bool:
        """Whether nothing changed."""


class Snapshots(Protocol):
    """Parameters as they were at one moment, on their servers."""

    @property
    def parameters(self) -> Mapping[str, Described]:
        """These, by name."""

    @property
    def taken(self) -> Mapping[ShardKey, TakenShard]:
        """What there is of each shard."""

    def write(
        self, folder: str, files: Mapping[ShardKey, str], on_progress: Callable[[float], object]
    ) -> Mapping[str, WrittenFile]:
        """Let the servers write them, and return what is on disk."""

    def close(self) -> None:
        """Release them; idempotent."""


def _nobody(share: float) -> None:
    """Do nothing."""


def write_checkpoint(
    directory: CheckpointStore,
    taken: Snapshots,
    metadata: Mapping[str, Any],
    *,
    consistent: bool = False,
    kept: bool = False,
    on_progress: Callable[[float], object] = _nobody,
    run: Mapping[str, Any] | None = None,
    base: UsedBase | None = None,
) -> DeltaBase:
    """Write the next checkpoint: all of it or nothing.

    Parameters
    ----------
    directory : CheckpointStore
        The folder of checkpoints.
    taken : Snapshots
        The parameters, as they are to be saved.
    metadata : mapping
        Anything that JSON can hold.
    consistent : bool
        Whether no closure ran when they were taken; the manifest says so.
    kept : bool
        Whether `prune` leaves it alone, in any process.
    on_progress : callable
        Called with the share that is written, 0 to 1.
    run : mapping, optional
        What psnb needs to go on with it.
    base : UsedBase, optional
        A checkpoint since which ``taken`` has what changed.

    Returns
    -------
    DeltaBase
        The new checkpoint.

    Raises
    ------
    CheckpointError
        If it cannot be written; earlier ones are untouched.
    """
    content = checked_metadata(metadata)
    try:
        with directory.partial() as partial:
            shared: dict[ShardKey, Mapping[str, str]] = {}
            depth = 0
            if base is not None:
                shared = {
                    key: base.known.shards[key]
                    for key, each in taken.taken.items()
                    if not each.whole
                }
                if shared:
                    depth = base.known.depth + 1
                    partial.share(base.stored, chain.from_iterable(shared.values()))
            files = {
                (name, shard): file_name(position, shard, depth)
                for position, (name, each) in enumerate(taken.parameters.items())
                for shard, _ in enumerate(each.tables)
                if not taken.taken[name, shard].nothing
            }
            written = taken.write(str(partial.folder), files, on_progress)
            for file, found in written.items():
                _check_there(partial, file, found)
            shards = {key: dict(shared.get(key, {})) for key in taken.taken}
            for key, file in files.items():
                shards[key][partial.prefix + file] = written[file].checksum
            entries = [
                ManifestEntry(
                    name,
                    each.describe(),
                    each.optimizer.describe() if each.optimizer else None,
                    [shards[name, shard] for shard, _ in enumerate(each.tables)],
                )
                for name, each in taken.parameters.items()
            ]
            manifest = Manifest(content, consistent, run or {}, depth, partial.prefix, entries)
            path = partial.finish(manifest, kept=kept)
            marks = {key: each.mark for key, each in taken.taken.items()}
            return DeltaBase(path, depth, shards, marks)
    except OSError as error:
        raise CheckpointError(
            f"a checkpoint cannot be written to {str(directory.path)!r}: {error}"
        ) from error


def _check_there(partial: PartialCheckpoint, file: str, written: WrittenFile) -> None:
    """Check that a file that a server has written is there for this process, too."""
    try:
        size = partial.size(file)
    except FileNotFoundError:
        size = -1
    if size != written.nbytes:
        here = "is not there" if size < 0 else f"has {size:,} bytes of {written.nbytes:,}"
        raise CheckpointError(
            f"{written.by} has written {file} into {str(partial.folder)!r}, but in the notebook it "
            f"{here}: the server is on another host, which has a folder of that name, too. All "
            "servers and the notebook must reach the directory, on disks that they share or by an "
            "address like s3://bucket/folder"
        )


# Checks of a checkpoint's files, before anything of it is loaded. Pure.
#
# A file's header comes first: what it says of arrays must fit the file's size and the parameter.
# Only then is the file read, piece by piece, for its checksum; a forged one may claim any size. Of
# its arrays, only those whose numbers matter are read into memory, for example ids. So a check
# needs memory for the ids of one shard only.

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
        self.path, self.stored = path, use(path)
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
            are not read again, and what is new in a shard of which the first file is known is
            checked by itself.

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


# What a manifest says that a parameter is, to read it without a strategy. Pure.

_Size = Annotated[int, Meta(ge=0, lt=2**62)]
"""There will never be more rows."""


class _Described(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    dtype: Dtype
    slots: tuple[str, ...]


class _DescribedVariable(_Described, frozen=True, tag="variable"):
    shape: tuple[_Size, ...]

    def check_state(self, name: str, saved: SavedShard) -> None:
        check_saved_slice(Expected(name, np.dtype(self.dtype), self.slots), self.shape, saved)


class _DescribedTable(_Described, frozen=True, tag="embedding"):
    dim: _Size
    rows: Annotated[int, Meta(gt=0, lt=2**62)] | None

    def check_state(self, name: str, saved: SavedShard) -> None:
        fixed = None if self.rows is None else (self.rows, saved.number, saved.shards)
        # Whether their use is remembered and whether ids wait is not described, and changes no row.
        uses, waits = ROW_USE[0] in saved.forms, "waiting.ids" in saved.forms
        expected = name, np.dtype(self.dtype), self.slots, self.dim, fixed
        check_saved_rows(ExpectedRows(*expected, uses=uses, waits=waits), saved)


_DESCRIBED: Any = _DescribedVariable | _DescribedTable
