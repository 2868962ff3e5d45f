"""What to do about servers that die, come and go. Pure; `psnb.strategy` carries it out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from psnb.placement.layout import Layout, Place, ServerAddress


@dataclass(frozen=True, slots=True)
class Failover:
    """What follows from the death of servers.

    Attributes
    ----------
    places : tuple of Place
        Where shards are from now on.
    promoted : mapping
        For each server that becomes a primary, of which shards.
    bereft : mapping
        For each server that must do without a copy, of which shards, and the copy's server.
    lost : tuple of int
        Shards of which no copy is left.
    """

    places: tuple[Place, ...]
    promoted: Mapping[ServerAddress, Sequence[int]]
    bereft: Mapping[ServerAddress, Sequence[tuple[int, ServerAddress]]]
    lost: tuple[int, ...]


def fail_over(layout: Layout, dead: Collection[ServerAddress]) -> Failover:
    """Return what to do when servers are dead."""
    places: list[Place] = []
    promoted: dict[ServerAddress, list[int]] = {}
    bereft: dict[ServerAddress, list[tuple[int, ServerAddress]]] = {}
    lost: list[int] = []
    for index, place in enumerate(layout.places):
        primary, replica = place.primary, place.replica
        if primary in dead:
            if replica is not None and replica not in dead:
                promoted.setdefault(replica, []).append(index)
                primary = replica
            else:
                lost.append(index)
                primary = None
            replica = None
        elif primary is not None and replica is not None and replica in dead:
            bereft.setdefault(primary, []).append((index, replica))
            replica = None
        places.append(Place(primary, replica))
    return Failover(tuple(places), promoted, bereft, tuple(lost))


def copies_to_make(
    layout: Layout, usable: Collection[ServerAddress], under_way: Mapping[int, ServerAddress]
) -> dict[int, ServerAddress]:
    """Return on which server each shard that lacks a copy should get one.

    Parameters
    ----------
    layout : Layout
        Where shards are.
    usable : collection of ServerAddress
        Servers that may get copies.
    under_way : mapping
        Copies that are being filled.
    """
    if not layout.replicas:
        return {}
    load = dict.fromkeys(usable, 0)
    for place in layout.places:
        for server in (place.primary, place.replica):
            if server in load:
                load[server] += 1
    for server in under_way.values():
        if server in load:
            load[server] += 1
    made: dict[int, ServerAddress] = {}
    for index, place in enumerate(layout.places):
        others = [server for server in load if server != place.primary]
        if place.primary is None or place.replica is not None or index in under_way or not others:
            continue
        made[index] = min(others, key=lambda server: load[server])
        load[made[index]] += 1
    return made


def moves(
    layout: Layout, usable: Sequence[ServerAddress], weights: Sequence[float]
) -> list[tuple[int, ServerAddress]]:
    """Return which shards should become primary elsewhere, so that servers are loaded evenly.

    Shards on servers that are not usable move in any case, others only if the most loaded server of
    the two gets lighter by it; so a balanced layout stays as it is.

    Parameters
    ----------
    layout : Layout
        Where shards are.
    usable : sequence of ServerAddress
        Servers that may hold shards.
    weights : sequence of float
        What each shard weighs, in bytes.
    """
    # A shard without anything in it will have something one day.
    weight = [each + 1.0 for each in weights]
    holds: dict[ServerAddress, list[int]] = {server: [] for server in usable}
    found: dict[int, ServerAddress] = {}
    homeless = []
    for index, place in enumerate(layout.places):
        if place.primary in holds:
            holds[place.primary].append(index)
        elif place.primary is not None:
            homeless.append(index)

    def load(server: ServerAddress) -> float:
        return sum(weight[index] for index in holds[server])

    for index in sorted(homeless, key=lambda index: -weight[index]):
        target = min(usable, key=load)
        holds[target].append(index)
        found[index] = target
    while True:
        heaviest, lightest = max(usable, key=load), min(usable, key=load)
        gap = load(heaviest) - load(lightest)
        fitting = [index for index in holds[heaviest] if weight[index] < gap]
        if not fitting:
            places = layout.places
            return sorted(move for move in found.items() if move[1] != places[move[0]].primary)
        # What brings the two closest together.
        index = min(fitting, key=lambda index: abs(gap - 2 * weight[index]))
        holds[heaviest].remove(index)
        holds[lightest].append(index)
        found[index] = lightest
