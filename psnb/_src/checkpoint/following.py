"""NewerCheckpoint: a checkpoint for predictions, of which only what is new is read. Pure.

A follower asks for a folder's newest checkpoint again and again. Parts that the one before had,
too, are not read again; a delta shares all but its own with those before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psnb._src.checkpoint.folders import checkpoints_in, not_read
from psnb._src.checkpoint.manifest import differences
from psnb._src.checkpoint.reader import parameter_value
from psnb._src.checkpoint.shards import CheckedKey, CheckpointReader, State
from psnb._src.checkpoint.store import number_of
from psnb._src.utils.paths import AnyPath
from psnb.errors import CheckpointError


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
        The arrays of all parts that were checked.
    """

    reader: CheckpointReader
    number: int
    values: Mapping[str, Any]
    known: Mapping[CheckedKey, State]


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
    known: dict[CheckedKey, State] = {}
    for name in wanted:
        entry = reader.manifest.entries[name]
        shards = reader.arrays(entry, before.known if before else {})
        for parts in shards:
            known |= parts
        values[name] = parameter_value(name, shards, before.values[name] if before else None)
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
        made = of_saved.get(name)
        found = [
            *differences(each.description, manifest.entries[name].description),
            *differences(each.recipe, made if isinstance(made, dict) else each.recipe),
        ]
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
