"""SavedCheckpoint: what is in a checkpoint, read without a cluster. Thread-safe.

Threads may open the same parameter twice, which is the same twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.checkpoint.shards import CheckpointReader, FileKey, State
from psnb._src.checkpoint.store import (
    FORMAT,
    ManifestEntry,
    checkpoints_in,
    is_gone,
    not_read,
    number_of,
    require_read,
    store_at,
)
from psnb._src.utils.arrays import bits_of, integers_of
from psnb._src.utils.checks import path_text
from psnb._src.utils.paths import AnyPath, as_path
from psnb._src.utils.text import NAME, text_table, truncate
from psnb.errors import CheckpointError, IdOutOfRangeError

# SavedTable: the rows of an embedding in a checkpoint, in mapped files. Thread-safe.
#
# What was written wholly is one layer, what all deltas since then have is another. So the next
# delta leaves the first one, and its index of ids, as they are.


class _Layer:
    """The rows of some files; of an id's rows, the last counts."""

    def __init__(self, parts: Sequence[State]) -> None:
        self.values = [part["values"] for part in parts]
        joined = np.concatenate([part["ids"] for part in parts])
        self.ids, last = np.unique(joined[::-1], return_index=True)
        self.ids.flags.writeable = False
        self._places = joined.size - 1 - last
        self._stops = np.cumsum([len(each) for each in self.values])

    def located(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which ids have a row, and where these are among all."""
        at = np.searchsorted(self.ids, ids)
        known = at < self.ids.size
        known[known] = self.ids[at[known]] == ids[known]
        return known, at[known]

    def taken(self, at: np.ndarray | slice) -> np.ndarray:
        """Return rows by where their ids are among all."""
        places = self._places[at]
        found = np.empty((places.size, self.values[0].shape[1]), self.values[0].dtype)
        shards = np.searchsorted(self._stops, places, side="right")
        for number, values in enumerate(self.values):
            own = np.flatnonzero(shards == number)
            found[own] = values[places[own] - (self._stops[number] - len(values))]
        return found

    def is_ordered(self) -> bool:
        """Return whether the only file has the rows in the order of their ids."""
        return len(self.values) == 1 and not (np.diff(self._places) < 0).any()


class SavedTable:
    """The ids and rows of an embedding in a checkpoint, the same from any number of servers.

    Parameters
    ----------
    name : str
        Its name.
    shards : sequence of sequence of mapping
        The arrays of each file of each shard, the oldest first, which were checked: the ids that
        have a row there, each once, and these rows; of an id's rows, the last counts.
    base : SavedTable, optional
        Of an earlier checkpoint; what was written wholly is shared if it is of the same files.

    Attributes
    ----------
    dim : int
        Numbers a row.
    dtype : numpy.dtype
        Of the rows.
    """

    def __init__(
        self, name: str, shards: Sequence[Sequence[State]], base: SavedTable | None = None
    ) -> None:
        self._name = name
        firsts = [shard[0] for shard in shards]
        if base is not None and base._begins_with(firsts):
            first = base._layers[-1]
        else:
            first = _Layer(firsts)
        self.dim, self.dtype = first.values[0].shape[1], first.values[0].dtype
        later = [part for shard in shards for part in shard[1:]]
        # The newest first.
        self._layers: tuple[_Layer, ...] = (_Layer(later), first) if later else (first,)

    def _begins_with(self, firsts: Sequence[State]) -> bool:
        ours = self._layers[-1].values
        return [id(each) for each in ours] == [id(each["values"]) for each in firsts]

    def __repr__(self) -> str:
        return f"<psnb.checkpoint.SavedTable {self._name!r}: {len(self):,} rows of {self.dim}>"

    def __len__(self) -> int:
        # Not from `ids`: a reader that follows a folder asks for it after each delta.
        newer, first = self._layers[:-1], self._layers[-1]
        return first.ids.size + sum(int((~first.located(each.ids)[0]).sum()) for each in newer)

    @cached_property
    def ids(self) -> np.ndarray:
        """All ids that have a row, ascending, uint64 ``(n,)``.

        Of a table with fixed rows these are 0 to n - 1. What was looked up as -1 is ``2**64 - 1``
        here.
        """
        found: np.ndarray = reduce(np.union1d, [layer.ids for layer in self._layers])
        found.flags.writeable = False
        return found

    @property
    def rows(self) -> np.ndarray:
        """All rows in the order of `ids`, ``(n, dim)``, so of fixed rows by their number.

        They are read into memory, unless one server had all of fixed rows; `lookup` reads only what
        it returns.
        """
        first = self._layers[-1]
        if len(self._layers) > 1:
            rows, _ = self.found(self.ids)
        else:
            rows = first.values[0] if first.is_ordered() else first.taken(slice(None))
        rows.flags.writeable = False
        return rows

    def lookup(self, ids: ArrayLike) -> np.ndarray:
        """Return the rows of ids of any shape, ``ids.shape + (dim,)``.

        Raises
        ------
        InvalidArrayError
            If the ids are not integers.
        IdOutOfRangeError
            If an id has no row here.
        """
        asked = integers_of(ids, f"ids of table {self._name!r}")
        rows, unknown = self.found(bits_of(asked).reshape(-1))
        if unknown.any():
            missing = asked.reshape(-1)[unknown]
            raise IdOutOfRangeError(
                f"table {self._name!r} of this checkpoint has no row of id {missing[0]}, nor of "
                f"{missing.size - 1:,} others that were asked for; its ids= are those that have one"
            )
        return rows.reshape(*asked.shape, self.dim)

    def found(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of ids (uint64 ``(n,)``), and which have none: theirs are arbitrary."""
        rows, missing = np.empty((ids.size, self.dim), self.dtype), np.ones(ids.size, np.bool_)
        for layer in self._layers:
            at = np.flatnonzero(missing)
            known, places = layer.located(ids[at])
            rows[at[known]], missing[at[known]] = layer.taken(places), False
        return rows, missing


# Restored: what was restored from a checkpoint, and what did not fit. Pure.

_MOST = 10
"""Parameters of a kind that are listed one by one."""


@dataclass(frozen=True, eq=False, repr=False)
class Restored(Mapping[str, Any]):
    """What `CheckpointManager.restore` did: a mapping, which is the checkpoint's metadata.

    Attributes
    ----------
    path : pathlib.Path or RemotePath
        The checkpoint.
    metadata : mapping
        What it was saved with.
    run : mapping
        What psnb saved of the run: ``"epochs"`` are the states of the epochs that were not over, in
        the order of their beginning, ``"closures"`` how many had ended, ``"versions"`` those of
        psnb, Python and packages. See `psnb.resume`.
    restored : tuple of str
        The parameters that were restored.
    missing : mapping of str to str
        The parameters that the checkpoint lacks, and what each was expected to be.
    unexpected : mapping of str to str
        What only the checkpoint has, by its names there, and what each is.
    different : mapping of str to str
        The parameters that have another shape, dtype or optimizer state there: expected and found.
    """

    path: AnyPath
    metadata: Mapping[str, Any]
    run: Mapping[str, Any]
    restored: tuple[str, ...]
    missing: Mapping[str, str]
    unexpected: Mapping[str, str]
    different: Mapping[str, str]

    def __getitem__(self, key: str) -> Any:
        return self.metadata[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metadata)

    def __len__(self) -> int:
        return len(self.metadata)

    def __repr__(self) -> str:
        return "\n".join(
            [
                f"from {str(self.path)!r}",
                f"  restored: {listed(self.restored)}",
                *self.faults,
                f"  metadata: {truncate(repr(dict(self.metadata)))}",
            ]
        )

    @property
    def faults(self) -> list[str]:
        """A line for each parameter that does not fit; of many, for the first, and a count."""
        return [
            *_lines("missing in it", self.missing),
            *_lines("only in it", self.unexpected),
            *_lines("different", self.different),
        ]


def listed(names: Sequence[str]) -> str:
    """Return names in a line; of many, the first ones and a count."""
    more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    return (", ".join(map(_quoted, names[:_MOST])) or "none") + more


def _lines(fault: str, texts: Mapping[str, str]) -> Iterator[str]:
    for name, text in islice(texts.items(), _MOST):
        yield f"  {fault}: {_quoted(name)}: {text}"
    if len(texts) > _MOST:
        yield f"  {fault}: {len(texts) - _MOST:,} more"


def _quoted(name: str) -> str:
    return truncate(repr(name), NAME)


class SavedCheckpoint(Mapping[str, Any]):
    """The parameters of a checkpoint by name; made by `psnb.checkpoint.load`.

    A variable is a read-only array: mapped into memory if one server had it, so only what is
    touched is read; otherwise joined in memory when it is asked for. An embedding is a
    `SavedTable`. The files of a parameter are checked when it is asked for first, `verify` checks
    all of them.

    Thread-safe. No manager removes the checkpoint while this object exists. Do not change or
    shorten its files while its arrays are used.

    Parameters
    ----------
    path : pathlib.Path or RemotePath
        Its folder.

    Raises
    ------
    CheckpointError
        If it is not a checkpoint, or is damaged.
    """

    def __init__(self, path: AnyPath) -> None:
        self._reader = CheckpointReader(path)
        self._manifest = self._reader.manifest
        self._opened: dict[str, np.ndarray | SavedTable] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._manifest.entries:
            raise KeyError(
                f"checkpoint {str(self.path)!r} has no {name!r:.200}; it has {listed(list(self))}"
            )
        if name not in self._opened:
            arrays = self._reader.arrays(self._manifest.entries[name])
            self._opened[name] = _value(name, arrays)
        return self._opened[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._manifest.entries)

    def __len__(self) -> int:
        return len(self._manifest.entries)

    def __contains__(self, name: object) -> bool:
        return name in self._manifest.entries  # without a look into its files

    def __repr__(self) -> str:
        rows = [
            (
                truncate(name, NAME),
                *(truncate(str(entry.description.get(key)), NAME) for key in ("kind", "dtype")),
                truncate(_size(entry.description), NAME),
                str(len(entry.files)),
            )
            for name, entry in self._manifest.entries.items()
        ]
        head = f"<psnb.checkpoint.SavedCheckpoint {str(self.path)!r}>"
        return f"{head}\n{text_table(('name', 'kind', 'dtype', 'size', 'files'), rows)}"

    @property
    def path(self) -> AnyPath:
        """Its folder: a `pathlib.Path`, or an address of another kind, as a text."""
        return self._reader.path

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What `CheckpointManager.save` was given."""
        return self._manifest.metadata

    @property
    def run(self) -> Mapping[str, Any]:
        """What psnb saved of the run; see `Restored`."""
        return self._manifest.run

    @property
    def format(self) -> int:
        """The version of its format on disk."""
        return FORMAT

    @property
    def optimizers(self) -> Mapping[str, Mapping[str, Any] | None]:
        """By name, the optimizer of each parameter and its hyperparameters; None without one."""
        return {name: entry.optimizer for name, entry in self._manifest.entries.items()}

    @property
    def descriptions(self) -> Mapping[str, Mapping[str, Any]]:
        """By name, the kind of each parameter, its dtype, shape or dim and rows, and slots."""
        return {name: entry.description for name, entry in self._manifest.entries.items()}

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files of all parameters."""
        return tuple(map(self._reader.stored.place, self._names()))

    @property
    def nbytes(self) -> int:
        """The bytes of all of them.

        Raises
        ------
        CheckpointError
            If one is missing.
        """
        return self._sum(self._names())

    @property
    def own_nbytes(self) -> int:
        """The bytes that were written for it; the others it shares with checkpoints before it.

        Raises
        ------
        CheckpointError
            If a file is missing.
        """
        return self._sum(filter(self._manifest.own, self._names()))

    def _sum(self, names: Iterable[str]) -> int:
        try:
            return sum(map(self._reader.stored.size, names))
        except OSError as error:
            raise CheckpointError(f"checkpoint {str(self.path)!r} lacks a file: {error}") from error

    def verify(self) -> None:
        """Check all files, with their checksums.

        Raises
        ------
        CheckpointError
            If some are missing or damaged; it names all parameters that are. Or if one cannot be
            read now.
        """
        damage = []
        for name in self:
            try:
                self._reader.arrays(self._manifest.entries[name])
            except CheckpointError as error:
                require_read(self._reader.path, error)
                damage.append(str(error))
        if damage:
            more = [f"{len(damage) - _MOST:,} more are damaged"] if len(damage) > _MOST else []
            raise CheckpointError("\n".join([*damage[:_MOST], *more]))

    def _names(self) -> Iterator[str]:
        """Yield the names of the files of all parameters."""
        for entry in self._manifest.entries.values():
            yield from entry.files


def _value(
    name: str, shards: Sequence[Mapping[FileKey, State]], base: Any = None
) -> np.ndarray | SavedTable:
    """Return what a parameter was, from its arrays; ``base`` is what it was before."""
    parts = [list(shard.values()) for shard in shards]
    if "ids" in parts[0][0]:
        return SavedTable(name, parts, base)
    values = [part["values"] for (part,) in parts]  # variables have no deltas
    whole = values[0] if len(values) == 1 else np.concatenate(values)
    whole.flags.writeable = False
    return whole


def _size(description: Mapping[str, Any]) -> str:
    if "shape" in description:
        return str(description["shape"])
    rows = description.get("rows")
    return f"{'any id' if rows is None else f'{rows} rows'} of {description.get('dim')}"


def load(path: str | os.PathLike[str]) -> SavedCheckpoint:
    """Open a checkpoint without a cluster, to look at what was learned.

    ``psnb.checkpoint.load("checkpoints/ckpt-000003")["w"]`` is an array, and of an embedding
    ``["users"].lookup([3, 5])`` are rows. Nothing in a checkpoint is pickled.

    Parameters
    ----------
    path : path
        The checkpoint's folder, for example ``manager.latest_checkpoint``; or an address that
        fsspec understands: then the files of a parameter are copied to this machine's folder for
        temporary files when it is asked for first.

    Returns
    -------
    SavedCheckpoint
        A mapping from names to arrays.

    Raises
    ------
    CheckpointError
        If it is not a checkpoint, or is damaged.
    """
    return SavedCheckpoint(as_path(path_text("psnb.checkpoint.load: path", path)))


# What is in a folder of checkpoints, for the command line: a table, and what is wrong. Pure.

_WIDTH = 100
"""Characters of the metadata that are shown; 100 at least for `truncate`."""


@dataclass(frozen=True, slots=True)
class FolderListing:
    """What a folder of checkpoints has.

    Attributes
    ----------
    text : str
        A table with a line for each, the oldest first; below it, what is wrong.
    count, damaged : int
        How many there are, and how many of them are damaged.
    """

    text: str
    count: int
    damaged: int


def folder_listing(directory: AnyPath, *, verify: bool) -> FolderListing:
    """Look at all checkpoints of a folder.

    Parameters
    ----------
    directory : Path or RemotePath
        The folder.
    verify : bool
        Whether to check all that is in their files; otherwise, that the files are there.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    rows: list[tuple[str, ...]] = []
    wrong: list[str] = []
    folder = store_at(directory)
    for path in checkpoints_in(directory):
        try:
            known = path.name, folder.written(path), *_known(path, verify)
            rows.append((*known, "ok" if verify else "not verified"))
        except CheckpointError as error:
            if not is_gone(path):  # otherwise a manager removed it just now
                rows.append((path.name, folder.written(path), *[""] * 4, "damaged"))
                wrong.append(str(error))
    if not rows:
        raise CheckpointError(f"there is no checkpoint in {str(directory)!r}")
    head = ("checkpoint", "written", "parameters", "bytes", "new", "metadata", "state")
    return FolderListing("\n".join([text_table(head, rows), *wrong]), len(rows), len(wrong))


def prune_verified(directory: AnyPath, keep: int) -> list[str]:
    """Remove all but the newest checkpoints, if these are whole.

    Parameters
    ----------
    directory : Path or RemotePath
        The folder.
    keep : int
        How many to keep; those that are in use, or are marked as kept, stay too.

    Returns
    -------
    list of str
        The names of those that were removed.

    Raises
    ------
    CheckpointError
        If one to be kept is damaged; nothing was removed.
    """
    folder = store_at(directory)
    before = checkpoints_in(directory)
    for path in before[-keep:]:
        try:
            SavedCheckpoint(path).verify()
        except CheckpointError as error:
            raise CheckpointError(
                f"nothing was removed, as one of those to keep is not whole: {error}"
            ) from error
    folder.prune(keep)
    left = {path.name for path in checkpoints_in(directory)}
    return [path.name for path in before if path.name not in left]


def _known(path: AnyPath, verify: bool) -> tuple[str, str, str, str]:
    """Return what a checkpoint's line says of its content."""
    saved = SavedCheckpoint(path)
    size, own = saved.nbytes, saved.own_nbytes
    if verify:
        saved.verify()
    plain = [
        f"{key}={value}"
        for key, value in saved.metadata.items()
        if value is None or isinstance(value, str | int | float)
    ]
    metadata = truncate(" ".join(" ".join(plain).split()), _WIDTH)
    return f"{len(saved):,}", f"{size:,}", f"{own:,}", metadata


# NewerCheckpoint: a checkpoint that predictions use, read without what is known already. Pure.
#
# A follower asks for a folder's newest checkpoint again and again. Files that the one before
# had, too, are not read again; a delta shares all but its own with those before it.


@dataclass(frozen=True)
class WantedParameter:
    """What a parameter must be.

    Attributes
    ----------
    description : mapping
        What the checkpoint must describe it as.
    recipe : mapping
        How it must have been made, if the checkpoint says that.
    """

    description: Mapping[str, Any]
    recipe: Mapping[str, Any]

    def differences(self, entry: ManifestEntry, recipe: Any) -> Iterator[str]:
        """Yield what is different, for people to read."""
        of_saved = recipe if isinstance(recipe, dict) else self.recipe
        for wanted, found in ((self.description, entry.description), (self.recipe, of_saved)):
            for key, value in wanted.items():
                if found.get(key) != value:
                    yield f"expected {key} {value!r:.200}, found {found.get(key)!r:.200}"


@dataclass(frozen=True, eq=False)
class NewerCheckpoint:
    """Parameters of a checkpoint.

    Attributes
    ----------
    reader : CheckpointReader
        The checkpoint, which no manager removes while this exists.
    number : int
        Its number.
    values : mapping of str to numpy.ndarray or SavedTable
        Variables, and the rows of tables.
    known : mapping of tuple to mapping
        The arrays of all files that were checked.
    """

    reader: CheckpointReader
    number: int
    values: Mapping[str, Any]
    known: Mapping[FileKey, State]


def newest_number(directory: AnyPath) -> int:
    """Return the number of the newest checkpoint of a folder; 0 if there is none.

    Raises
    ------
    CheckpointError
        If it cannot be looked up.
    """
    found = _newest(directory)
    return 0 if found is None else found[0]


def newer_checkpoint(
    directory: AnyPath,
    after: int,
    wanted: Mapping[str, WantedParameter],
    before: NewerCheckpoint | None = None,
) -> NewerCheckpoint | None:
    """Read the newest checkpoint of a folder; None unless its number is larger than ``after``.

    Parameters
    ----------
    directory : Path or RemotePath
        The folder.
    after : int
        A number.
    wanted : mapping of str to WantedParameter
        The parameters to read.
    before : NewerCheckpoint, optional
        Another one, with the same parameters.

    Raises
    ------
    CheckpointError
        If it is damaged, cannot be read, or has other parameters; then all that is different. Or if
        the folder's newest one is older than the number: it is not the same folder any more.
    """
    newest = _newest(directory)
    if after and (newest is None or newest[0] < after):
        there = "there is none" if newest is None else f"the newest is {newest[1].name}"
        raise CheckpointError(
            f"{str(directory)!r} had checkpoint number {after} and does not have it any more: "
            f"{there}. If the folder was emptied or replaced, export the model again: numbers "
            "began at 1; if a disk or network is away, the model goes on when it is back"
        )
    while newest is not None and newest[0] > after:
        number, path = newest
        try:
            reader = CheckpointReader(path)
            try:
                return _read(reader, number, wanted, before)
            except BaseException:  # an interrupt, too: the file is not kept open
                reader.release()
                raise
        except (CheckpointError, OSError) as error:
            # A manager may have removed it just now; then there is a newer one.
            newest = _newest(directory)
            if newest is None or newest[0] == number:
                if isinstance(error, CheckpointError):
                    raise
                raise not_read(path, error) from error
    return None


def _newest(directory: AnyPath) -> tuple[int, AnyPath] | None:
    found = checkpoints_in(directory)
    return (number_of(found[-1].name) or 0, found[-1]) if found else None


def _read(
    reader: CheckpointReader,
    number: int,
    wanted: Mapping[str, WantedParameter],
    before: NewerCheckpoint | None,
) -> NewerCheckpoint:
    _check_fits(reader, wanted)
    values: dict[str, Any] = {}
    known: dict[FileKey, State] = {}
    for name in wanted:
        entry = reader.manifest.entries[name]
        shards = reader.arrays(entry, before.known if before else {})
        for files in shards:
            known |= files
        values[name] = _value(name, shards, before.values[name] if before else None)
        rows = entry.description.get("rows")
        if rows is not None and len(values[name]) != rows:
            raise CheckpointError(
                f"checkpoint {str(reader.path)!r}: {name!r} has {len(values[name])} of {rows} rows"
            )
    return NewerCheckpoint(reader, number, values, known)


def _check_fits(reader: CheckpointReader, wanted: Mapping[str, WantedParameter]) -> None:
    manifest = reader.manifest
    recipes = manifest.run.get("recipes")
    of_saved = recipes if isinstance(recipes, dict) else {}
    faults = []
    for name, each in wanted.items():
        if name not in manifest.entries:
            faults.append(f"{name!r}: expected {dict(each.description)}, found nothing")
            continue
        found = list(each.differences(manifest.entries[name], of_saved.get(name)))
        faults += [f"{name!r}: {'; '.join(found)}"] if found else []
    if faults:
        raise CheckpointError(
            "\n".join(
                [
                    f"checkpoint {str(reader.path)!r} does not fit the model, which stays as it "
                    "is; follow the run that the model was exported from, or export it again:",
                    *faults,
                ]
            )
        )
