"""Rounds: what closures pushed in rounds of synchronous updates, until it is applied. Pure.

Pushes are kept by closure, not summed as they come. So only closures that have completed count, and
the sum is taken in the order in which the notebook names them: it is the same each time to the last
digit.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from psnb._src.server.blends import averaged, composed
from psnb._src.server.duplicates import summed
from psnb._src.server.table_operations import BlendValues, OnTable, Push, PushGradient, PushRows


@dataclass
class _RoundWriter:
    round: int = 0  # all rounds below it are over
    held: dict[int, list[OnTable]] = field(default_factory=dict)


class Rounds:
    """Keeps what closures pushed, by writer and commit number."""

    def __init__(self) -> None:
        self._writers: dict[str, _RoundWriter] = {}

    def held(self) -> dict[str, list[int]]:
        """Return by writer the numbers of the commits whose pushes are kept."""
        return {writer: list(each.held) for writer, each in self._writers.items() if each.held}

    def over(self, writer: str, number: int) -> bool:
        """Return whether a round is over; pushes that come now are too late."""
        return writer in self._writers and number < self._writers[writer].round

    def collect(self, writer: str, commit: int, writes: Sequence[OnTable]) -> None:
        """Keep what a closure pushed; the first call with a number counts."""
        self._writers.setdefault(writer, _RoundWriter()).held.setdefault(commit, list(writes))

    def averages(self, writer: str, closures: Sequence[int]) -> list[OnTable]:
        """Return the writes that end a round: one push or blend a table, then the other writes.

        Parameters
        ----------
        writer : str
            Whose round it is.
        closures : sequence of int
            The commit numbers of the closures that count, in the order in which their pushes are
            summed; each gradient is divided by their number.
        """
        held = self._writers[writer].held if writer in self._writers else {}
        pushes: dict[str, list[Push]] = {}
        blends: dict[str, dict[int, BlendValues]] = {}
        others: list[OnTable] = []
        for commit in closures:
            for write in held.get(commit, ()):
                match write.operation:
                    case Push() as push:
                        pushes.setdefault(write.table, []).append(push)
                    case BlendValues() as blend:
                        of_table = blends.setdefault(write.table, {})
                        of_table[commit] = composed(of_table.get(commit), blend)
                    case _:
                        others.append(write)
        count = len(closures)
        return [
            *(OnTable(table, _average(each, count)) for table, each in pushes.items()),
            *(OnTable(t, averaged([*each.values()], count)) for t, each in blends.items()),
            *others,
        ]

    def end(self, writer: str, number: int) -> None:
        """Forget what was kept for this round and earlier ones.

        A strategy has one coordinator at a time, so what others left is forgotten too.
        """
        self._writers = {writer: _RoundWriter(number + 1)}

    def nbytes(self) -> int:
        """Return the bytes of the arrays that are kept."""
        return sum(
            array.nbytes
            for each in self._writers.values()
            for writes in each.held.values()
            for write in writes
            for array in msgspec.structs.astuple(write.operation)
            if isinstance(array, np.ndarray)
        )


def square_norm(push: Push) -> float:
    """Return the square of the norm of an averaged push, taken in double precision."""
    assert isinstance(push, PushRows | PushGradient)
    gradient = push.gradients if isinstance(push, PushRows) else push.gradient
    flat = gradient.reshape(-1).astype(np.float64)
    return float(flat @ flat)


def _average(pushes: Sequence[Push], closures: int) -> Push:
    """Return one push for several; equal ids are summed, in order."""
    if isinstance(pushes[0], PushRows):
        rows = [push for push in pushes if isinstance(push, PushRows)]
        ids = np.concatenate([push.ids for push in rows])
        gradients = np.concatenate([push.gradients for push in rows])
        distinct, sums = summed(ids, gradients)
        sums /= closures
        return PushRows(distinct, sums, rate=rows[-1].rate)
    first, *others = [push for push in pushes if isinstance(push, PushGradient)]
    total, rate = np.array(first.gradient), first.rate
    for push in others:
        total += push.gradient
        rate = push.rate
    total /= closures
    return PushGradient(total, rate=rate)
