"""CoordinatorView: what dashboards read of a coordinator, and what their buttons do.

It is made of the coordinator's parts and does not refer to the coordinator, so that one can be
collected. All methods may be called from any thread, also while another one is blocked in ``join``.
Snapshots are made from records here; only the buttons' actions ask the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from psnb._src.checkpoint.manager import SaveSchedule
from psnb._src.cluster.scaling import add_worker, cannot_add, retire_worker
from psnb._src.coordinator.in_flight import (
    ApplyRound,
    FlushGate,
    Gate,
    RoundGate,
    StalenessGate,
    Step,
)
from psnb._src.coordinator.membership import Membership
from psnb._src.coordinator.queue import ClosureQueue
from psnb._src.coordinator.scheduler import Scheduler
from psnb._src.dask_compat import scheduler_address, scheduler_since
from psnb._src.jupyter_compat import kernel_id
from psnb._src.metrics.metric import MetricStates
from psnb._src.monitor.events import Event, EventKind, EventLog
from psnb._src.monitor.protocol import CommandName, Identity
from psnb._src.monitor.states import IDLE, RUNNING, Situation, coordinator_state
from psnb._src.monitor.statistics import (
    CheckpointStatistics,
    ServerStatistics,
    Statistics,
    WorkerStatistics,
)
from psnb._src.monitor.training_clock import EpochCount, TrainingClock
from psnb._src.monitor.viewed import OptimizerState, Records
from psnb._src.protocol.modes import BoundedStaleness, Geo, Mode, Sync
from psnb._src.server.operations import EndRound
from psnb._src.server.schedules import LearningRate
from psnb._src.strategy.core import StrategyCore
from psnb._src.utils.files import AnyPath
from psnb._src.utils.text import counted
from psnb._src.utils.threads import Lock, start_task, uninterrupted
from psnb.errors import CheckpointError, ConfigurationError, CoordinatorClosedError, PsnbError

# Steps: carries out the steps that a queue's gate asks for, on servers and workers.
#
# Each step is a task on the Dask client's event loop.


def gate_for(mode: Mode) -> Gate:
    """Return a new gate for an update mode."""
    match mode:
        case Sync(closures=closures) if closures is not None:
            return RoundGate(closures)
        case BoundedStaleness(updates=updates):
            return StalenessGate(updates)
        case Geo():
            return FlushGate()
    return Gate()


class Steps:
    """Carries out steps and reports the outcome to the queue.

    Parameters
    ----------
    scheduler : Scheduler
        Whose gate asks for them.
    membership : Membership
        The way to the workers, and to the event loop.
    strategy : StrategyCore
        The way to the servers.
    """

    def __init__(
        self, scheduler: Scheduler, membership: Membership, strategy: StrategyCore
    ) -> None:
        self._scheduler, self._membership = scheduler, membership
        self._strategy = strategy
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop's alone

    def begin(self, step: Step) -> None:
        """Carry out a step; on the event loop, returns at once."""
        start_task(self._carry_out(step), self._tasks, f"psnb {step}")

    async def _carry_out(self, step: Step) -> None:
        error: Exception | None = None
        try:
            if isinstance(step, ApplyRound):
                of = EndRound(self._scheduler.name, step.number, step.closures, {}, step.weights)
                await self._strategy.apply_round(of, self._scheduler.block)
            else:
                await self._membership.flush()
        except Exception as raised:  # `join` raises it
            error = raised
        self._scheduler.stepped(error)


# Saving: the checkpoint managers of a coordinator, and all automatic saves.
#
# A trainer saves in its own thread, by `Saving.attempt`; the rest is of the managers' own saves.
# Callers that wait for closures poll, each in its own thread: `ClusterCoordinator.done`, `join`,
# `run_epoch`. If a save is due, that starts a thread, ``psnb-saving``, which ends with it. So
# nothing is saved, and no thread lives, when no caller polls. There is one such thread at a time;
# while it lives, it alone uses the save schedules; otherwise polling callers do, under the lock.

logger = logging.getLogger("psnb")


class Saver(Protocol):
    """What saves checkpoints.

    Attributes
    ----------
    directory : AnyPath
        Where to.
    save_timeout : float
        Seconds that closures get to end for an automatic save; meanwhile no other
        begins.
    """

    directory: AnyPath
    save_timeout: float

    @property
    def status(self) -> CheckpointStatistics:
        """The status of the newest save."""

    def save(self, *, timeout: float | None = None) -> AnyPath:
        """Save a checkpoint; return its path."""


class Closures(Protocol):
    """What is needed of the queue here."""

    @property
    def completed(self) -> int:
        """How many closures have returned."""


class _Saves(NamedTuple):
    """What saves, and when."""

    saver: Saver
    rhythm: SaveSchedule


class Saving:
    """The managers that were made for a coordinator: of each directory the last one.

    Thread-safe.

    Parameters
    ----------
    events : EventLog
        Receives the outcomes of automatic saves.
    closures : Closures
        The queue.
    """

    def __init__(self, events: EventLog, closures: Closures) -> None:
        self._events, self._closures = events, closures
        self._lock = Lock()  # guards the next two; and see above
        self._all: dict[AnyPath, _Saves] = {}  # by directory; the newest manager's is last
        self._busy = False  # the thread lives
        self._wanted = False  # whether any is ever due

    def use(self, saver: Saver, rhythm: SaveSchedule) -> None:
        """Use this manager from now on, and no other one for its directory."""
        with self._lock:
            self._all.pop(saver.directory, None)
            self._all[saver.directory] = _Saves(saver, rhythm)
            self._wanted = any(each.rhythm.wanted for each in self._all.values())

    def poll(self) -> None:
        """Begin the saves that are due; cheap, never waits for one."""
        if not self._wanted or self._busy:
            return
        now, step = time.monotonic(), self._closures.completed
        with self._lock:
            due = [each for each in self._all.values() if each.rhythm.due(now, step)]
            if due and not self._busy:
                run = partial(self._run, due)
                threading.Thread(target=run, name="psnb-saving", daemon=True).start()
                self._busy = True

    @property
    def status(self) -> CheckpointStatistics:
        """The status of the newest save; cheap."""
        saver = self._current()
        return CheckpointStatistics() if saver is None else saver.status

    @property
    def cannot(self) -> str:
        """Why nothing can be saved; empty if it can."""
        if self._current() is not None:
            return ""
        return (
            "there is nothing to save with: make a psnb.CheckpointManager(coordinator, directory)"
        )

    def save(self) -> AnyPath:
        """Save all parameters; return the path.

        Raises
        ------
        CheckpointError
            If there is no manager, or as for `CheckpointManager.save`.
        """
        saver = self._current()
        if saver is None:
            raise CheckpointError(self.cannot)
        return saver.save()

    def _current(self) -> Saver | None:
        with self._lock:
            return next(reversed(self._all.values())).saver if self._all else None

    def _run(self, due: Sequence[_Saves]) -> None:
        try:
            for each in due:
                self.attempt(each.saver, each.rhythm, self._closures.completed)
        finally:
            with self._lock:
                self._busy = False

    def attempt(self, saver: Saver, rhythm: SaveSchedule, step: int) -> AnyPath | None:
        """Save automatically; return the path, or None if it failed: it is due again then.

        Parameters
        ----------
        saver : Saver
            What saves.
        rhythm : SaveSchedule
            Learns of the outcome.
        step : int
            Where its steps are.
        """
        began = time.monotonic()
        try:
            path = saver.save(timeout=saver.save_timeout)
        except Exception as error:  # a full disk, a lost server, what a user's state= raises
            # What was closed meanwhile, as when a script ends, tries nothing again. (The errors of
            # a lost scheduler and a lost ownership derive from this one.)
            if type(error) is not CoordinatorClosedError:
                self._failed(saver, rhythm, error)
            return None
        failures, held = rhythm.failures, saver.status.held
        rhythm.saved(began, step)
        text = f"saved {str(path)!r}"
        if failures:
            text += f", after {failures} attempts that failed: checkpoints are saved again"
        if held:
            text += f"; closures were held for {held:.2g} s"
        self._events.add(EventKind.CHECKPOINT_SAVED, text)
        return path

    def _failed(self, saver: Saver, rhythm: SaveSchedule, error: Exception) -> None:
        first = not rhythm.failures
        pause = rhythm.failed(time.monotonic())
        if first:  # once, until it works again
            self._events.add(
                EventKind.CHECKPOINT_FAILED,
                # The reason first: the middle of what is long is cut out.
                f"no checkpoint can be saved: {_reason(error)}; that was in "
                f"{str(saver.directory)!r}; closures go on, and it is tried again in "
                f"{pause:g} s, then less and less often",
            )
        else:
            logger.debug("still no checkpoint can be saved: %s", error)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, PsnbError) else f"{type(error).__name__}: {error}"


_LAST_SAVE_WAIT = 10.0
"""Seconds that closures get to end when a last server is about to."""


class CoordinatorView:
    """The `monitor.Viewed` of a coordinator.

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
