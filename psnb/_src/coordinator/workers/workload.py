"""Workload: how much a coordinator's closures need of the cluster, measured by polls. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from psnb._src.cluster.scaling import Demand
from psnb._src.coordinator.scheduling.scheduler import QueueStatistics
from psnb._src.monitor.statistics import WorkerStatistics


class Workload:
    """Measures demand; used from one thread.

    Parameters
    ----------
    unknown : float
        Seconds that a closure is expected to take, as long as none has ended.
    """

    def __init__(self, unknown: float) -> None:
        self._unknown = unknown
        # By the address of a worker that holds closures: how many had ended there, and since when.
        self._since: dict[str, tuple[int, float]] = {}

    def measure(
        self, queue: QueueStatistics, workers: Sequence[WorkerStatistics], now: float
    ) -> Demand:
        """Return the demand now.

        Parameters
        ----------
        queue : QueueStatistics
            How much waits and runs.
        workers : sequence of WorkerStatistics
            What each worker has done and has in flight.
        now : float
            Seconds on a monotonic clock.
        """
        before, self._since = self._since, {}
        for worker in workers:
            if worker.in_flight:
                ended = worker.completed + worker.failed
                known = before.get(worker.address)
                self._since[worker.address] = (
                    known if known is not None and known[0] == ended else (ended, now)
                )
        running = max((now - since for _, since in self._since.values()), default=0.0)
        closures = queue.queued + queue.in_flight
        return Demand(
            closures,
            closures * self._seconds_per_closure(workers, running),
            frozenset(self._since),
        )

    def _seconds_per_closure(self, workers: Sequence[WorkerStatistics], running: float) -> float:
        ended = sum(worker.completed + worker.failed for worker in workers)
        if ended:
            return sum(worker.busy_seconds for worker in workers) / ended
        # As Dask guesses for its tasks: one that has run for a while is half done.
        return max(self._unknown, 2 * running)
