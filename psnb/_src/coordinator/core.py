"""CoordinatorCore: the parts of a coordinator, and what psnb itself does with them.

`ClusterCoordinator` has one; to views it is a `Viewed`. The parts, and the strategy's core, may
hold each other and be held by the event loop, but none of them holds this or the coordinator, so
that these can be collected. (Its managers, which `Saving` has, hold the coordinator.) All methods
may be called from any thread, also while another one is blocked in ``join``.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from psnb._src.client.sparse_shards import SparseShards
from psnb._src.cluster.resizing import cannot_add
from psnb._src.cluster.roles import identity
from psnb._src.coordinator import table_views
from psnb._src.coordinator.broadcast import Broadcasts
from psnb._src.coordinator.closures.call import NO_ARGUMENTS, pack_call
from psnb._src.coordinator.closures.functions import FunctionRegistry
from psnb._src.coordinator.closures.options import ScheduleOptions
from psnb._src.coordinator.closures.remote_value import RemoteValue, StepValues
from psnb._src.coordinator.queue import ClosureQueue
from psnb._src.coordinator.recording import Recording
from psnb._src.coordinator.rerun import pickled_call
from psnb._src.coordinator.saving import Saving
from psnb._src.coordinator.scheduling.gates import gate_for
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.coordinator.scheduling.scheduler import QueueStatistics, Scheduler
from psnb._src.coordinator.scheduling.work import Numbers, Work
from psnb._src.coordinator.settings import SavedRun, SavingSettings, Settings, versions
from psnb._src.coordinator.unmoved_rows import UnmovedRows
from psnb._src.coordinator.values import ResourceRegistry
from psnb._src.coordinator.workers.executor import Executor
from psnb._src.coordinator.workers.membership import Membership
from psnb._src.coordinator.workers.resolve import Resolver
from psnb._src.coordinator.workers.services import Services
from psnb._src.dask_compat.reach import event_loop, scheduler_address, scheduler_since
from psnb._src.jupyter_compat import kernel_id
from psnb._src.metrics.metric import MetricStates
from psnb._src.monitor.display import LiveView
from psnb._src.monitor.events import Event, EventKind
from psnb._src.monitor.failures import FailureLog
from psnb._src.monitor.progress_line import ProgressLine, WorkDone, wanted
from psnb._src.monitor.protocol import CommandName, Identity
from psnb._src.monitor.run_record import RunRecord, RunSettings
from psnb._src.monitor.states import IDLE, RUNNING, coordinator_state
from psnb._src.monitor.statistics import ServerStatistics, Statistics, WorkerStatistics
from psnb._src.monitor.training_clock import EpochCount, TrainingClock
from psnb._src.monitor.viewed import OptimizerState, Records
from psnb._src.protocol.dask_futures import GivenFutures
from psnb._src.protocol.errors import unpack_error
from psnb._src.protocol.modes import Mode, Sync
from psnb._src.strategy.core import StrategyCore
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.labels import Labels
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import Named, counted, truncate
from psnb.errors import CoordinatorClosedError, ServerUnresponsiveError

logger = logging.getLogger("psnb")

_LAST_SAVE_WAIT = 10.0
"""Seconds that closures get to end when a last server is about to."""

_labels = Labels()


class Training(Protocol):
    """What trains epochs in a thread of its own."""

    def stop(self, reason: str) -> object:
        """Ask it to end; returns at once."""

    def place(self) -> Mapping[str, Any]:
        """Return where it is, to continue from there."""

    def at_rest(self, go: Callable[..., Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Call a function that rewinds while it rests, and continue from there; return the result.

        In its own thread that comes later, and None is returned.
        """


