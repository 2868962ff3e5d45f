"""What a server reports: its role for each shard, and the states of its replicas. Pure.

`psnb._src.placement.next_layout` decides what follows from them for the layout. A server becomes
the primary when the newest placement says so, and retires when its successor takes over. A retired
one is the primary again if the next placement has it so after all, or a replica of a primary of a
newer term. A shard that a server must no longer hold is dropped, in any role.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from psnb._src.utils.process_memory.limits import MemoryUse


class Role(StrEnum):
    """A server's role for a shard."""

    PRIMARY = "primary"
    """It answers, and sends changes on."""
    REPLICA = "replica"
    """It does what the primary has done."""
    RETIRED = "retired"
    """It was the primary; it answers that the shard is elsewhere."""


ROLES = frozenset(
    {
        (Role.REPLICA, Role.PRIMARY),
        (Role.PRIMARY, Role.RETIRED),
        (Role.RETIRED, Role.PRIMARY),
        (Role.RETIRED, Role.REPLICA),
    }
)
"""Which role may follow which."""


class ReplicaState(StrEnum):
    """How far a replica is, as its primary sees it."""

    SYNCING = "syncing"
    """It lacks something: changes do not wait for it, and it cannot take over."""
    SYNCED = "synced"
    """It has all that was acknowledged: every change waits for it."""
    BROKEN = "broken"
    """It does not follow any more; changes wait until it is known that it will not take over."""


REPLICA_STATES = frozenset(
    {
        (ReplicaState.SYNCING, ReplicaState.SYNCED),
        (ReplicaState.SYNCING, ReplicaState.BROKEN),
        (ReplicaState.SYNCED, ReplicaState.BROKEN),
    }
)
"""Which state may follow which."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The status of a shard on a server.

    Attributes
    ----------
    role : Role
        The server's role.
    version : int
        Version of the latest place that has reached it.
    idle : bool
        Whether it is retired, and all replicas have acknowledged everything.
    replicas : mapping of str to ReplicaState
        The states of its replicas, by the keys of their servers.
    """

    role: Role
    version: int
    idle: bool = False
    replicas: Mapping[str, ReplicaState] = field(default_factory=dict)


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
        Whether it writes a checkpoint: no other server has the moment that is saved.
    memory : MemoryUse or None
        The limit of memory that is nearest to its process; None if there is none.
    """

    shards: Mapping[int, ShardStatus]
    leaves: bool = False
    writes: bool = False
    memory: MemoryUse | None = None
