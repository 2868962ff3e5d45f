"""KeptStrategy: what the Dask scheduler keeps of a strategy, so that others find it. Pure.

It is enough to make the strategy and its handles again when the process that owned it has died.
The scheduler unpickles none of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PUBLISH_AGAIN = 5.0
"""Seconds after which an owner publishes its layout again, which is its sign of life."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a strategy.

    Attributes
    ----------
    token : str
        Its own, by which it is known.
    client : str
        The id of its Dask client.
    where : str
        What people read: host, process, and kernel.
    since : float
        When it became the owner, in seconds since 1970.
    """

    token: str
    client: str
    where: str
    since: float


@dataclass(frozen=True, slots=True)
class Deed:
    """What a strategy is, besides its parameters and where they are.

    Attributes
    ----------
    name : str
        What people call it; unique on the cluster.
    made : float
        When it was made, in seconds since 1970.
    keep : float
        Seconds for which it is kept without an owner.
    packed : bytes
        What only its owner reads, pickled.
    """

    name: str
    made: float
    keep: float
    packed: bytes


@dataclass(slots=True)
class KeptStrategy:
    """What is kept of a strategy.

    Attributes
    ----------
    deed : Deed
        What it is.
    owner : Owner
        The latest.
    layout : list
        Where its shards are, packed; empty until it was published.
    parameters : dict
        Its parameters by name, pickled, in the order in which they were made.
    models : dict
        What of which model is in which parameter, by the models' names.
    heard : float
        When its owner was heard last, by the scheduler's clock.
    left : bool
        Whether the owner's client has gone since.
    """

    deed: Deed
    owner: Owner
    heard: float
    layout: list[Any] = field(default_factory=list)
    parameters: dict[str, bytes] = field(default_factory=dict)
    models: dict[str, bytes] = field(default_factory=dict)
    left: bool = False

    @property
    def lease(self) -> float:
        """Seconds after which an owner counts as gone that says nothing."""
        patience = self.layout[3] if self.layout else 0.0
        return float(patience) + PUBLISH_AGAIN

    def lives(self, now: float) -> bool:
        """Return whether its owner lives, as far as the scheduler knows."""
        return not self.left and now - self.heard < self.lease
