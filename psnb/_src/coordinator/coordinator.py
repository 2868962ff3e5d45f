"""ClusterCoordinator: the notebook's side of scheduling.

Its parts are those of `CoordinatorCore`, which it joins to a strategy and to panels. It starts no
thread of its own; its methods may be called from any thread but the event loop's, also while
another one is blocked in ``join``. One that is no longer referenced is ended by its finalizer.
"""

from __future__ import annotations

import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from psnb._src.cluster.resizing import add_worker, retire_worker
from psnb._src.coordinator.closures.call import keyword, positional
from psnb._src.coordinator.closures.options import DEFAULT_RETRIES, Pin, options
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.core import CoordinatorCore
from psnb._src.coordinator.datasets.epoch import run_epoch
from psnb._src.coordinator.datasets.leased import LeasedDataset, LeasedIterator
from psnb._src.coordinator.datasets.partitioned import PartitionedDataset, make_dataset_of
from psnb._src.coordinator.queue import ClosureQueue
from psnb._src.coordinator.rewinding import Mark, mark, rewind
from psnb._src.coordinator.scheduling.leases import Progress
from psnb._src.coordinator.settings import DEFAULT_QUEUE_SIZE, Settings
from psnb._src.coordinator.timeouts import DRAIN, HEARTBEAT, StartDelay, Timeouts
from psnb._src.coordinator.values import PerWorkerDataset, PerWorkerValues, fetched
from psnb._src.coordinator.workers.membership import Membership
from psnb._src.jupyter_compat import in_notebook
from psnb._src.metrics.metric import MetricStates
from psnb._src.monitor.events import Event
from psnb._src.monitor.failures import Failure
from psnb._src.monitor.html.tables import Events, Failures, Output, Phases
from psnb._src.monitor.links.panels import connect_panels
from psnb._src.monitor.statistics import Statistics
from psnb._src.monitor.training_clock import TrainingClock
from psnb._src.monitor.worker_output import OutputLine
from psnb._src.protocol.notebook_only import NotebookOnly
from psnb._src.server.schedules import LearningRate
from psnb._src.strategy.core import Fences
from psnb._src.strategy.draining import LastSave
from psnb._src.strategy.strategy import ParameterServerStrategy, coordinators_of, core_of
from psnb._src.utils.checks import check_instance, integer
from psnb._src.utils.foreign_names import FixedAttributes
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.labels import check_label
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.stages import Stages
from psnb._src.utils.text import Named, shown, unknown
from psnb.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ClusterCoordinator(NotebookOnly, FixedAttributes):
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
        `WorkerLostError`, and the coordinator goes on when a worker joins. None waits for ever,
        unless parameters are lost as well: then it fails with `ServerLostError` after
        ``heartbeat_timeout``.
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

    stays = (
        "a coordinator stays in the notebook: a closure returns what the notebook fetches, reports "
        "with psnb.report(...), and asks psnb.worker_context() where it runs"
    )

    strategy: ParameterServerStrategy
    settings: Settings

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
        check_instance("strategy", strategy, ParameterServerStrategy)
        settings = Settings(
            max_queue_size,
            Timeouts(worker_timeout, heartbeat_timeout, drain_timeout),
            StartDelay(start_delay, start_delay_max),
            check_label(name),
        )

        def make() -> tuple[ClusterCoordinator, Callable[[], Fences], LastSave]:
            made = object.__new__(cls)
            made._assemble(strategy, settings)
            # Not of the coordinator, or its core, which may be collected.
            resolver, queue = made._core.resolver, made._core.queue
            return made, lambda: resolver.fences(queue.closed_attempts()), made._core.save_last

        one = core_of(strategy).one_coordinator(make, coordinators_of(strategy))
        one.settings.require(settings)
        return one

    def _assemble(self, strategy: ParameterServerStrategy, settings: Settings) -> None:
        self.strategy, self.settings = strategy, settings
        label = settings.name or strategy.name
        self._core = CoordinatorCore(self, core_of(strategy), strategy.mode, settings, label)
        self._finalizer = weakref.finalize(self, _end, self._core.queue, self._core.membership)
        try:
            self._link = connect_panels(self._core, strategy.client)
        except BaseException:  # an interrupt: the caller never gets this coordinator
            self._finalizer()
            raise

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
        after the closure was queued; then its remote value is lost.

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
            ``heartbeat_timeout`` a warning, also in `events`, names a worker or index that is
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
        how = options(retries, priority, worker)
        return self._core.schedule(_function(fn), positional(args), keyword(kwargs), how)

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
        core = self._core
        with core.progress(progress), core.naming_what_runs():
            core.queue.join(timeout, core.saving.poll)

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
        core = self._core
        with core.naming_what_runs():
            await core.queue.join_async(timeout, core.saving.poll)

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
        self._core.saving.poll()
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
            eight for each worker, in mode `Sync` eight for each closure of a round. The last batch
            of each may be short. Of files, a split is several, or a piece of one. Of a Dask
            collection each partition, or with fewer splits as many neighbours as it takes: then
            `shuffle` mixes the rows of all that are in a split.

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
        self._core.queue.check_open()
        # In rounds: what an epoch comes to must not depend on how many workers there are.
        count = self._core.leases.round_size or self.strategy.num_workers
        return make_dataset_of(self._core, dataset_or_fn, sharding, splits, count)

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
        given = _function(fn), positional(args), keyword(kwargs)
        self._core.queue.check_open()
        return PerWorkerValues(self._core.resources, *given)

    def use_threads(self, count: int | None) -> None:
        """Have each worker run ``count`` closures at the same time, from now on.

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
        self._core.queue.check_open()
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

        Workers call ``fn(iterator, *args, **kwargs)`` again and again until all splits are done.
        Each call is a closure: its writes are applied once, wholly or not at all. Workers are asked
        for many calls at once, and report them together, about five times a second (less often if
        there are hundreds of them); what calls return is dropped. A call that finds no data left
        ends without an error. Examples taken on a worker that died are used by other calls; if
        those that took them had their effect before, the examples count as used. Closures that are
        scheduled meanwhile go first, and `pause` and saves wait for one call of each worker.

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
        DatasetError
            If all its files are empty.
        """
        if not isinstance(iterator, LeasedIterator):
            raise ConfigurationError(
                "run_epoch takes iter(coordinator.create_per_worker_dataset(..., "
                f"sharding='dynamic')), or of one in memory, found {shown(iterator)}"
            )
        given = _function(fn), iterator, positional(args), keyword(kwargs)
        iterator.require_rest()
        # After an error, a call goes on with the epoch, and with its metrics.
        earlier = None if iterator.may_be_over else MetricStates({})
        iterator.may_be_over = True
        clock, core = TrainingClock(), self._core
        with core.training(clock), core.progress(progress, iterator.share):
            core.begin_epoch(clock, None, iterator.count, earlier)
            deque(run_epoch(core, *given, watch=watch), maxlen=0)
            core.queue.join(None, core.saving.poll)
            core.unmoved_rows.look()
        iterator.may_be_over = False
        iterator.check_any()
        return iterator.progress()

    @uninterrupted  # except while it waits; it is closed then, too
    def close(self) -> None:
        """Cancel what is queued or in flight, end all connections, free the workers; idempotent.

        A closure that runs on a worker at this moment runs to its end, and its result is dropped.
        The strategy and its parameters stay; `ClusterCoordinator` makes a new coordinator for them.
        """
        if not self._finalizer.alive:
            return
        with ExitStack() as opened:  # each is done, whatever another one raises
            opened.callback(self._core.live.stop)
            kept = coordinators_of(self.strategy)
            opened.callback(core_of(self.strategy).forget_coordinator, self, kept)
            if self._link is not None:
                opened.callback(self._link.stop)
            self._core.note_end()
            self._finalizer()
            self._core.queue.inbox.post(self._core.resolver.end)

    def __repr__(self) -> str:
        return repr(self._core)

    def dashboard(self) -> Any:
        """Show the live dashboard below this cell; the coordinator as a cell's last line does too.

        It is updated, and its buttons work, also while another cell blocks in `join`. When the
        coordinator is closed, its final state is shown. Outside of notebooks this prints a line.

        Returns
        -------
        ipywidgets.DOMWidget or None
            The dashboard, to be placed elsewhere too, as in an ``ipywidgets.VBox``; it does not
            appear a second time if it is the cell's last expression. None if nothing is live. In a
            notebook of marimo, which shows what a cell ends with, its ``mo.ui.anywidget``.
        """
        return self._core.live.show(self._core)

    @property
    def widgets(self) -> Any:
        """The coordinator's controls and figures as single widgets, for a page of one's own.

        They are ipywidgets, to arrange with ``VBox``, ``interact`` and ``link``, and work while a
        cell blocks, as the `dashboard`'s buttons do. Asking again returns the same ones. In a
        notebook, and outside of one for their traits.

        Returns
        -------
        traitlets.HasTraits
            With these widgets:

            - ``pause``, ``resume``, ``drain``, ``cancel_queued``, ``stop_training``,
              ``checkpoint``, ``rewind``, ``add_worker``: a ``Button`` each, disabled while it can
              do nothing; ``buttons`` has them by name. Unlike the dashboard's, they ask nothing
              back.
            - ``rates``: a ``FloatLogSlider`` of the learning rate by parameter; ``sliders``: a
              ``VBox`` of all, also of those that come.
            - ``progress``: a bar for ``share``; ``message``: a ``Label`` for ``outcome``.

            And with these traits, which change up to four times a second: ``state``, ``elapsed``,
            ``eta``, ``queued``, ``in_flight``, ``completed``, ``failed``, ``cancelled``,
            ``retried``, ``workers_lost``, ``servers_lost``, ``closures_per_second``, ``examples``,
            ``examples_per_second`` as in `Statistics`; ``epoch``, ``epochs``, ``batch``,
            ``batches``, ``validating`` as in `TrainingProgress`; ``share`` (of all epochs, or
            without training of what was scheduled, 0 to 1), ``metrics`` (the latest value by name),
            ``learning_rates`` (by parameter), and ``outcome``: what the latest click has come to.
            What observes them runs on a thread of psnb, so it must not wait for long.

        Raises
        ------
        ConfigurationError
            If ipywidgets cannot be imported.

        Examples
        --------
        >>> import psnb
        >>> with psnb.local_cluster(1, 1, processes=False) as client:
        ...     with psnb.ParameterServerStrategy(client) as strategy:
        ...         table = strategy.embedding("users", 4, optimizer=psnb.SGD(0.5))
        ...         widgets = psnb.ClusterCoordinator(strategy).widgets
        ...         widgets.pause.description, widgets.rates["users"].value, widgets.state
        ('Pause', 0.5, 'idle')
        """
        self._core.strategy.watch.ask_for_optimizers()
        return self._core.live.widgets(self._core)

    def _display_(self) -> Any:
        return self.dashboard()  # marimo calls this for a cell's last expression

    def _ipython_display_(self) -> None:
        if not in_notebook():
            raise NotImplementedError  # IPython takes the repr then.
        self.dashboard()

    @property
    def name(self) -> str:
        """What views call it."""
        return self._core.name

    def statistics(self) -> Statistics:
        """Return a frozen snapshot of queue, workers, servers and metrics; cheap, any thread."""
        return self._core.statistics()

    def events(self, since: float = 0.0) -> tuple[Event, ...]:
        """Return what happened to workers, servers and closures, the oldest first; cheap.

        Any thread may call.

        The last ten thousand events are kept. Each is also logged through `logging` under
        ``psnb``: losses as warnings, the rest as information.

        Parameters
        ----------
        since : float
            Only later events are returned; seconds since the epoch.
        """
        return Events(self._core.events(since))

    def failures(self) -> tuple[Failure, ...]:
        """Return the closures that raised, and what they raised, the oldest first; any thread.

        The last two hundred are kept, whether `join` has raised them or not. Closures that failed
        only because one of their inputs failed are left out.
        """
        return Failures(self._core.records.failures.since(0))

    def output(self, worker: str | int) -> tuple[OutputLine, ...]:
        """Return what closures have printed, warned of and logged on a worker; any thread.

        The last 1,000 lines of each worker are kept, 1 MiB at most, and 32 MiB of all workers: also
        when the worker has left or was lost, and until the coordinator is forgotten. What a closure
        has written is here when `join` returns. Beyond 1,000 lines in one burst, and 100 a second
        from then on, a process leaves lines out; a line says how many.

        Kept is what goes to ``sys.stdout`` and ``sys.stderr`` in the thread of a closure: of
        `logging`, what its handlers write there, warnings and errors without any. With
        ``processes=False`` in a notebook, closures print into the notebook itself, and nothing is
        kept.

        Parameters
        ----------
        worker : str or int
            Its name, its address, or its index; by an index, the lines are of all workers that have
            had it.

        Returns
        -------
        tuple of OutputLine
            The oldest first, each with its time, worker, closure and text. Printed, or as the last
            line of a cell, they are lines.

        Raises
        ------
        ConfigurationError
            If there was no such worker; names those that there are.

        Examples
        --------
        >>> def step(number):
        ...     print("number", number)
        >>> remote = coordinator.schedule(step, (3,), worker=0)
        >>> coordinator.join()
        >>> coordinator.output(0)[-1].text
        'number 3'
        """
        workers = self._core.statistics().workers
        known = [(each.name, each.index) for each in workers]
        worker = next((each.name for each in workers if each.address == worker), worker)
        return Output(*self._core.records.output.of(worker, known))

    @property
    def metrics(self) -> MetricStates:
        """What closures reported as states of metrics, merged over all that have returned.

        A frozen mapping from names to `psnb.metrics.MetricState`, as of now, since the coordinator
        was made; any thread may ask. A closure counts exactly once, when it has returned and had
        its effect, also if it ran twice; one that raised does not count. After `join` all are in.

        It is also a mark: ``coordinator.metrics.since(mark)`` has exactly what was merged since
        then, whatever other readers do. So each epoch, or each period of a line, has its own::

            mark = coordinator.metrics
            coordinator.run_epoch(step, iterator)
            print(coordinator.metrics.since(mark)["auc"].result())
        """
        return self._core.records.merged.states()

    def phases(self) -> Phases:
        """Return what the time of the closures that have ended went to, by worker; any thread.

        A row is the name of a worker and its `PhaseStatistics`; ``total`` is their sum. Printed, or
        as the last line of a cell, it is a table.
        """
        return Phases.of(self.statistics())

    def stages(self) -> Stages:
        """Return what each part of the datasets has given to closures, and what it took.

        Any thread may call. Of all workers together, as of the last second; see
        `psnb.data.DatasetIterator.stages`. What ``statistics().starved`` says is made of this and
        of `phases`.
        """
        return self.statistics().stages

    def history(self) -> dict[str, dict[str, np.ndarray]]:
        """Return everything that closures reported with `psnb.report`, by metric.

        Returns
        -------
        dict of str to dict
            Of each metric ``step`` (int64: how many values had been reported of the metric that is
            reported most often, so that all metrics share an axis), ``time`` (float64, seconds
            since the epoch), ``value``, ``smoothed`` and ``examples`` (float64; how many had been
            reported), each of shape ``(points,)``. A series is thinned out evenly when it gets
            longer than ten thousand points, so it always spans the whole run.
        """
        history = self._core.records.history_until_now()
        return Named({name: history.series(name) for name in history.metrics()}, "metric")

    def plot(self, metrics: str | Sequence[str] | None = None, *, log: bool = False) -> Figure:
        """Draw what closures reported, for papers; for a live view use `dashboard`.

        Parameters
        ----------
        metrics : str or sequence of str, optional
            Which metrics; all by default.
        log : bool
            Whether the axis of the values is logarithmic.

        Returns
        -------
        matplotlib.figure.Figure
            One chart for each metric, all over the same steps: raw values pale, smoothed ones
            strong, a thin line where an epoch begins, and a dashed one where parameters went back:
            what was abandoned is paler. Outliers do not set the scale: a triangle at the edge
            stands for each. Not registered with pyplot; ``savefig`` writes it, and as the last line
            of a cell it is shown.

        Raises
        ------
        ConfigurationError
            If one of the metrics was never reported, or no metric was.
        """
        from psnb._src.monitor.charts.plot import plot

        history = self._core.records.history
        return plot(self.history(), metrics, history.epochs(), history.rewinds(), log=log)

    @property
    def paused(self) -> bool:
        """Whether no new closures are begun, after `pause` or `drain`."""
        return self._core.queue.statistics().paused

    def pause(self) -> None:
        """Begin no more closures until `resume`; idempotent, returns at once.

        A closure that runs on a worker goes on to its end; one that has not begun there comes back
        to the queue. Closures can be scheduled meanwhile. `join` and `fetch` wait for paused
        closures, too.

        Raises
        ------
        CoordinatorClosedError
            If the coordinator is closed.
        """
        self._core.queue.pause()

    def resume(self) -> None:
        """Go on after `pause` or `drain`; idempotent.

        Raises
        ------
        CoordinatorClosedError
            If the coordinator is closed.
        """
        self._core.queue.resume()

    def cancel_queued(self) -> int:
        """Cancel all closures that wait in the queue; those that were sent to workers go on.

        Short closures are sent to workers ahead of time; `pause` has workers return those that they
        have not begun. `fetch` of a cancelled closure raises `ClosureCancelledError`; for `join` it
        has ended, without an error. A closure that was lost with its worker counts as running until
        it is known whether it has had its effect.

        Returns
        -------
        int
            How many were cancelled.

        Raises
        ------
        CoordinatorClosedError
            If the coordinator is closed.
        """
        return self._core.queue.cancel_queued()

    def drain(self, timeout: float | None = None) -> None:
        """Pause, and wait until no closure runs: the parameters do not change until `resume`.

        For a consistent checkpoint, for example. Errors of closures are left for `join`.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; None waits for as long as it takes.

        Raises
        ------
        TimeoutError
            If it takes longer; the coordinator stays paused.
        ServerUnresponsiveError
            If no closure runs, but a server that does not respond must say whether closures had
            their effect; the coordinator stays paused.
        CoordinatorClosedError
            If the coordinator is closed.
        """
        self.pause()
        with self._core.naming_what_runs():
            self._core.queue.wait_until_nothing_runs(timeout)

    def checkpoint(self) -> AnyPath:
        """Save all parameters with the `CheckpointManager` that was made last; see its ``save``.

        Returns
        -------
        pathlib.Path or RemotePath
            The new checkpoint.

        Raises
        ------
        CheckpointError
            If no manager was made for this coordinator, or as for `CheckpointManager.save`.
        ServerLostError
            If a server is gone.
        """
        return self._core.saving.save()

    def mark(self, metadata: Mapping[str, Any] | None = None, timeout: float | None = None) -> Mark:
        """Mark all parameters as they are, to go back there with `rewind`; costs no file.

        As for a checkpoint, running closures have their effect first, and others are held for a
        moment. The servers keep what changes from then on as it was, in their memory: at most as
        much as the parameters take. If there is no memory left for that, the mark is lost rather
        than an update. So is the part of a server that is lost, unless its replica was complete at
        that moment, and of one whose shards move.

        Parameters
        ----------
        metadata : mapping, optional
            Kept with it: ``{"epoch": iterator.state()}``, for example. A `Trainer` that trains
            keeps its own place.
        timeout : float, optional
            Seconds to wait at most for the closures that run.

        Returns
        -------
        Mark
            Ends with ``mark.drop()``, or when nothing refers to it. There are eight at most.

        Raises
        ------
        ConfigurationError
            If there are eight.
        ServerMemoryError, ServerLostError
            If a server has no memory, or is gone.
        TimeoutError
            If closures run for longer; there is no mark.

        Examples
        --------
        >>> mark = coordinator.mark()
        >>> weights.optimizer.learning_rate = 0.5  # and train: is that better?
        >>> coordinator.rewind(mark)
        {}
        """
        return mark(self._core, metadata, timeout)

    def rewind(
        self,
        to: Mark | str | os.PathLike[str] | None = None,
        timeout: float | None = None,
    ) -> Mapping[str, Any] | None:
        """Have all parameters go back to a mark or a checkpoint; what is queued goes on from there.

        Values, optimizers' state, steps and hyperparameters are as they were; rows that came since
        are gone, and rows that have left are back. Parameters that were made since a mark stay as
        they are. A `Trainer` that trains goes back to the batch where it was, if the mark was made
        while it trained, or the checkpoint is of a trainer with the same dataset; else it goes on
        where it is.

        Closures that run have their effect first, which is taken back with all others since then;
        those that are queued run afterwards, each once. An effect that was taken back never comes
        again. Epochs of `run_epoch`, and Keras's ``fit``, go on where they are.

        Parameters
        ----------
        to : Mark, str or os.PathLike, optional
            Where to; by default the newest mark or checkpoint. Any mark may be gone back to, in
            any order, any number of times.
        timeout : float, optional
            Seconds to wait at most for the closures that run.

        Returns
        -------
        mapping or None
            The metadata of the mark, or the `Restored` of the checkpoint. In a callback of a
            trainer None: it is done when the callback has returned.

        Raises
        ------
        StaleMarkError
            If a server does not have the mark any more; nothing was changed.
        CheckpointError
            If there is no checkpoint, or it is damaged or does not fit; nothing was changed.
        ServerMemoryError
            If a server has no memory for it; nothing was changed.
        ServerLostError
            If a server is lost meanwhile that has no replica. All parameters are lost then, rather
            than some of them rewound: ``strategy.recover(checkpoint)`` brings them back.
        TimeoutError
            If closures run for longer; nothing was changed.
        """
        return rewind(self._core, to, timeout)

    def set_learning_rate(self, parameter: str, value: LearningRate) -> None:
        """Set the learning rate of a parameter's optimizer, from the next update on.

        The same as ``strategy.parameters[parameter].optimizer.learning_rate = value``.

        Raises
        ------
        ConfigurationError
            If there is no such parameter, if it has no optimizer, or if the value is out of range.
        ServerLostError
            If a server is gone; the others may have it already.
        """
        made = core_of(self.strategy).tables.all()
        found = made.get(parameter)
        optimizer = None if found is None else found.optimizer
        if optimizer is None:
            raise ConfigurationError(
                unknown("parameter", parameter, [n for n, each in made.items() if each.optimizer])
                + " Only those that have an optimizer learn" * (found is not None)
            )
        optimizer.learning_rate = value

    def add_worker(self) -> None:
        """Have the cluster start one more worker; returns at once. The worker joins when ready.

        Raises
        ------
        ClusterError
            If this notebook has not started the cluster, or the cluster scales itself.
        """
        add_worker(self.strategy.client)

    def retire_worker(self, worker: str) -> None:
        """Have a worker finish the closures that it has, and leave the cluster.

        Parameters
        ----------
        worker : str
            Its name or its address.

        Raises
        ------
        ConfigurationError
            If there is no such worker, or it is not ready.
        ClusterError
            If it did not leave in a minute.
        """
        ready = [each for each in self._core.membership.statistics() if each.state == "ready"]
        for each in ready:
            if worker in (str(each.name), each.address):
                retire_worker(self.strategy.client, each.address)
                return
        raise ConfigurationError(unknown("ready worker", worker, [each.name for each in ready]))


@uninterrupted  # except while it waits; also when the coordinator is collected
def _end(queue: ClosureQueue, membership: Membership) -> None:
    queue.close()
    membership.close()


def _function(fn: Any) -> Callable[..., Any]:
    if not callable(fn):
        raise ConfigurationError(f"fn must be callable, found {shown(fn)}")
    return fn


def coordinator_core(coordinator: ClusterCoordinator) -> CoordinatorCore:
    """Return the parts of a coordinator; for psnb only."""
    return coordinator._core
