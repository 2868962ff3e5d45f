"""ServerStatus: what a server answers to its strategy's beats. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psnb._src.placement.shard_status import ShardStatus


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The status of a server.

    Attributes
    ----------
    shards : mapping of int to ShardStatus
        What it holds, by the shards' numbers.
    leaves : bool
        Whether its process was asked to end: its shards must go elsewhere soon.
    writes : bool
        Whether it writes a checkpoint: nobody else has the moment that is saved.
    """

    shards: Mapping[int, ShardStatus]
    leaves: bool = False
    writes: bool = False
