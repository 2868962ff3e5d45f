"""Ending a round of synchronous updates: what closures pushed becomes one update.

A shard has a part of a gradient only, so norms are asked for first where a parameter may be clipped
by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from psnb.parameters.batch import Request
from psnb.parameters.handle import Handle
from psnb.parameters.transport import Transport
from psnb.placement import ShardId


def apply_round(
    transport: Transport,
    shards: Sequence[ShardId],
    parameters: Iterable[Handle],
    writer: str,
    number: int,
    closures: Sequence[int],
) -> None:
    """Have all shards apply a round; each does so once, however often it is asked.

    Parameters
    ----------
    transport : Transport
        The way to the shards.
    shards : sequence of ShardId
        All of the strategy.
    parameters : iterable of Handle
        Those that may have been pushed.
    writer : str
        The coordinator whose round it is.
    number : int
        Which round.
    closures : sequence of int
        The commit numbers of the closures that count.

    Raises
    ------
    ServerLostError
        If a server is gone; the others may have applied their part.
    """
    arguments = {"writer": writer, "number": number, "closures": list(closures)}
    owners = {
        table: parameter.name
        for parameter in parameters
        if parameter.clips_by_norm
        for table in parameter.table_names
    }
    norms: dict[str, float] = {}
    if owners:
        asked = {**arguments, "tables": sorted(owners)}
        answers = transport.call([Request(shard, "", "square_norms", asked) for shard in shards])
        squares: dict[str, list[float]] = {}
        for answer in answers:
            for table, square in answer.items():
                squares.setdefault(owners[table], []).append(square)
        whole = {name: math.sqrt(math.fsum(parts)) for name, parts in squares.items()}
        norms = {table: whole[name] for table, name in owners.items() if name in whole}
    transport.call(
        [Request(shard, "", "end_round", {**arguments, "norms": norms}) for shard in shards]
    )
