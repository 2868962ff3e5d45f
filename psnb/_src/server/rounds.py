"""Rounds: what closures pushed in rounds of synchronous updates, until it is applied. Pure.

Pushes are kept by closure, not summed as they come. So only closures that have completed count, and
the sum is taken in the order of commit numbers: it is the same each time to the last digit.

Not thread-safe; the server's one thread is its only user.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psnb._src.server.duplicates import summed

Write = tuple[str, str, Mapping[str, Any]]
"""A table's name, an operation that changes it, and its arguments."""

COLLECTED = frozenset({"push", "record"})
"""The operations of closures that wait for the end of their round."""


@dataclass
class _RoundWriter:
    round: int = 0  # all rounds below it are over
    held: dict[int, list[Write]] = field(default_factory=dict)


class Rounds:
    """Keeps what closures pushed, by writer and commit number."""

    def __init__(self) -> None:
        self._writers: dict[str, _RoundWriter] = {}

    def over(self, writer: str, number: int) -> bool:
        """Return whether a round is over; pushes that come now are too late."""
        return writer in self._writers and number < self._writers[writer].round

    def collect(self, writer: str, commit: int, writes: Sequence[Write]) -> None:
        """Keep what a closure pushed; the first call with a number counts."""
        self._writers.setdefault(writer, _RoundWriter()).held.setdefault(commit, list(writes))

    def averages(self, writer: str, closures: Collection[int]) -> list[Write]:
        """Return the writes that end a round: one push to each table, then the other writes.

        Parameters
        ----------
        writer : str
            Whose round it is.
        closures : collection of int
            The commit numbers of the closures that count; each gradient is divided by their number.
        """
        held = self._writers[writer].held if writer in self._writers else {}
        pushes: dict[str, list[Mapping[str, Any]]] = {}
        others: list[Write] = []
        for commit in sorted(closures):
            for write in held.get(commit, ()):
                table, operation, arguments = write
                if operation == "push":
                    pushes.setdefault(table, []).append(arguments)
                else:
                    others.append(write)
        averages = [(table, _average(each, len(closures))) for table, each in pushes.items()]
        return [*((table, "push", each) for table, each in averages), *others]

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
            for _, _, arguments in writes
            for array in arguments.values()
            if isinstance(array, np.ndarray)
        )


def square_norm(push: Mapping[str, Any]) -> float:
    """Return the square of the norm of an averaged push, taken in double precision."""
    gradient = push["gradients" if "ids" in push else "gradient"]
    flat = gradient.reshape(-1).astype(np.float64)
    return float(flat @ flat)


def _average(pushes: Sequence[Mapping[str, Any]], closures: int) -> dict[str, Any]:
    """Return the arguments of one push for several; equal ids are summed, in order."""
    if "ids" in pushes[0]:
        ids = np.concatenate([push["ids"] for push in pushes])
        gradients = np.concatenate([push["gradients"] for push in pushes])
        distinct, sums = summed(ids, gradients)
        sums /= closures
        return {"ids": distinct, "gradients": sums, "rate": pushes[-1].get("rate")}
    total = np.array(pushes[0]["gradient"])
    for push in pushes[1:]:
        total += push["gradient"]
    total /= closures
    return {"gradient": total, "rate": pushes[-1].get("rate")}
