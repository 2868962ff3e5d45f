"""DeltaBase: a checkpoint that the next one may build on, and the marks of its moment. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from psnb._src.checkpoint.checkpoint_folder import CheckpointFolder, StoredCheckpoint
from psnb._src.remote_path import Place
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
    shards : mapping of tuple to mapping of str to str
        The files of each shard, with their checksums.
    marks : mapping of tuple to str
        Of each shard, the servers' mark of that moment.
    """

    path: Place
    depth: int
    shards: Mapping[ShardKey, Mapping[str, str]]
    marks: Mapping[ShardKey, str]


class UsedBase(NamedTuple):
    """One that is in use, so that nobody removes it."""

    stored: StoredCheckpoint
    known: DeltaBase


@contextmanager
def in_use(folder: CheckpointFolder, base: DeltaBase | None) -> Iterator[UsedBase | None]:
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
