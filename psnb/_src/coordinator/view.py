"""CoordinatorView: what dashboards read of a coordinator, and what their buttons do.

It is made of the coordinator's parts and does not refer to the coordinator, so that one can be
collected. All methods may be called from any thread, also while another one is blocked in ``join``.
Snapshots are made from records here; only the buttons' actions ask the cluster.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from psnb._src.cluster.resizing import add_worker, cannot_add, retire_worker
from psnb._src.coordinator.queue import ClosureQueue
from psnb._src.coordinator.saving import Saving
from psnb._src.coordinator.workers.membership import Membership
from psnb._src.dask_compat.reach import scheduler_address, scheduler_since
from psnb._src.jupyter_compat import kernel_id
from psnb._src.metrics.metric import MetricStates
from psnb._src.monitor.events import Event, EventKind
from psnb._src.monitor.protocol import CommandName, Identity
from psnb._src.monitor.states import IDLE, RUNNING, Situation, coordinator_state
from psnb._src.monitor.statistics import ServerStatistics, Statistics, WorkerStatistics
from psnb._src.monitor.training_clock import EpochCount, TrainingClock
from psnb._src.monitor.viewed import OptimizerState, Records
from psnb._src.server.schedules import LearningRate
from psnb._src.strategy.core import StrategyCore
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import counted
from psnb.errors import ConfigurationError

_LAST_SAVE_WAIT = 10.0
"""Seconds that closures get to end when a last server is about to."""


class CoordinatorView:
    """The `Viewed` of a coordinator.

    Parameters
    ----------
    name : str
        What views call it.
    strategy : StrategyCore
        The coordinator's.
    queue, membership, records, saving
        Its parts.

    Attributes
    ----------
    name : str
        As given.
    id : str
        Unique among the coordinators of the cluster.
    records : Records
        As given.
    saving : Saving
        As given.
    """

    def __init__(
        self,
        name: str,
        strategy: StrategyCore,
        queue: ClosureQueue,
        membership: Membership,
        records: Records,
        saving: Saving,
    ) -> None:
        self.name, self.id = name, queue.name
        self._client = strategy.client
        self._strategy, self._queue, self._membership = strategy, queue, membership
        self.records, self.saving = records, saving
        self._started, self._began = time.monotonic(), time.time()
        self._elapsed: float | None = None  # when it was closed
        # How to stop each trainer that trains; one call each adds, removes or copies, atomically.
        self._trainings: list[Callable[[], object]] = []
        self._clocks: list[TrainingClock] = []  # likewise; of those within others, the outermost
        self._clock = TrainingClock()  # the present one's, or the last one's
        self._last_workers: tuple[WorkerStatistics, ...] | None = None  # likewise

    def __repr__(self) -> str:
        s = self.statistics()
        ready = sum(worker.state == "ready" for worker in s.workers)
        text = (
            f"<psnb.ClusterCoordinator {self.name!r} {s.state}: {s.queued} queued, "
            f"{s.in_flight} in flight, {s.completed} completed, {s.failed} failed, "
            f"{s.retried} retried; {counted(ready, 'worker')}"
        )
        metrics = ", ".join(f"{name} {m.smoothed:.4g}" for name, m in s.metrics.items())
        return f"{text}; {metrics}>" if metrics else f"{text}>"

    def note_end(self) -> None:
        """Keep the final figures; to be called before the connections end."""
        self._elapsed = time.monotonic() - self._started
        self._last_workers = tuple(
            each if each.ended else replace(each, state="released")
            for each in self._membership.statistics()
        )

    @property
    def paused(self) -> bool:
        """Whether no new closures are begun."""
        return self._queue.statistics().paused

    def statistics(self) -> Statistics:
        """Return a frozen snapshot of queue, workers, servers and metrics; cheap, any thread."""
        queue = self._queue.statistics()
        records = self.records
        workers = tuple(
            replace(each, last_error=records.failures.last_of(each.name)) if each.failed else each
            for each in self._last_workers or self._membership.statistics()
        )
        state = coordinator_state(
            Situation(
                closed=queue.closed,
                failing=queue.failing,
                parameters_lost=self._strategy.layout.incomplete,
                paused=queue.paused,
                queued=queue.queued,
                in_flight=queue.in_flight,
                workers=sum(not worker.ended for worker in workers),
            )
        )
        rate = sum(worker.closures_per_second for worker in workers)
        left = queue.queued + queue.in_flight
        training = self._clock.progress()
        if self._clocks:
            # Between epochs nothing is scheduled.
            goes_on = state in (RUNNING, IDLE) and training is not None
            eta = training.left if goes_on and training is not None else None
        else:
            eta = left / rate if left and rate and state == RUNNING else None
        records.merged.draw(time.time())
        metrics = records.merged.bring_up_to_date(records.history.metrics())
        return Statistics(
            state=state,
            elapsed=time.monotonic() - self._started if self._elapsed is None else self._elapsed,
            queued=queue.queued,
            in_flight=queue.in_flight,
            completed=queue.completed,
            failed=queue.failed,
            cancelled=queue.cancelled,
            retried=queue.retried,
            workers=workers,
            servers=self._servers(),
            metrics=metrics,
            staleness=records.staleness.statistics(),
            closures_per_second=rate,
            eta=eta,
            examples=metrics["examples"].total if "examples" in metrics else None,
            examples_per_second=records.history.examples_per_second(),
            checkpoint=self.saving.status,
            workers_lost=records.events.count(EventKind.WORKER_LOST),
            servers_lost=self._strategy.servers.events.count(EventKind.SERVER_LOST),
            training=training,
        )

    def _servers(self) -> tuple[ServerStatistics, ...]:
        """Return what the servers reported last; once closed, they are not asked any more."""
        found = self._strategy.watch.statistics()
        if self._last_workers is None:
            return found
        return tuple(
            each
            if each.state == "lost"
            else replace(each, state="released", pulls_per_second=0.0, pushes_per_second=0.0)
            for each in found
        )

    def events(self, since: float = 0.0) -> tuple[Event, ...]:
        """Return the events after ``since`` (seconds since the epoch), the oldest first."""
        both = [*self.records.events.since(since), *self._strategy.servers.events.since(since)]
        return tuple(sorted(both, key=lambda event: event.time))

    def identity(self) -> Identity:
        """Return the coordinator's name, process, host and cluster, for views."""
        client = self._client
        cluster_id, cluster_started = scheduler_since(client)
        return Identity(
            name=self.name,
            kernel=kernel_id(),
            process=os.getpid(),
            host=socket.gethostname(),
            cluster=scheduler_address(client),
            cluster_id=cluster_id,
            cluster_started=cluster_started,
            dashboard=self._strategy.dashboard,
            started=self._began,
        )

    def optimizers(self) -> Mapping[str, OptimizerState]:
        """Return the state of each parameter's optimizer, as of the last request."""
        return self._strategy.watch.optimizers()

    def controls(self) -> dict[CommandName, str]:
        """Return for each control of a view why it cannot be used now; an empty text if it can."""
        queue = self._queue.statistics()
        closed = "the coordinator is closed" if queue.closed else ""
        return {
            "pause": closed or ("it is paused already" if queue.paused else ""),
            "resume": closed or ("" if queue.paused else "it is not paused"),
            "drain": closed,
            "cancel_queued": closed or ("" if queue.queued else "nothing is queued"),
            "stop_training": closed or ("" if self._trainings else "no trainer trains"),
            "checkpoint": closed or self.saving.cannot,
            "set_learning_rate": closed,
            "add_worker": closed or cannot_add(self._client),
            "retire_worker": closed,
        }

    def watch(self) -> None:
        """Keep asking the servers for their figures, for some seconds."""
        self._strategy.watch.keep()

    def pause(self) -> None:
        """Begin no more closures."""
        self._queue.pause(self._membership.call_back)

    def resume(self) -> None:
        """Go on."""
        self._queue.resume()

    def drain(self, timeout: float | None = None) -> None:
        """Pause, and wait until nothing runs."""
        self.pause()
        self._queue.wait_until_nothing_runs(timeout)

    @contextmanager
    def barrier(self, timeout: float | None = None) -> Iterator[None]:
        """Run a block while no closure runs and all have had their effect; for a moment only.

        What workers have ends first, and what they have not begun comes back; see
        `ClosureQueue.barrier`. In the main thread the block is a section (`uninterrupted`).

        Raises
        ------
        TimeoutError
            If what workers have takes longer than ``timeout`` seconds.
        ServerUnresponsiveError
            As for `drain`.
        """
        with uninterrupted, self._queue.barrier():
            self._membership.call_back()
            self._queue.wait_until_nothing_runs(timeout)
            yield

    def save_last(self, then: Callable[[], None]) -> AnyPath:
        """Save all parameters, and call a function before any closure goes on; return the path."""
        with self.barrier(_LAST_SAVE_WAIT):
            path = self.saving.save()
            then()
        return path

    def cancel_queued(self) -> int:
        """Cancel the closures that wait; return how many."""
        return self._queue.cancel_queued()

    @contextmanager
    def training(self, clock: TrainingClock) -> Iterator[None]:
        """Show how far training is while the block runs, and at its end where it has ended."""
        try:
            with uninterrupted:
                self._clocks.append(clock)
                self._clock = self._clocks[0]
            yield
        finally:
            # One that stayed would stand for all training that comes.
            with uninterrupted:
                if clock in self._clocks:
                    self._clocks.remove(clock)
                self._clock = next(iter(self._clocks.copy()), clock)
                clock.end()

    def begin_epoch(
        self,
        clock: TrainingClock,
        epoch: int | None,
        count: Callable[[], EpochCount],
        earlier: MetricStates | None = None,
    ) -> None:
        """Note that an epoch of training begins.

        Parameters
        ----------
        clock : TrainingClock
            The training's.
        epoch, count
            As for `TrainingClock.begin`.
        earlier : MetricStates, optional
            What was reported of it before; None if views go on with what they have of it.
        """
        clock.begin(epoch, count)
        if earlier is not None and self._clock is clock:
            self.records.merged.begin(time.time(), earlier)

    @contextmanager
    def stoppable(self, stop: Callable[[], object]) -> Iterator[None]:
        """Offer views to stop a trainer while the block runs; ``stop`` returns at once."""
        self._trainings.append(stop)
        try:
            yield
        finally:
            self._trainings.remove(stop)

    def stop_training(self) -> None:
        """End the training of all trainers when what runs has ended; returns at once."""
        for stop in self._trainings.copy():
            stop()

    def checkpoint(self) -> AnyPath:
        """Save all parameters; return the path."""
        return self.saving.save()

    def set_learning_rate(self, parameter: str, value: LearningRate) -> None:
        """Set an optimizer's learning rate."""
        found = self._strategy.registry.all().get(parameter)
        optimizer = None if found is None else found.optimizer
        if optimizer is None:
            raise ConfigurationError(f"there is no parameter {parameter!r} with an optimizer")
        optimizer.learning_rate = value

    def add_worker(self) -> None:
        """Have the cluster start one more worker."""
        add_worker(self._client)

    def retire_worker(self, worker: str) -> None:
        """Have a worker finish its closures and leave."""
        for each in self._membership.statistics():
            if worker in (str(each.name), each.address) and each.state == "ready":
                retire_worker(self._client, each.address)
                return
        raise ConfigurationError(f"there is no worker {worker!r} that is ready")

    def note_command(self, message: str) -> None:
        """Record a command that was given, as an event."""
        self.records.events.add(EventKind.COMMAND_GIVEN, message)
