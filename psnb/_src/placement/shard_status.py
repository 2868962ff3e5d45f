"""ShardStatus: a server's role for a shard, and the states of the copies that it feeds. Pure.

These are the states of a shard on one server and of a copy as its primary sees it, with their
transitions. What they mean for the layout is decided in `psnb._src.placement.mending`.

::

                 place: it is the primary            place: its heir takes over, or another primary
        COPY ─────────────────────────────▶ PRIMARY ────────────────────────────────────▶ RETIRED
         ▲                                   ▲    place: it is the primary after all       │  │
         │                                   └─────────────────────────────────────────────┘  │
         └────────────────────────────────────────────────────────────────────────────────────┘
                 a primary of a newer term begins to fill or follow it

        FILLING ──▶ FILLED       and from both of them to BROKEN

A shard that a server must hold no more is dropped, in any role.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """A server's role for a shard."""

    PRIMARY = "primary"
    """It answers, and sends changes on."""
    COPY = "copy"
    """It does what the primary has done."""
    RETIRED = "retired"
    """It was the primary; it answers that the shard is elsewhere."""


ROLES = frozenset(
    {
        (Role.COPY, Role.PRIMARY),
        (Role.PRIMARY, Role.RETIRED),
        (Role.RETIRED, Role.PRIMARY),
        (Role.RETIRED, Role.COPY),
    }
)
"""Which role may follow which."""


class CopyState(StrEnum):
    """How far a copy is, as its primary sees it."""

    FILLING = "filling"
    """It lacks something: changes do not wait for it, and it cannot take over."""
    FILLED = "filled"
    """It has all that was acknowledged: every change waits for it."""
    BROKEN = "broken"
    """It does not follow any more; changes wait until it is known that it will not take over."""


COPY_STATES = frozenset(
    {
        (CopyState.FILLING, CopyState.FILLED),
        (CopyState.FILLING, CopyState.BROKEN),
        (CopyState.FILLED, CopyState.BROKEN),
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
        Version of the place that it has heard of last.
    idle : bool
        Whether it is retired, and all copies have acknowledged everything.
    copies : mapping of str to CopyState
        The states of its copies, by the keys of their servers.
    """

    role: Role
    version: int
    idle: bool = False
    copies: Mapping[str, CopyState] = field(default_factory=dict)
