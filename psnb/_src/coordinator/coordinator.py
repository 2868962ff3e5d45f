"""ClusterCoordinator: the notebook's side of scheduling.

A facade: it checks arguments and has the texts for users; `CoordinatorCore` does the work. Its
methods may be called from any thread but the event loop's.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

from psnb._src.coordinator.closures import (
    DEFAULT_RETRIES,
    Closure,
    FunctionRegistry,
    Pin,
    ScheduleOptions,
    WorkerPredicate,
    keyword,
    options,
    pack_call,
    pickled_call,
    positional,
)
from psnb._src.coordinator.epoch import (
    DatasetServices,
    Epochs,
    EpochServices,
    LeasedDataset,
    LeasedIterator,
    WholeSplits,
    map_splits,
    run_epoch,
)
from psnb._src.coordinator.leases import LeaseRegistry, Progress
from psnb._src.coordinator.load import DRAIN, HEARTBEAT, Services, StartDelay, Timeouts
from psnb._src.coordinator.membership import Membership
from psnb._src.coordinator.partitioned import PartitionedDataset, make_dataset_of
from psnb._src.coordinator.queue import BroadcastCalls, ClosureQueue, fetch_per_worker
from psnb._src.coordinator.remote_value import RemoteValue, join
from psnb._src.coordinator.resolve import Resolver
from psnb._src.coordinator.settings import (
    DEFAULT_QUEUE_SIZE,
    SavedRun,
    SavingSettings,
    Settings,
    versions,
)
from psnb._src.coordinator.values import (
    PerWorkerDataset,
    PerWorkerValues,
    ResourceRegistry,
    fetched,
)
from psnb._src.coordinator.view import CoordinatorView, Observed, Saving, Steps, gate_for
from psnb._src.metrics.metric import MetricStates
from psnb._src.monitor.display import LiveView, ProgressLine, Share, wanted
from psnb._src.monitor.history import TrainingClock
from psnb._src.monitor.links import tell_panels
from psnb._src.monitor.metrics import Records
from psnb._src.protocol.messages import Geo, Sync
from psnb._src.protocol.packing import GivenFutures, unpack_error
from psnb._src.strategy.core import Fences
from psnb._src.strategy.reconciler import LastSave
from psnb._src.strategy.strategy import ParameterServerStrategy, core_of
from psnb._src.utils.checks import Labels, check_label, integer
from psnb._src.utils.text import shown
from psnb._src.utils.threads import uninterrupted
from psnb.errors import ConfigurationError, CoordinatorClosedError

# CoordinatorCore: psnb's side of a coordinator; users hold a `ClusterCoordinator`.
#
# It makes four parts and joins them: the queue (what waits and runs), the membership (a connection
# for each worker, on the Dask client's event loop), the registries of functions and per-worker
# values, and the view that dashboards read (`CoordinatorView`). It starts no thread of its own; its
# methods may be called from any thread but the event loop's.

_labels = Labels()


class CoordinatorCore:
    """The parts of a coordinator, and what they do together.

    Parameters
    ----------
    strategy : ParameterServerStrategy
        Knows where the parameters are and which workers there are.
    settings : Settings
        How closures are scheduled.

    Attributes
    ----------
    queue : ClosureQueue
        What waits and runs.
    membership : Membership
        Who is here.
    resources : ResourceRegistry
        The per-worker values.
    resolver : Resolver
        Settles lost closures.
    poll : callable
        Begins the saves that are due. To be called by whoever waits for closures; cheap.
    view : CoordinatorView
        What dashboards read.
    live : LiveView
        The dashboards in the notebook.
    """

    def __init__(self, strategy: ParameterServerStrategy, settings: Settings) -> None:
        self._strategy = strategy
        core, records = core_of(strategy), Records.empty(unpack_error)
        seats = strategy.mode.closures if isinstance(strategy.mode, Sync) else None
        self._functions, self._leases = FunctionRegistry(core.uploads), LeaseRegistry(seats)
        self.resources = ResourceRegistry(self._fetch_per_worker)
        weak = weakref.ref(core)  # nothing here must keep the strategy alive

        def ended() -> CoordinatorClosedError | None:
            known = weak()
            return None if known is None else known.ended()

        resources = self.resources

        def failed(worker: str, closure: Closure, error: bytes) -> None:
            call = pickled_call(worker, closure, resources, weak)
            records.failures.add(worker, str(closure), error, call)

        self.queue = ClosureQueue(
            settings.max_queue_size,
            records.events,
            gate_for(strategy.mode),
            on_failure=failed,
            on_end=self._leases.end,
            on_states=records.merged.add,
            ended=ended,
        )
        self.resolver = Resolver(self.queue, core, isinstance(strategy.mode, Geo))

        def workers(cluster: dict[str, Any], connected: Collection[str]) -> dict[str, str]:
            known = weak()  # servers come and go
            return known.closure_workers(cluster, connected) if known is not None else {}

        services = Services(
            self.queue,
            self.resources,
            self._leases,
            self.resolver,
            records,
            settings.timeouts,
            settings.start_delay,
            strategy.mode,
            core.name,
        )
        self.membership = Membership(strategy.client, workers, services)
        core.servers.on_end = self.membership.give_up
        self.queue.attach(self.membership.wake, Steps(self.queue, self.membership, core).begin)
        self.resources.attach(self.membership.wake_all)
        self._ids, self._ended_before = itertools.count(), 0
        me = weakref.ref(self)

        def cancel(remote: RemoteValue) -> bool:
            known = me()
            return known is not None and known.cancel(remote)

        self._cancel = cancel  # what remote values hold, which do not keep the coordinator
        label = _labels.take(settings.name or strategy.name, self)
        saving = Saving(records.events, self.queue)
        self.poll = saving.poll
        self.view = CoordinatorView(label, core, self.queue, self.membership, records, saving)
        self.live = LiveView()
        # Queue and connections know neither coordinator nor strategy, so the coordinator can be
        # collected while they live.
        self._finalizer = weakref.finalize(self, _end, self.queue, self.membership)
        try:
            self.link = tell_panels(self.view, strategy.client)
        except BaseException:  # an interrupt: the caller never gets this coordinator
            self._finalizer()
            raise

    def schedule(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: ScheduleOptions,
    ) -> RemoteValue:
        """Queue a call; see `ClusterCoordinator.schedule`."""
        function = self._functions.register(fn)
        futures = GivenFutures(self._strategy.client)
        call = pack_call(function.name, args, kwargs, self.queue.settled, futures)
        name = function.name
        self.resources.require_own(function.references, f"a per-worker value that {name} uses")
        self.resources.require_own(call.references, f"a per-worker value that {name} is given")
        futures.await_tasks()
        remote = RemoteValue(self.queue.settled, self._cancel)
        self.queue.put(Closure(next(self._ids), function, call, options, remote))
        return remote

    def go_on_from(self, closures: int) -> None:
        """Have closures numbered from here; to be called when none is scheduled."""
        number = next(self._ids)
        self._ids = itertools.count(max(number, closures))
        self._ended_before += max(0, closures - number)

    def saved_run(self, manager: SavingSettings) -> SavedRun:
        """Return what a checkpoint of a manager has beside parameters."""
        found, core = self.queue.statistics(), core_of(self._strategy)
        return SavedRun(
            versions(),
            manager,
            self._strategy.mode,
            core.layout.replicas,
            self._ended_before + found.completed + found.failed + found.cancelled,
            tuple(self._leases.states()),
            {name: each.recipe() for name, each in core.parameters().items()},
            core.models.all(),
        )

    @uninterrupted  # to the end: nobody else finds out what became of a closure that is open
    def cancel(self, remote: RemoteValue) -> bool:
        """Begin to cancel a closure; return whether it is going to end."""
        kept = isinstance(self._strategy.mode, Geo)
        closure = self.queue.cancel(remote, in_flight=not kept)
        if closure is not None:
            # In this order: what the worker hears after this, it hears as of a cancelled closure.
            self.membership.soon(partial(self._revoke, closure))
        return not kept or remote.done()

    def _revoke(self, closure: Closure) -> None:
        # On the event loop.
        self.membership.revoke(closure)
        self.resolver.revoke(closure)

    def make_dataset(
        self, dataset_or_fn: Any, sharding: str, splits: int | None
    ) -> PerWorkerDataset | LeasedDataset | PartitionedDataset:
        """Make a dataset on all workers; see `ClusterCoordinator.create_per_worker_dataset`."""
        # In rounds: what an epoch comes to must not depend on how many workers there are.
        count = self._leases.seats or self._strategy.num_workers
        return make_dataset_of(dataset_or_fn, sharding, splits, count, self._dataset_services())

    def run_epoch(
        self,
        iterator: LeasedIterator,
        schedule: Callable[[WorkerPredicate, int | None], RemoteValue],
        watch: Callable[[], object] = bool,
        wanted: Callable[[int], bool] = lambda waiting: True,
    ) -> Iterator[RemoteValue]:
        """Schedule closures until an epoch is over; see `datasets.run_epoch`."""
        self.resources.require_own((iterator,), "the iterator")
        return run_epoch(iterator, schedule, self.epoch_services(), watch, wanted)

    def epoch_services(self) -> EpochServices:
        """Return what is needed to run an epoch."""
        return EpochServices(
            self.poll,
            self.queue.withdraw,
            self.queue.filling,
            lambda: self.membership.count,
            self.membership.wake,
            self.queue.settled,
        )

    def map_splits(
        self, function: Callable[..., Any], splits: WholeSplits, shown: bool | None
    ) -> list[Any]:
        """Call a function for each split of a dataset; see `datasets.map_splits`."""
        return map_splits(function, splits, self._dataset_services(), shown)

    def progress(
        self, shown: bool | None = None, epoch: Callable[[], Share] | None = None
    ) -> AbstractContextManager[None]:
        """Return a context in which progress is shown: if told so, else where people look."""
        if not wanted(shown, self.live.watched):
            return nullcontext()
        return ProgressLine(self.view, epoch=epoch)

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return not self._finalizer.alive

    def check_open(self) -> None:
        """Raise CoordinatorClosedError if it is closed."""
        self.queue.check_open()

    def close(self) -> None:
        """Cancel what is queued or in flight, and end all connections."""
        try:
            self.view.note_end()
            _labels.give_back(self.view.name)
            self._finalizer()
            self.resolver.end()
        finally:
            if self.link is not None:
                self.link.close()

    def _fetch_per_worker(
        self, value: PerWorkerValues, question: Callable[[Any], Any], timeout: float | None
    ) -> list[Any]:
        return fetch_per_worker(value, question, timeout, self._dataset_services().pinned)

    def _dataset_services(self) -> DatasetServices:
        def schedule(
            fn: Callable[..., Any], args: tuple[Any, ...], how: ScheduleOptions
        ) -> RemoteValue:
            return self.schedule(fn, args, {}, how)

        pinned = BroadcastCalls(schedule, self._strategy.worker_names, self.queue)
        return DatasetServices(self.resources, self._leases, schedule, pinned, self.progress)


@uninterrupted  # except while it waits; also when the coordinator is collected
def _end(queue: ClosureQueue, membership: Membership) -> None:
    queue.close()
    membership.close()


class ClusterCoordinator(Observed):
    """Schedules closures on the workers of a strategy, asynchronously.

    There is one for each strategy: a second call returns the same object. As the last line of a
    notebook's cell it is a live display. Thread-safe. Also a context manager that closes it.

    Parameters
    ----------
    strategy : ParameterServerStrategy
        Knows where the parameters are and which workers there are.
    max_queue_size : int
        Closures that may wait; `schedule` blocks beyond that.
    worker_timeout : float, optional
        Seconds that queued work waits while there is no worker at all; then it fails with
        `WorkerLostError`, and the coordinator goes on when a worker joins. None waits for ever.
    heartbeat_timeout : float
        Seconds without a heartbeat after which a worker counts as lost; its closures then run
        elsewhere. Signs of life come from the worker's event loop, so long closures do not matter.
        A closure that holds the interpreter's lock for longer than this does, and so does a single
        result that takes longer to arrive. A worker that closures wait for by name or index, and
        that is not there, is reported missing after as long.
    drain_timeout : float
        Seconds that a worker gets to finish its closures when Dask retires it.
    start_delay, start_delay_max : float
        Workers begin one after the other, as TensorFlow's do with the environment variables
        ``TF_COORDINATOR_SCHEDULE_START_DELAY`` and ``..._MAX``: worker ``i`` takes its first
        closure ``min(i * start_delay, start_delay_max)`` seconds after it is ready.
    name : str, optional
        What views call it; by default the strategy's name. A number is added if a coordinator of
        this process has that name.

    Attributes
    ----------
    strategy : ParameterServerStrategy
        As given.
    settings : Settings
        The other arguments.

    Raises
    ------
    ConfigurationError
        If an argument is of the wrong kind, or the strategy's coordinator has another queue
        size, other timeouts, another start delay or another name.
    CoordinatorClosedError
        If the strategy is closed.

    Notes
    -----
    After TensorFlow's ``tf.distribute.coordinator.ClusterCoordinator``. If the worker of a closure
    dies, the servers are asked whether the closure has had its effect; if not, it runs again on
    another worker. So its effect on the parameters happens exactly once, wholly and from one
    attempt, or not at all if it raises. See `Variable`; and see `Sync` and `Geo`, the modes in
    which it may be lost.
    """

    strategy: ParameterServerStrategy
    settings: Settings
    _core: CoordinatorCore

    # Not __init__, which would run again on a coordinator that exists already.
    def __new__(
        cls,
        strategy: ParameterServerStrategy,
        max_queue_size: int = DEFAULT_QUEUE_SIZE,
        *,
        worker_timeout: float | None = None,
        heartbeat_timeout: float = HEARTBEAT,
        drain_timeout: float = DRAIN,
        start_delay: float = 0.0,
        start_delay_max: float = math.inf,
        name: str | None = None,
    ) -> ClusterCoordinator:
        if not isinstance(strategy, ParameterServerStrategy):
            raise ConfigurationError(
                f"strategy must be a psnb.ParameterServerStrategy, found {shown(strategy)}"
            )
        settings = Settings(
            max_queue_size,
            Timeouts(worker_timeout, heartbeat_timeout, drain_timeout),
            StartDelay(start_delay, start_delay_max),
            check_label(name),
        )

        def make() -> tuple[ClusterCoordinator, Callable[[], Fences], LastSave]:
            made = object.__new__(cls)
            made.strategy, made.settings = strategy, settings
            made._core = CoordinatorCore(strategy, settings)
            made._view, made._live = made._core.view, made._core.live
            return made, made._core.resolver.fences, made._view.save_last

        one = core_of(strategy).one_coordinator(make)
        one.settings.require(settings)
        return one

    def __enter__(self) -> ClusterCoordinator:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        worker: Pin | None = None,
        retries: int = DEFAULT_RETRIES,
        priority: int = 0,
    ) -> RemoteValue:
        """Queue a call for whichever worker is free, and return at once.

        It blocks only while ``max_queue_size`` closures are queued already. An interrupt may come
        after the closure was queued; then nobody has its remote value.

        The function, with everything that it refers to, and the arguments are captured now: later
        changes do not reach this closure, but the next one that is scheduled. (Of large arrays and
        collections that the function refers to, changes in place are not noticed: pass them as
        arguments.) Functions of your own modules are imported on the workers: see
        `ParameterServerStrategy.upload`.

        Parameters
        ----------
        fn : callable
            Any callable, also a lambda or a local function.
        args : iterable
            Positional arguments. Per-worker values among them, at any depth, are replaced by the
            value of the worker that runs the closure, and remote values of this coordinator by
            their results: the closure stays queued until they are there. If one fails, the closure
            fails with `ClosureInputError`; see `RemoteValue.fetch`. So are futures of Dask's, whose
            results the worker fetches, and for which it waits.
        kwargs : mapping of str to Any, optional
            Keyword arguments, likewise.
        worker : str, int or callable, optional
            Which worker must run it: its name, its index, or a function that takes a worker's
            `WorkerStatistics` and returns whether it may; the function is called often and must be
            quick. Such a closure waits until the worker is there, and never blocks others; after
            ``heartbeat_timeout`` a warning, which `events` has, tells of a name or index that is
            not there.
        retries : int
            How often the closure may be lost with a dying worker and run again; beyond that it
            fails with `WorkerLostError`.
        priority : int
            Higher ones go first. Within one priority, closures that were lost with a worker go
            first, then those that became ready first.

        Returns
        -------
        RemoteValue
            The promise of its result.

        Raises
        ------
        Exception
            What an *earlier* closure raised, once, when no closure runs any more; this closure is
            not queued then. See `join`. If `fetch` has raised all errors that there are, nothing is
            raised: a warning says how many closures were cancelled with them.
        SerializationError
            If function or arguments cannot be pickled; the message names the part that cannot.
        CoordinatorClosedError
            If the coordinator is closed.
        ConfigurationError
            If an argument is of the wrong kind.
        """
        if not callable(fn):
            raise ConfigurationError(f"fn must be callable, found {shown(fn)}")
        how = options(retries, priority, worker)
        return self._core.schedule(fn, positional(args), keyword(kwargs), how)

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        worker: Pin | None = None,
        retries: int = DEFAULT_RETRIES,
        priority: int = 0,
    ) -> list[RemoteValue]:
        """Schedule a call for each item, or for each tuple of items of several iterables.

        It ends with the shortest, like Python's `map`.

        Parameters
        ----------
        fn : callable
            Called with one item of each iterable.
        *iterables : iterable
            The arguments.
        worker, retries, priority
            As for `schedule`.

        Returns
        -------
        list of RemoteValue
            In the order of the items.

        Raises
        ------
        Exception
            As for `schedule`. Calls that were scheduled before it go on or were cancelled,
            depending on the error.
        """
        if not iterables:
            raise ConfigurationError("map takes a function and one iterable at least")
        return [
            self.schedule(fn, args, worker=worker, retries=retries, priority=priority)
            for args in zip(*iterables, strict=False)
        ]

    @uninterrupted  # except while it waits: the progress line's thread ends with the call
    def join(self, timeout: float | None = None, *, progress: bool | None = None) -> None:
        """Wait until every scheduled closure has ended, and has had its effect on the parameters.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; None waits for as long as it takes.
        progress : bool, optional
            Whether to show the progress, in a line below the cell or on stderr, if it takes more
            than a second; by default in a notebook that has no live dashboard of this coordinator,
            and if stderr is a terminal.

        Raises
        ------
        Exception
            What the first failed closure raised: its own type, with the worker, the arguments and
            the user's lines as notes, the whole remote traceback in the attribute
            ``full_traceback`` and the other failures in ``other_errors``. It is raised once, by
            whichever of `schedule`, `join` and `done` comes first; if `fetch` raised it before, the
            first note says so, and `schedule` clears it. Before that, all queued closures are
            cancelled and the running ones end. Afterwards the coordinator works as before. If an
            interrupt comes at that moment, KeyboardInterrupt is raised with the error as its
            context.
        ServerUnresponsiveError
            If all that is left waits for a server that does not respond: it must say whether
            closures had their effect, or apply them. Nothing has changed: they go on when it
            answers, or when ``strategy.recover()`` replaces it, and `join` may be called again.
        TimeoutError
            If it takes longer; everything goes on as it was.
        CoordinatorClosedError
            If the coordinator is closed, before or meanwhile.
        """
        with self._core.progress(progress):
            self._core.queue.join(timeout, self._core.poll)

    async def join_async(self, timeout: float | None = None) -> None:
        """Do what `join` does without blocking the event loop: ``await coordinator.join_async()``.

        For notebook cells and other coroutines. Cancelling it changes nothing.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; None waits for as long as it takes.

        Raises
        ------
        Exception
            As for `join`: the first failed closure's error, `ServerUnresponsiveError`,
            TimeoutError, `CoordinatorClosedError`.
        """
        await join(self._core.queue, timeout, self._core.poll)

    def done(self) -> bool:
        """Return whether every scheduled closure has ended and has had its effect.

        Cheap, never blocks.

        Raises
        ------
        Exception
            What a closure raised, once, as soon as nothing runs any more; see `join`.
        ServerUnresponsiveError
            Once, if all that is left waits for a server that does not respond; see `join`.
        CoordinatorClosedError
            If the coordinator is closed.
        """
        self._core.poll()
        return self._core.queue.done()

    def fetch(self, structure: Any) -> Any:
        """Replace every `RemoteValue` in a structure by its result, waiting for it.

        Every `PerWorkerValues` is replaced by the list of the workers' values; see
        `PerWorkerValues.fetch`.

        Parameters
        ----------
        structure : object
            Any nesting of tuples, named tuples, lists, dicts and dataclasses. Other things stay as
            they are.

        Returns
        -------
        object
            The same nesting.

        Raises
        ------
        Exception
            What the first failed closure among them raised, with the errors of others that have
            failed as ``other_errors``; see `RemoteValue.fetch`.
        """
        return fetched(structure)

    def create_per_worker_dataset(
        self,
        dataset_or_fn: Any,
        *,
        sharding: Literal["none", "static", "dynamic"] = "none",
        splits: int | None = None,
    ) -> PerWorkerDataset | LeasedDataset | PartitionedDataset:
        """Make a dataset on every worker, also on those that join later.

        Parameters
        ----------
        dataset_or_fn : iterable or callable
            An iterable, which is sent to the workers, or a function that makes one there; it may
            take an `InputContext`, which has the worker's index. A `psnb.data.InMemoryDataset` is
            spread over the workers' memories.
        sharding : str
            ``"none"``: every worker sees all of it, as in TensorFlow. ``"static"``, for a
            `psnb.data.Dataset`: each worker sees its share of the source, by its index and the
            number of workers when it was connected. ``"dynamic"``, also for one: workers lease
            parts of it, and every example is used exactly once per epoch, whatever process dies;
            see `LeasedDataset` and `run_epoch`.
        splits : int, optional
            Into how many parts the dataset is cut, for ``"dynamic"`` and in memory; by default
            eight for each worker, in mode `Sync` eight for each closure of a round.

        Returns
        -------
        PerWorkerDataset, LeasedDataset or PartitionedDataset
            ``iter`` of it, in the notebook, makes an iterator on each worker, to be passed to
            closures; ``iter`` in a closure is refused. If the function raises, closures that use it
            fail with `ClosureInputError`.

        Raises
        ------
        SerializationError
            If it cannot be pickled.
        ConfigurationError
            If it is neither iterable nor callable, or a dataset that cannot be cut.
        """
        self._core.check_open()
        return self._core.make_dataset(dataset_or_fn, sharding, splits)

    def create_per_worker_resource(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> PerWorkerValues:
        """Call a function once on every worker and keep what it returns there.

        Parameters
        ----------
        fn : callable
            Makes the value; `psnb.worker_index` works in it.
        args, kwargs
            Its arguments; other per-worker values among them are replaced by the worker's own.

        Returns
        -------
        PerWorkerValues
            To be passed to closures. If the function raises on a worker, closures that use the
            value there fail with `ClosureInputError`.

        Raises
        ------
        SerializationError
            If function or arguments cannot be pickled.
        ConfigurationError
            If ``fn`` is not callable.
        """
        if not callable(fn):
            raise ConfigurationError(f"fn must be callable, found {shown(fn)}")
        self._core.check_open()
        return PerWorkerValues(self._core.resources, fn, positional(args), keyword(kwargs))

    def use_threads(self, count: int | None) -> None:
        """Have each worker run so many closures at the same time, from now on.

        Closures that run go on; workers that join do the same. Returns at once; any thread.

        Parameters
        ----------
        count : int or None
            How many; None for as many as the Dask worker has threads, as in the beginning. More
            than the cores pay where closures wait: for parameters, or for files.

        Raises
        ------
        ConfigurationError
            If it is below 1.
        CoordinatorClosedError
            If the coordinator is closed.
        """
        if count is not None:
            count = integer("use_threads: count", count, 1)
        self._core.check_open()
        self._core.membership.use_threads(count)

    def run_epoch(
        self,
        fn: Callable[..., Any],
        iterator: LeasedIterator,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        progress: bool | None = None,
        watch: Callable[[], object] | None = None,
    ) -> Progress:
        """Call a function on the workers until every example of an epoch was used exactly once.

        It schedules ``fn(iterator, *args, **kwargs)``, a few for each worker at a time, until all
        splits are done, and waits for the last. A call that finds no data left ends without an
        error. Examples taken on a worker that died are used by the same closures when these run
        again; if these had their effect before, the examples count as used.

        In mode `Sync` it schedules one round after the other, and which examples meet in a round
        depends on the dataset, its splits and the size of rounds alone: not on which worker is
        faster, how many there are, or which one dies.

        Parameters
        ----------
        fn : callable
            Takes elements with ``next(iterator)``, as many as it likes. It must take the same
            number when it runs again after its worker was lost.
        iterator : LeasedIterator
            From ``iter`` of a dataset with ``sharding="dynamic"``.
        args, kwargs
            As for `schedule`.
        progress : bool, optional
            As for `join`.
        watch : callable, optional
            Called in this thread ten times a second, and more often while closures end; it must be
            quick. If it raises, closures that have not begun are withdrawn, and ``run_epoch``
            raises the same at once: `join` waits for those that run. In mode `Sync` the whole
            round runs.

        Returns
        -------
        Progress
            The epoch's state at its end.

        Raises
        ------
        Exception
            As for `join`. Examples that failed closures had taken are free again: ``run_epoch``
            with the same iterator goes on.
        ConfigurationError
            If every example of the epoch was used already.
        """
        if not isinstance(iterator, LeasedIterator):
            raise ConfigurationError(
                "run_epoch takes iter(coordinator.create_per_worker_dataset(..., "
                f"sharding='dynamic')), or of one in memory, found {shown(iterator)}"
            )
        iterator.require_rest()
        schedule = _scheduling(self, fn, (iterator, *positional(args)), keyword(kwargs))
        # After an error, a call goes on with the epoch, and with its metrics.
        earlier = None if iterator.may_be_over else MetricStates({})
        iterator.may_be_over = True
        clock, view = TrainingClock(), self._view
        with view.training(clock), self._core.progress(progress, iterator.share):
            view.begin_epoch(clock, None, iterator.count, earlier)
            ended = self._core.run_epoch(iterator, schedule, bool if watch is None else watch)
            deque(ended, maxlen=0)
            self._core.queue.join(None, self._core.poll)
        iterator.may_be_over = False
        return iterator.progress()

    @uninterrupted  # except while it waits; it is closed then, too
    def close(self) -> None:
        """Cancel what is queued or in flight, end all connections, free the workers; idempotent.

        A closure that runs on a worker at this moment runs to its end, and its result is dropped.
        The strategy and its parameters stay; `ClusterCoordinator` makes a new coordinator for them.
        """
        if not self._core.closed:
            try:
                self._core.close()
            finally:
                core_of(self.strategy).forget_coordinator(self)
                self._live.stop()


def closures_of_epoch(
    coordinator: ClusterCoordinator,
    fn: Callable[..., Any],
    iterator: LeasedIterator,
    wanted: Callable[[int], bool],
) -> Iterator[RemoteValue]:
    """Do what `ClusterCoordinator.run_epoch` does, and yield closures as they end; for psnb only.

    Those that found no data, and those that failed, come as well. ``wanted`` takes how many were
    scheduled and have not come yet, and tells whether one more is wanted.
    """
    schedule = _scheduling(coordinator, fn, (iterator,), {})
    return coordinator._core.run_epoch(iterator, schedule, wanted=wanted)


def epoch_services(coordinator: ClusterCoordinator) -> EpochServices:
    """Return what `run_in_order` needs of a coordinator."""
    return coordinator._core.epoch_services()


def _scheduling(
    coordinator: ClusterCoordinator,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Callable[[WorkerPredicate, int | None], RemoteValue]:
    """Return what schedules a function on the workers that are chosen, to take from a lane."""
    if not callable(fn):
        raise ConfigurationError(f"fn must be callable, found {shown(fn)}")

    def schedule(chooser: WorkerPredicate, lane: int | None) -> RemoteValue:
        how = ScheduleOptions(worker=chooser, lane=lane)
        return coordinator._core.schedule(fn, args, kwargs, how)

    return schedule


def filling(coordinator: ClusterCoordinator) -> AbstractContextManager[None]:
    """Return a context in which closures are put that fill a round: see `ClosureQueue.filling`."""
    return coordinator._core.queue.filling()


def saved_run(coordinator: ClusterCoordinator, manager: SavingSettings) -> SavedRun:
    """Return what a checkpoint of a manager has beside parameters, as of now."""
    return coordinator._core.saved_run(manager)


def go_on_from(coordinator: ClusterCoordinator, closures: int) -> None:
    """Have a coordinator number its closures from here at least: runs before it had so many."""
    coordinator._core.go_on_from(closures)


def view_of(coordinator: ClusterCoordinator) -> CoordinatorView:
    """Return the view of a coordinator, which dashboards read."""
    return coordinator._view


def map_whole_splits(
    coordinator: ClusterCoordinator,
    function: Callable[..., Any],
    dataset: Epochs[Any],
    shown: bool | None,
) -> list[Any]:
    """Call ``function(datasets, number)`` for each split; see `datasets.map_splits`."""
    return coordinator._core.map_splits(function, dataset.whole_splits(), shown)


def progress_shown(
    coordinator: ClusterCoordinator, shown: bool | None, share: Callable[[], Share]
) -> AbstractContextManager[None]:
    """Return a context in which progress is shown: see `CoordinatorCore.progress`."""
    return coordinator._core.progress(shown, share)
