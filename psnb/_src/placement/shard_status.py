"""ShardStatus: what a server is for a shard, and how far the copies are that it keeps. Pure.

These are the states of a shard on one server and of a copy as its primary sees it, and how they may
follow each other. What follows for the layout is decided in `psnb._src.placement.mending`.

::

                 place: it is the primary            place: its heir takes over, or another primary
        COPY ─────────────────────────────▶ PRIMARY ────────────────────────────────────▶ RETIRED
         ▲                                   ▲    place: it is the primary after all       │  │
         │                                   └─────────────────────────────────────────────┘  │
         └────────────────────────────────────────────────────────────────────────────────────┘
                 a primary of a newer term begins to fill or follow it

        FILLING ──▶ FILLED       and from both of them to BROKEN

A shard that a server is to hold no more is dropped, in whatever role.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """What a server is for a shard."""

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
    """It lacks something: nobody waits for it, and it cannot take over."""
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
"""Which of them may follow which."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A shard on a server.

    Attributes
    ----------
    role : Role
        What the server is for it.
    version : int
        Of the place that it has heard of last.
    idle : bool
        Whether it is retired, and all copies have acknowledged everything.
    copies : mapping of str to CopyState
        How far they are, by the keys of their servers.
    """

    role: Role
    version: int
    idle: bool = False
    copies: Mapping[str, CopyState] = field(default_factory=dict)
