"""The end of a round of synchronous updates: what its closures pushed becomes one update.

A shard has only a part of a gradient. So the norms are asked for first if a parameter may be
clipped by norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from psnb._src.parameters.commit import Steps, drive
from psnb._src.parameters.parameter_shards import ParameterShards
from psnb._src.parameters.request_batch import Request
from psnb._src.placement import ShardId
from psnb._src.server import EndRound, SquareNorms
from psnb.errors import ServerLostError, ServerSilentError


def apply_round(
    attempt: Callable[[Sequence[Request]], Sequence[Any]],
    shards: Sequence[ShardId],
    parameters: Iterable[ParameterShards],
    writer: str,
    number: int,
    closures: Sequence[int],
    held_up: Callable[[Exception], None],
) -> None:
    """Have all shards apply a round, or none; each applies it once, however often it is asked.

    Parameters
    ----------
    attempt : callable
        Sends requests to shards, and returns errors in the place of answers.
    shards : sequence of ShardId
        All of the strategy.
    parameters : iterable of ParameterShards
        Those that may have been pushed.
    writer : str
        The coordinator whose round it is.
    number : int
        Which round.
    closures : sequence of int
        The commit numbers of the closures that count, in the order in which they are summed.
    held_up : callable
        Called each time when a server is silent. The request is repeated, because closures that
        have ended rely on it.

    Raises
    ------
    ServerLostError
        If a server is gone; nothing was applied.
    """
    owners = {
        table: parameter.name
        for parameter in parameters
        if parameter.clips_by_norm
        for table in parameter.table_names
    }
    drive(ending_round(shards, owners, writer, number, closures, held_up), attempt)


def ending_round(
    shards: Sequence[ShardId],
    owners: Mapping[str, str],
    writer: str,
    number: int,
    closures: Sequence[int],
    held_up: Callable[[Exception], None],
) -> Steps[None]:
    """Yield the requests that end a round, and take their outcomes; see `apply_round`. Pure.

    ``owners`` maps the tables that are clipped by norm to their parameters.
    """
    closures = list(closures)
    norms: dict[str, float] = {}
    if owners or len(shards) > 1:
        # Also where no norm is needed: it makes sure that all shards are there.
        asked = SquareNorms(writer, number, closures, sorted(owners))
        requests = [Request(shard, asked) for shard in shards]
        answers = yield from _asked(requests, held_up)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        squares: dict[str, list[float]] = {}
        for answer in answers:
            for table, square in answer.items():
                squares.setdefault(owners[table], []).append(square)
        whole = {name: math.sqrt(math.fsum(parts)) for name, parts in squares.items()}
        norms = {table: whole[name] for table, name in owners.items() if name in whole}
    ends = [Request(shard, EndRound(writer, number, closures, norms)) for shard in shards]
    # A shard that is lost now is lost with all its data, this round included.
    ended = yield from _asked(ends, held_up)
    lost = [each for each in ended if isinstance(each, Exception)]
    if len(lost) == len(shards):
        raise lost[0]


def _asked(requests: Sequence[Request], held_up: Callable[[Exception], None]) -> Steps[list[Any]]:
    """Return the answers, or a `ServerLostError` in place of one; waits for silent servers."""
    answers: dict[int, Any] = {}
    while left := [position for position in range(len(requests)) if position not in answers]:
        outcomes = yield [requests[position] for position in left]
        for position, outcome in zip(left, outcomes, strict=True):
            if isinstance(outcome, ServerSilentError):
                held_up(outcome)
            elif isinstance(outcome, ServerLostError) or not isinstance(outcome, Exception):
                answers[position] = outcome
            else:
                raise outcome
    return [answers[position] for position in range(len(requests))]
