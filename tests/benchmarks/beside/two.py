"""Two processes of one core each that train when asked: frameworks alone are measured in them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

from tests.benchmarks.beside import criteo
from tests.benchmarks.beside.talking import Done, Some

Step = Callable[[int], float]
"""Trains on a batch of a size, and returns the loss."""


def _train(make: Callable[[int], Step], rank: int, pipe: Connection) -> None:
    step = make(rank)
    while True:
        try:
            size, count = pipe.recv()
        except EOFError:
            return
        pipe.send(sum(step(size) for _ in range(count)) / count)


class Two:
    """The processes.

    Parameters
    ----------
    make : callable
        Returns the step of a process, given 0 or 1; a function of a module.
    """

    def __init__(self, make: Callable[[int], Step]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for rank in range(2):
            ours, theirs = context.Pipe()
            context.Process(target=_train, args=(make, rank, theirs), daemon=True).start()
            theirs.close()  # so that the end of a process is the end of what it sends
            self._pipes.append(ours)

    def works(self) -> dict[str, Callable[[], Some]]:
        """Return wide & deep for each batch size."""
        return {f"wide {size}": partial(self._work, size) for size in criteo.SIZES}

    def _work(self, size: int) -> Some:
        return partial(self._some, size)

    def _some(self, size: int) -> Done:
        count = criteo.STEPS[size] // 2
        for pipe in self._pipes:
            pipe.send((size, count))
        losses = [pipe.recv() for pipe in self._pipes]
        return Done(2 * count * size, sum(losses) / 2)
