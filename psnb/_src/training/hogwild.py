"""Hogwild: each worker trains on batch after batch, and waits for no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psnb._src.checks import integer
from psnb._src.coordinator import ClusterCoordinator, LeasedIterator
from psnb._src.training.device_worker import DeviceWorker


@dataclass(frozen=True)
class Hogwild(DeviceWorker):
    """Each worker trains on batch after batch, without waiting for others; the default.

    Its threads share the parameters and the dataset's iterator. No update waits for another: what a
    step has read may be out of date by as many updates as there are threads of all workers. With
    more threads than cores, pulling the next batch and committing the last overlap with computing;
    numpy, numba, XLA and PyTorch release the interpreter's lock.

    After Niu et al., *Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent*,
    NIPS 2011; Paddle's ``HogwildWorker``, whose threads share the memory of one process.

    Parameters
    ----------
    threads : int, optional
        How many threads of each worker train at the same time; by default as many as it has.

    Raises
    ------
    ConfigurationError
        If ``threads`` is not a positive integer.
    """

    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None:
            object.__setattr__(self, "threads", integer("Hogwild: threads", self.threads, 1))

    def train(
        self,
        coordinator: ClusterCoordinator,
        step: Callable[..., Any],
        iterator: LeasedIterator,
        watch: Callable[[], object],
    ) -> None:
        """Train in so many threads of each worker; see `DeviceWorker.train`."""
        coordinator.use_threads(self.threads)
        try:
            super().train(coordinator, step, iterator, watch)
        finally:
            coordinator.use_threads(None)
