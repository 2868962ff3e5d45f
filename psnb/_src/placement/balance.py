"""Which shards should move, so that servers are loaded evenly. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from psnb._src.placement.layout import Layout, ServerAddress


def moves(
    layout: Layout, usable: Sequence[ServerAddress], weights: Sequence[float]
) -> list[tuple[int, ServerAddress]]:
    """Return which shards should get another primary, so that servers are loaded evenly.

    Shards on servers that are not usable move in any case, others only if the higher load of the
    two servers becomes lower; so a balanced layout stays as it is.

    Parameters
    ----------
    layout : Layout
        Where shards are.
    usable : sequence of ServerAddress
        Servers that may hold shards.
    weights : sequence of float
        The size of each shard, in bytes.
    """
    # An empty shard will have something one day.
    weight = [each + 1.0 for each in weights]
    holds: dict[ServerAddress, list[int]] = {server: [] for server in usable}
    found: dict[int, ServerAddress] = {}
    homeless = []
    for index, placement in enumerate(layout.placements):
        if placement.primary in holds:
            holds[placement.primary].append(index)
        elif placement.primary is not None:
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
            placements = layout.placements
            return sorted(move for move in found.items() if move[1] != placements[move[0]].primary)
        # The shard that brings the two loads closest together.
        index = min(fitting, key=lambda index: abs(gap - 2 * weight[index]))
        holds[heaviest].remove(index)
        holds[lightest].append(index)
        found[index] = lightest
