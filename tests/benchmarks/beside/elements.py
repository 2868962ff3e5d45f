"""The work on datasets: clicks in memory, shuffled, in batches of 512; as they are, or mapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.benchmarks.beside.talking import Done, Some

BATCH, BUFFER, BATCHES = 512, 10_000, 20
"""The last: batches that are asked for at once."""


def _some(batches: Iterator[Any]) -> Done:
    for _ in range(BATCHES):
        next(batches)
    return Done(BATCHES * BATCH)


def works(
    shuffled: Callable[[], Iterator[Any]], mapped: Callable[[], Iterator[Any]]
) -> dict[str, Callable[[], Some]]:
    """Return the works on what makes batches for ever."""
    return {
        "shuffle": lambda: partial(_some, shuffled()),
        "map": lambda: partial(_some, mapped()),
    }
