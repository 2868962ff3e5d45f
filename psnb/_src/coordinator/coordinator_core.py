"""CoordinatorCore: psnb's side of a coordinator; users hold a `ClusterCoordinator`.

It makes four parts and joins them: the queue (what waits and runs), the membership (a connection
for each worker, on the Dask client's event loop), the registries of functions and per-worker
values, and the view that dashboards read (`CoordinatorView`). It starts no thread of its own; its
methods may be called from any thread but the event loop's.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from psnb._src.coordinator.closures import (
    Chooser,
    Closure,
    FunctionRegistry,
    RemoteValue,
    ScheduleOptions,
    pack_call,
)
from psnb._src.coordinator.coordinator_view import CoordinatorView
from psnb._src.coordinator.datasets import (
    DatasetServices,
    EpochServices,
    LeasedDataset,
    LeasedIterator,
    LeaseRegistry,
    PartitionedDataset,
    PerWorkerDataset,
    PerWorkerValues,
    ResourceRegistry,
    WholeSplits,
    fetch_per_worker,
    make_dataset_of,
    map_splits,
    run_epoch,
)
from psnb._src.coordinator.failed_call import pickled_call
from psnb._src.coordinator.queue import ClosureQueue, PinnedCalls, Resolver
from psnb._src.coordinator.saved_run import SavedRun, versions
from psnb._src.coordinator.saving import Saving
from psnb._src.coordinator.saving_settings import SavingSettings
from psnb._src.coordinator.settings import Settings
from psnb._src.coordinator.steps import Steps, gate_for
from psnb._src.coordinator.workers import Membership, Services
from psnb._src.labels import Labels
from psnb._src.modes import Geo, Sync
from psnb._src.monitor import LiveView, ProgressLine, Records, Share, tell_panels, wanted
from psnb._src.runtime import GivenFutures, unpack_error
from psnb._src.strategy import ParameterServerStrategy, core_of
from psnb._src.threads import uninterrupted
from psnb.errors import CoordinatorClosedError

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
        schedule: Callable[[Chooser, int | None], RemoteValue],
        watch: Callable[[], object] = bool,
        wanted: Callable[[int], bool] = lambda waiting: True,
    ) -> Iterator[RemoteValue]:
        """Schedule closures until an epoch is over; see `datasets.run_epoch`."""
        self.resources.require_own((iterator,), "the iterator")

        def look() -> None:
            self.poll()
            watch()

        place = EpochServices(
            self.queue.withdraw,
            self.queue.filling,
            lambda: self.membership.count,
            self.membership.wake,
            self.queue.settled,
        )
        return run_epoch(iterator, schedule, place, look, wanted)

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

        pinned = PinnedCalls(schedule, self._strategy.worker_names, self.queue)
        return DatasetServices(self.resources, self._leases, schedule, pinned, self.progress)


@uninterrupted  # except while it waits; also when the coordinator is collected
def _end(queue: ClosureQueue, membership: Membership) -> None:
    queue.close()
    membership.close()
