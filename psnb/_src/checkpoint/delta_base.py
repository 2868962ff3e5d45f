"""DeltaBase: a checkpoint that the next one may build on, and the marks of its moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psnb._src.remote_path import Place

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
