"""NewerCheckpoint: a checkpoint that predictions use, read without what is known already. Pure.

Whoever follows a folder asks for the newest checkpoint again and again. Files that the one before
had, too, are not read again; a delta shares all but its own with those before it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.checkpoint.check_files import FileKey, file_key
from psnb._src.checkpoint.checkpoint_folder import StoredCheckpoint, number_of
from psnb._src.checkpoint.described_state import described_shards
from psnb._src.checkpoint.folder_of import checkpoints_in, not_read, use
from psnb._src.checkpoint.layered_rows import LayeredRows
from psnb._src.checkpoint.manifest import Manifest, ManifestEntry
from psnb._src.checkpoint.shard_files import State
from psnb._src.remote_path import Place
from psnb.errors import CheckpointError


@dataclass(frozen=True)
class WantedParameter:
    """What a parameter must be.

    Attributes
    ----------
    description : mapping
        What the checkpoint must describe it as.
    recipe : mapping
        How it must have been made, if the checkpoint tells that.
    """

    description: Mapping[str, Any]
    recipe: Mapping[str, Any]

    def differences(self, entry: ManifestEntry, recipe: Any) -> Iterator[str]:
        """Yield what is different, for people to read."""
        told = recipe if isinstance(recipe, dict) else self.recipe
        for wanted, found in ((self.description, entry.description), (self.recipe, told)):
            for key, value in wanted.items():
                if found.get(key) != value:
                    yield f"expected {key} {value!r:.200}, found {found.get(key)!r:.200}"


@dataclass(frozen=True, eq=False)
class NewerCheckpoint:
    """Parameters of a checkpoint, which no manager removes while this exists.

    Attributes
    ----------
    path : Path or RemotePath
        Where it is.
    number : int
        Its number.
    manifest : Manifest
        What it says of itself.
    variables : mapping of str to numpy.ndarray
        The values of variables.
    tables : mapping of str to LayeredRows
        The rows of tables.
    known : mapping of tuple to mapping
        The arrays of all files that were checked.
    """

    path: Place
    number: int
    manifest: Manifest
    variables: Mapping[str, np.ndarray]
    tables: Mapping[str, LayeredRows]
    known: Mapping[FileKey, State]


def newest_number(directory: Place) -> int:
    """Return the number of the newest checkpoint of a folder; 0 if there is none.

    Raises
    ------
    CheckpointError
        If it cannot be looked up.
    """
    found = _newest(directory)
    return 0 if found is None else found[0]


def newer_checkpoint(
    directory: Place,
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
            stored = use(path)
            try:
                found = _read(stored, number, wanted, before)
            except BaseException:
                stored.release()
                raise
            weakref.finalize(found, stored.release)
            return found
        except (CheckpointError, OSError) as error:
            # A manager may have removed it just now; then there is a newer one.
            newest = _newest(directory)
            if newest is None or newest[0] == number:
                if isinstance(error, CheckpointError):
                    raise
                raise not_read(path, error) from error
    return None


def _newest(directory: Place) -> tuple[int, Place] | None:
    found = checkpoints_in(directory)
    return (number_of(found[-1].name) or 0, found[-1]) if found else None


def _read(
    stored: StoredCheckpoint,
    number: int,
    wanted: Mapping[str, WantedParameter],
    before: NewerCheckpoint | None,
) -> NewerCheckpoint:
    manifest = stored.manifest()
    _check_fits(stored, manifest, wanted)
    old = {} if before is None else before.known
    variables: dict[str, np.ndarray] = {}
    tables: dict[str, LayeredRows] = {}
    known: dict[FileKey, State] = {}
    for name in wanted:
        entry = manifest.entries[name]
        shards = described_shards(stored, entry, old)
        keys = [[file_key(entry, at, file) for file in e] for at, e in enumerate(entry.shards)]
        for names, parts in zip(keys, shards, strict=True):
            known |= dict(zip(names, parts, strict=True))
        if entry.description["kind"] == "variable":
            variables[name] = np.concatenate([shard[0]["values"] for shard in shards])
            continue
        whole = tuple(names[0] for names in keys)
        earlier = None if before is None else before.tables[name]
        tables[name] = LayeredRows(name, shards, whole, earlier)
        rows = entry.description["rows"]
        if rows is not None and len(tables[name]) != rows:
            raise CheckpointError(
                f"checkpoint {str(stored.path)!r}: {name!r} has {len(tables[name])} of {rows} rows"
            )
    return NewerCheckpoint(stored.path, number, manifest, variables, tables, known)


def _check_fits(
    stored: StoredCheckpoint, manifest: Manifest, wanted: Mapping[str, WantedParameter]
) -> None:
    recipes = manifest.run.get("recipes")
    told = recipes if isinstance(recipes, dict) else {}
    faults = []
    for name, each in wanted.items():
        if name not in manifest.entries:
            faults.append(f"{name!r}: expected {dict(each.description)}, found nothing")
            continue
        found = list(each.differences(manifest.entries[name], told.get(name)))
        faults += [f"{name!r}: {'; '.join(found)}"] if found else []
    if faults:
        raise CheckpointError(
            "\n".join(
                [
                    f"checkpoint {str(stored.path)!r} does not fit the model, which stays as it "
                    "is; follow the run that the model was exported from, or export it again:",
                    *faults,
                ]
            )
        )
