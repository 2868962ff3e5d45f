"""Writes a checkpoint, as a whole or as a delta of the one before. Pure, without Dask.

A checkpoint is a folder::

    ckpt-000003/
      manifest.json              what is in it: one entry a parameter, and the caller's metadata
      kept                       only if it is never removed as one of the oldest; empty
      00000-variables.bin        what a server has: values and optimizer state of variables,
      00000-tables.bin           and of the rows of embeddings, with their ids
      00000-tables-01.bin        a delta has such, too: of the rows that changed
      …

A file consists of parts, one for each shard: arrays, one right after the other, and nothing else.
The manifest has for each part its file, where it begins, its checksum, and the form of each array.
Variables and tables are apart as of deltas most variables are new, and most rows are shared.

Each server writes its files into a partial checkpoint, and syncs them; then the manifest is
written, and it becomes a checkpoint in one step. (`psnb._src.checkpoint.local_store` and
`psnb._src.checkpoint.store` say how, and how several processes share a folder.) Nothing in it is
pickled. A shard is a unit of writing only: a parameter is read from all of its shards, for any
number of servers. Shards that did not change since an earlier checkpoint are not written again, if
the caller says so: the new one shares the files (see `DeltaBase`), with all that is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec

from psnb._src.checkpoint.manifest import Manifest, ManifestEntry, checked_metadata, file_name
from psnb._src.checkpoint.store import CheckpointStore, PartialCheckpoint, StoredCheckpoint
from psnb._src.client.snapshots import TableSnapshots
from psnb._src.server.tables.saved_files import FilePart
from psnb._src.utils.paths import AnyPath, RemotePath
from psnb.errors import CheckpointError

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
    shards : mapping of tuple to sequence of FilePart
        The parts of each shard.
    marks : mapping of tuple to str
        Of each shard, the servers' mark of that moment.
    """

    path: AnyPath
    depth: int
    shards: Mapping[ShardKey, Sequence[FilePart]]
    marks: Mapping[ShardKey, str]


class UsedBase(NamedTuple):
    """A base that is in use, so that it is not removed."""

    stored: StoredCheckpoint
    known: DeltaBase


@contextmanager
def in_use(folder: CheckpointStore, base: DeltaBase | None) -> Iterator[UsedBase | None]:
    """Use a base; None if there is none, or it was removed since, or a file is not there."""
    found = None
    with ExitStack() as ended:
        if base is not None:
            with suppress(CheckpointError):
                stored = folder.use(base.path)
                ended.callback(stored.release)
                if stored.has(_files(base.shards)):
                    found = UsedBase(stored, base)
        yield found


def write_checkpoint(
    directory: CheckpointStore,
    taken: TableSnapshots,
    metadata: Mapping[str, Any],
    *,
    consistent: bool = False,
    kept: bool = False,
    on_progress: Callable[[float], object] = bool,
    run: Mapping[str, Any] | None = None,
    base: UsedBase | None = None,
) -> DeltaBase:
    """Write the next checkpoint: all of it or nothing.

    Parameters
    ----------
    directory : CheckpointStore
        The folder of checkpoints.
    taken : TableSnapshots
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
        psnb's state of the run, for resuming.
    base : UsedBase, optional
        The checkpoint since which ``taken`` has the changes.

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
        with directory.partial() as made:
            shards: dict[ShardKey, list[FilePart]] = {key: [] for key in taken.taken}
            depth = 0
            if base is not None:
                parts = [key for key, each in taken.taken.items() if not each.whole]
                if shared := {key: [*base.known.shards[key]] for key in parts}:
                    depth = base.known.depth + 1
                    made.share(base.stored, _files(shared))
                    shards |= shared
            written = taken.write(str(made.folder), partial(file_name, depth), on_progress)
            for server, new in written.items():
                _check_there(made, server, new.values())
                for key, part in new.items():
                    shards[key].append(msgspec.structs.replace(part, file=made.prefix + part.file))
            entries = [
                ManifestEntry(
                    name,
                    each.describe(),
                    each.optimizer.describe() if each.optimizer else None,
                    [shards[name, shard] for shard, _ in enumerate(each.tables)],
                )
                for name, each in taken.parameters.items()
            ]
            manifest = Manifest(content, consistent, run or {}, depth, made.prefix, entries)
            path = made.finish(manifest, kept=kept)
            marks = {key: each.mark for key, each in taken.taken.items()}
            return DeltaBase(path, depth, shards, marks)
    except OSError as error:
        raise CheckpointError(
            f"a checkpoint cannot be written to {str(directory.path)!r}: {error}"
        ) from error


def _files(shards: Mapping[ShardKey, Sequence[FilePart]]) -> list[str]:
    """Return the names of the files in which parts are."""
    return [*dict.fromkeys(part.file for parts in shards.values() for part in parts)]


def _check_there(made: PartialCheckpoint, server: str, parts: Iterable[FilePart]) -> None:
    """Check that the files that a server has written are there for this process, too."""
    for file, nbytes in {part.file: part.stop for part in parts}.items():  # the last part's end
        try:
            size = RemotePath(str(made.folder / file)).size()
        except FileNotFoundError:
            size = -1
        if size != nbytes:
            here = "is not there" if size < 0 else f"has {size:,} bytes of {nbytes:,}"
            raise CheckpointError(
                f"{server} has written {file} into {str(made.folder)!r}, but in the notebook it "
                f"{here}: the server is on another host, which has a folder of that name, too. All "
                "servers and the notebook must reach the directory, on disks that they share or by "
                "an address like s3://bucket/folder"
            )
