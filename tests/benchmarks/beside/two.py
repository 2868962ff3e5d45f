"""Two processes of one core each that train when asked: frameworks alone are measured in them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

from tests.benchmarks.beside import cores, criteo
from tests.benchmarks.beside.talking import Done, Some, serve

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
        self._pipes, self._processes = [], []
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_train, args=(make, rank, theirs), daemon=True)
            process.start()
            self._processes.append(process)
            theirs.close()  # so that the end of a process is the end of what it sends
            self._pipes.append(ours)

    def serve(self, package: str) -> None:
        """Answer for wide & deep of each batch size."""
        works = {f"wide {size}": partial(self._work, size) for size in criteo.SIZES}
        serve(package, works, lambda: {each.pid: cores.WORKER for each in self._processes})

    def _work(self, size: int) -> Some:
        return partial(self._some, size)

    def _some(self, size: int) -> Done:
        count = criteo.STEPS[size] // 2
        for pipe in self._pipes:
            pipe.send((size, count))
        losses = [pipe.recv() for pipe in self._pipes]
        return Done(2 * count * size, sum(losses) / 2)
