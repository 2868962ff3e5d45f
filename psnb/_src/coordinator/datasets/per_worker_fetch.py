"""Reading per-worker values back: one closure pinned to each worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psnb._src.coordinator.queue import PinnedCalls
from psnb._src.runtime import PerWorkerReference, worker_index


def fetch_per_worker(
    value: PerWorkerReference,
    question: Callable[[Any], Any],
    timeout: float | None,
    pinned: PinnedCalls,
) -> list[Any]:
    """Return what a function says of the value of each worker, in the order of the workers' index.

    Parameters
    ----------
    value : PerWorkerReference
        What to read.
    question : callable
        What is called with it on each worker; errors name it.
    timeout : float or None
        Seconds to wait at most.
    pinned : PinnedCalls
        Calls the workers.
    """
    calls = [(name, read_value, (value, question)) for name in sorted(pinned.worker_names())]
    pairs = [remote.fetch() for remote in pinned.run(calls, timeout) if remote is not None]
    return [each for _, each in sorted(pairs, key=lambda pair: pair[0])]


def read_value(value: Any, question: Callable[[Any], Any]) -> tuple[int, Any]:
    """Return the index of a worker and what a function says of its value."""
    return worker_index(), question(value)