class CoordinatorCore:
    """The parts of a coordinator.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        Whose parts they are; held weakly.
    strategy : StrategyCore
        The coordinator's.
    mode : Mode
        The strategy's.
    settings : Settings
        The coordinator's.
    label : str
        What views are to call it; a number is added if another one has that name.

    Attributes
    ----------
    name : str
        What views call it.
    id : str
        Unique among the coordinators of the cluster.
    strategy, mode
        As given.
    records : Records
        What its connections to workers record.
    recording : Recording
        What it tells of its run, to be kept and compared.
    leases : LeaseRegistry
        The epochs of leased datasets.
    resources : ResourceRegistry
        The per-worker values.
    queue : ClosureQueue
        The way to what waits and runs.
    resolver : Resolver
        Settles closures whose worker was lost.
    membership : Membership
        The workers that are here.
    broadcasts : Broadcasts
        Calls each worker.
    saving : Saving
        The checkpoint managers.
    live : LiveView
        The dashboard below cells.
    unmoved_rows : UnmovedRows
        Looks, at the end of an epoch, which embeddings have not learned.
    """

    def __init__(
        self,
        coordinator: object,
        strategy: StrategyCore,
        mode: Mode,
        settings: Settings,
        label: str,
    ) -> None:
        self._coordinator = weakref.ref(coordinator)
        self.name = _labels.take(label, coordinator)
        self.strategy, self.mode = strategy, mode
        self.records = records = Records.empty(unpack_error)
        self.recording = Recording(self.name, records)
        self.leases = LeaseRegistry(mode.closures if isinstance(mode, Sync) else None)
        scheduler = Scheduler(records.events, gate_for(mode), self.leases, ended=strategy.ended)
        loop = event_loop(strategy.client)
        executor = Executor(scheduler, strategy, records, loop)
        self.queue = ClosureQueue(settings.max_queue_size, scheduler, executor.handle, loop)
        self.id = self.queue.name
        self.broadcasts = Broadcasts(self.schedule, self.worker_names, self.queue)
        self.resources = ResourceRegistry(self.broadcasts.ask)
        self.resolver = Resolver(scheduler, strategy, executor.handle)
        services = Services(
            executor.handle,
            scheduler,
            self.resources,
            self.leases,
            self.resolver,
            records,
            settings.timeouts,
            settings.start_delay,
            mode,
            strategy.name,
            strategy.losses.advice,
            strategy.watch.wanted,
        )
        self.membership = Membership(strategy.client, strategy.closure_workers, services)
        self._cancel = self.queue.cancel  # one object for all remote values
        strategy.servers.on_end = self.membership.give_up
        self.resources.on_change = self.membership.send_resources
        # Weakly: failures are the user's, who may keep one for longer than the strategy.
        failed = partial(_note, records.failures, self.resources, weakref.ref(strategy))
        executor.attach(self.membership, self.resolver, failed, self.queue.inbox.look)
        self.membership.start()
        self.saving, self.live = Saving(records.events), LiveView()
        self._functions = FunctionRegistry(strategy.uploads)
        self.unmoved_rows = UnmovedRows(strategy, records.events)
        self._ids, self._numbers = itertools.count(), Numbers()
        self._ended_before = self._next_before = 0  # of runs that this one continues
        self._started, self._began = time.monotonic(), time.time()
        self._elapsed: float | None = None  # when it was closed
        # What trains, the outermost first, and how to stop it; one call each adds, removes or
        # copies, atomically.
        self._trainings: dict[TrainingClock, Training | None] = {}
        self.marked: Callable[[], Any] = lambda: None  # returns the last mark, as long as it lives
        self._interrupted = False  # training, while closures ran
        self._clock = TrainingClock()  # the present one's, or the last one's
        self._last_workers: tuple[WorkerStatistics, ...] | None = None  # when it was closed

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
        """Keep the final figures, and let others have the name; before the connections end."""
        self._elapsed = time.monotonic() - self._started
        self._last_workers = tuple(
            each if each.ended else replace(each, state="released")
            for each in self.membership.statistics()
        )
        _labels.give_back(self.name)

    def worker_names(self) -> set[str]:
        """Return the names of the workers that can run closures now; asks the scheduler."""
        strategy = self.strategy
        return set(strategy.closure_workers(identity(strategy.client)).values())

    def schedule(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: ScheduleOptions,
    ) -> RemoteValue:
        """Queue a call; see `ClusterCoordinator.schedule`."""
        function = self._functions.register(fn)
        name, inbox = function.name, self.queue.inbox
        if function.references:
            self.resources.require_own(function.references, f"a per-worker value that {name} uses")
        call = NO_ARGUMENTS
        if args or kwargs:
            futures = GivenFutures(self.strategy.client)
            call = pack_call(name, args, kwargs, inbox, futures)
            self.resources.require_own(call.references, f"a per-worker value that {name} is given")
            futures.await_tasks()
        steps_wanted = options.steps > 1 and options.results
        remote = (StepValues if steps_wanted else RemoteValue)(inbox, self._cancel)
        first = self._numbers.take(options.steps)
        self.queue.put(Work(next(self._ids), first, function, call, options, remote))
        return remote

    def saved_run(self, manager: SavingSettings) -> SavedRun:
        """Return what a checkpoint of a manager has beside parameters, as of now."""
        found = self.queue.statistics()
        return SavedRun(
            versions(),
            manager,
            self.mode,
            self.strategy.layout.replicas,
            self._ended_before + _ended(found),
            # Not behind those that wait: rounds, and the random numbers of closures, go on as they
            # would have.
            max(self._next_before, found.next_number),
            tuple(self.leases.states()),
            {name: each.recipe() for name, each in self.strategy.parameters().items()},
            self.strategy.models.all(),
            self.recording.record(self.run_settings()),
        )

    def run_settings(self) -> RunSettings:
        """Return with what this run is made, as of now."""
        strategy = self.strategy
        workers = sum(not each.ended for each in self.membership.statistics())
        counts = strategy.layout.replicas, workers, len(strategy.layout.servers)
        return self.recording.settings(self.mode, counts, strategy.parameters())

    def go_on_from(self, closures: int, next_number: int, record: RunRecord | None = None) -> None:
        """Count and number closures as if there had been those that are saved.

        To be called when none is scheduled. A ``record`` is that of the run that goes on.
        """
        self.recording.go_on_from(record)
        self._numbers = Numbers(max(self._numbers.next, next_number))
        self._next_before = self._numbers.next
        here = _ended(self.queue.statistics())
        self._ended_before = max(self._ended_before, closures - here)

    def statistics(self) -> Statistics:
        """Return a frozen snapshot of queue, workers, servers and metrics; cheap, any thread."""
        queue = self.queue.statistics()
        records = self.records
        workers = tuple(
            replace(each, last_error=records.failures.last_of(each.name)) if each.failed else each
            for each in self._last_workers or self.membership.statistics()
        )
        state = coordinator_state(
            closed=queue.closed,
            failing=queue.failing,
            parameters_lost=self.strategy.layout.incomplete,
            paused=queue.paused,
            queued=queue.queued,
            in_flight=queue.in_flight,
            workers=sum(not worker.ended for worker in workers),
        )
        rate = sum(worker.closures_per_second for worker in workers)
        left = queue.queued + queue.in_flight
        training = self._clock.progress()
        if self._trainings:
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
            metrics=Named(metrics, "metric"),
            staleness=records.staleness.statistics(),
            closures_per_second=rate,
            eta=eta,
            examples=metrics["examples"].total if "examples" in metrics else None,
            examples_per_second=records.history.examples_per_second(),
            checkpoint=self.saving.status,
            workers_lost=records.events.count(EventKind.WORKER_LOST),
            servers_lost=self.strategy.servers.events.count(EventKind.SERVER_LOST),
            training=training,
        )

    def _servers(self) -> tuple[ServerStatistics, ...]:
        """Return what the servers reported last; once closed, they are not asked any more."""
        found = self.strategy.watch.statistics()
        if self._last_workers is None:
            self.watch()  # who asks for them once may do so again
            return found
        return tuple(
            each
            if each.state == "lost"
            else replace(each, state="released", pulls_per_second=0.0, pushes_per_second=0.0)
            for each in found
        )

    def events(self, since: float = 0.0) -> tuple[Event, ...]:
        """Return the events after ``since`` (seconds since the epoch), the oldest first."""
        both = [*self.records.events.since(since), *self.strategy.servers.events.since(since)]
        return tuple(sorted(both, key=lambda event: event.time))

    def identity(self) -> Identity:
        """Return the coordinator's name, process, host and cluster, for views."""
        client = self.strategy.client
        cluster_id, cluster_started = scheduler_since(client)
        return Identity(
            name=self.name,
            kernel=kernel_id(),
            process=os.getpid(),
            host=socket.gethostname(),
            cluster=scheduler_address(client),
            cluster_id=cluster_id,
            cluster_started=cluster_started,
            dashboard=self.strategy.servers.dashboard,
            started=self._began,
        )

    def optimizers(self) -> Mapping[str, OptimizerState]:
        """Return the state of each parameter's optimizer, as of the last request."""
        return self.strategy.watch.optimizers()

    def tables(self) -> Sequence[str]:
        """Return the names of the embeddings."""
        every = self.strategy.parameters().items()
        return [name for name, each in every if isinstance(each, SparseShards)]

    def progress(
        self, shown: bool | None = None, epoch: Callable[[], WorkDone] | None = None
    ) -> AbstractContextManager[None]:
        """Return a context that shows progress: as ``shown`` says, else where people look."""
        if not wanted(shown, self.live.watched):
            return nullcontext()
        return ProgressLine(self, epoch=epoch)

    @contextmanager
    def naming_what_runs(self) -> Iterator[None]:
        """Let a `TimeoutError` of the block name the closures that have run for some time."""
        try:
            yield
        except TimeoutError as error:
            workers = self.statistics().workers
            if busy := [f"{each.name} is {each.activity}" for each in workers if each.activity]:
                error.add_note(
                    f"{truncate('; '.join(busy))}. A closure that does not end by itself is given "
                    "up by remote.cancel(); its thread on the worker goes on"
                )
            raise

    def command(self, name: CommandName) -> Callable[..., Any]:
        """Return what carries out a command of a view: the coordinator's method of that name."""
        if name == "stop_training":
            return self.stop_training
        if name in ("describe_table", "look_up_row"):
            return partial(getattr(table_views, name), self.strategy.parameters())
        if name == "worker_output":
            return self.records.output.shown
        coordinator = self._coordinator()
        if coordinator is None:
            raise CoordinatorClosedError("the coordinator is gone: make a new one")
        return getattr(coordinator, name)

    def controls(self) -> dict[CommandName, str]:
        """Return for each control of a view why it cannot be used now; an empty text if it can."""
        queue = self.queue.statistics()
        closed = "the coordinator is closed" if queue.closed else ""
        trains = any(self._trainings.copy().values())
        return {
            "pause": closed or ("it is paused already" if queue.paused else ""),
            "resume": closed or ("" if queue.paused else "it is not paused"),
            "drain": closed,
            "cancel_queued": closed or ("" if queue.queued else "nothing is queued"),
            "stop_training": closed or ("" if trains else "no trainer trains"),
            "checkpoint": closed or self.saving.cannot,
            "rewind": closed or self.cannot_rewind,
            "set_learning_rate": closed,
            "add_worker": closed or cannot_add(self.strategy.client),
            "retire_worker": closed,
            "describe_table": closed,
            "look_up_row": closed,
            "worker_output": "",
        }

    def watch(self) -> None:
        """Keep asking the servers for their figures, for some seconds."""
        self.strategy.watch.keep()

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
        with uninterrupted, self.queue.barrier():
            with self.naming_what_runs():
                self.queue.wait_until_nothing_runs(timeout)
            yield

    def save_last(self, then: Callable[[], None]) -> AnyPath:
        """Save all parameters, and call a function before any closure goes on; return the path."""
        with self.barrier(_LAST_SAVE_WAIT):
            path = self.saving.save()
            then()
        return path

    @contextmanager
    def training(self, clock: TrainingClock, run: Training | None = None) -> Iterator[None]:
        """Show how far training is while the block runs, and at its end where it has ended.

        Views may stop it, if a ``run`` is given, and it goes back with the parameters. If an
        earlier one was interrupted while closures ran, they end first, and what they raise is
        logged: it is not this one's.
        """
        if self._interrupted:
            try:
                self.queue.join(None, self.saving.poll)
            except (CoordinatorClosedError, ServerUnresponsiveError):
                raise
            except Exception as error:  # of a closure: of any kind
                logger.warning("what ran when training was interrupted failed: %r", error)
            self._interrupted = False
        try:
            with uninterrupted:
                self._trainings[clock] = run
                self._clock = next(iter(self._trainings.copy()))
            yield
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        finally:
            # One that stayed would stand for all training that comes.
            with uninterrupted:
                self._trainings.pop(clock, None)
                self._clock = next(iter(self._trainings.copy()), clock)
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
            now = time.time()
            self.records.merged.begin(now, earlier)
            self.records.history.begin_epoch(now, epoch)

    def newest(self) -> Any:
        """Return the newest mark or checkpoint; None if there is none."""
        checkpoint, marked = self.strategy.losses.checkpoint, self.marked()
        if marked is None or marked.dropped or marked.checkpoint != checkpoint:
            return checkpoint
        return marked

    @property
    def cannot_rewind(self) -> str:
        """Why there is nothing to go back to; empty if there is."""
        if self.newest() is not None:
            return ""
        return (
            "there is no mark and no checkpoint to go back to: coordinator.mark() makes one, or "
            "a psnb.CheckpointManager"
        )

    def stop_training(self) -> None:
        """End the training of all trainers when what runs has ended; returns at once."""
        for each in self.trained():
            each.stop("stopped by a view")

    def trained(self) -> list[Training]:
        """Return what trains and can be stopped."""
        return [each for each in self._trainings.copy().values() if each is not None]

    def training_places(self) -> dict[Training, Mapping[str, Any]]:
        """Return where what trains is, while no closure runs."""
        return {each: each.place() for each in self.trained()}


def _note(
    failures: FailureLog,
    resources: ResourceRegistry,
    strategy: Callable[[], StrategyCore | None],
    worker: str,
    closure: Work,
    error: bytes,
) -> None:
    failures.add(worker, str(closure), error, pickled_call(worker, closure, resources, strategy))


def _ended(closures: QueueStatistics) -> int:
    return closures.completed + closures.failed + closures.cancelled
