"""Reading per-worker values back: one closure pinned to each worker."""

from __future__ import annotations

from typing import Any

from psnb._src.coordinator.queue import PinnedCalls
from psnb._src.runtime import PerWorkerReference, worker_index


def fetch_per_worker(
    value: PerWorkerReference, timeout: float | None, pinned: PinnedCalls
) -> list[Any]:
    """Return the value of each worker, in the order of the workers' index.

    Parameters
    ----------
    value : PerWorkerReference
        What to read.
    timeout : float or None
        Seconds to wait at most.
    pinned : PinnedCalls
        Calls the workers.
    """
    calls = [(name, read_value, (value,)) for name in sorted(pinned.worker_names())]
    pairs = [remote.fetch() for remote in pinned.run(calls, timeout) if remote is not None]
    return [each for _, each in sorted(pairs, key=lambda pair: pair[0])]


def read_value(value: Any) -> tuple[int, Any]:
    """Return the index of a worker and its value; errors name this function."""
    return worker_index(), value
