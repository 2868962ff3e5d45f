"""Per-worker values: made once on this worker, in the order of their definition, used by closures.

A value is made on one of the session's closure threads; closures that need it wait for it. Making
one may use others that were defined before it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NoReturn

import psutil

from psnb._src.dask_compat.plugins import memory_limit
from psnb._src.data.dataset import Dataset
from psnb._src.data.iterator import DatasetIterator
from psnb._src.data.memory.memory import Memory
from psnb._src.data.memory.shuffle_plan import ShufflePlan
from psnb._src.data.splits import ends_with_prefetch
from psnb._src.utils.foreign_names import SaysWhatToUse
from psnb._src.utils.ownership import owned
from psnb._src.utils.phases import READ, counted_as
from psnb._src.utils.text import error_text
from psnb._src.worker.context import InputContext, current_context, worker_context
from psnb._src.worker.lease_requests import LeaseRequests
from psnb._src.worker.leasing import LeasedSplitReader
from psnb._src.worker.mail import Sender
from psnb._src.worker.read_ahead import ReadAhead
from psnb.errors import ClosureInputError, ConfigurationError


class SharedIterator(SaysWhatToUse):
    """An iterator that the closure threads of a worker may share: one ``next`` at a time.

    If a closure finds it at its end, and raises the StopIteration before it has written anything,
    the closure ends without an error.
    """

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator, self._taken = iterator, 0
        self._lock = threading.Lock()  # one thread at a time in the iterator: generators need it

    def __repr__(self) -> str:
        return f"<iterator {type(self._iterator).__name__}>"

    def __iter__(self) -> SharedIterator:
        return self

    @counted_as(READ)
    def __next__(self) -> Any:
        mine = _lease_requests()
        try:
            with self._lock:
                element = next(self._iterator)
                if isinstance(self._iterator, DatasetIterator):
                    latest = self._iterator.latest()
                else:
                    element = owned(element)  # it may be filled anew for another thread
                    latest = f"element {self._taken}"
                self._taken += 1
        except StopIteration:
            if mine is not None:
                mine.ended = True
                mine.taken.end(self)
            raise
        if mine is not None:
            mine.latest = f"{latest} of this worker's dataset"
            mine.taken.add(self, element)
        return element


_NO_ELEMENTS = (
    "a per-worker dataset has no elements inside a closure: each closure would begin a new "
    "iterator, and get the first element again. Make the iterator in the notebook, once, and pass "
    "that: iterator = iter(dataset), coordinator.schedule(step, (iterator,)). To go through all of "
    "it in one closure, make it with coordinator.create_per_worker_resource instead, which gives "
    "closures what the function returns"
)


class WorkerDataset:
    """The dataset of this worker, as closures get it.

    It has no ``iter``: each closure would begin a new one, and find the first element again. As in
    TensorFlow, where that is refused in functions, too.

    Parameters
    ----------
    dataset : iterable
        What there is; psnb itself finds it as ``whole``.
    """

    def __init__(self, dataset: Any) -> None:
        self.whole = dataset

    def __repr__(self) -> str:
        return f"<{type(self.whole).__name__} of this worker>"

    def __iter__(self) -> NoReturn:
        raise ConfigurationError(_NO_ELEMENTS)

    __next__ = __iter__

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"there is no {name!r} here: {_NO_ELEMENTS}")


def make_dataset(dataset: Any) -> WorkerDataset:
    """Return the dataset of this worker: an iterable as it is, or what a function returns.

    A function is called with an `InputContext` if it requires an argument, else with none.
    """
    return WorkerDataset(_made(dataset))


def _made(dataset: Any) -> Any:
    if not callable(dataset):
        return dataset
    try:
        parameters = inspect.signature(dataset).parameters.values()
    except ValueError:  # some builtins have no signature
        return dataset()
    required = [p for p in parameters if p.default is p.empty and p.kind <= p.KEYWORD_ONLY]
    if not any(p.kind <= p.POSITIONAL_OR_KEYWORD for p in required):
        return dataset()
    context = worker_context()
    return dataset(InputContext(context.num_workers, context.worker_index))


def read_spec(of_worker: WorkerDataset) -> Any:
    """Return the spec of the elements of this worker's dataset."""
    dataset = of_worker.whole
    if not isinstance(dataset, Dataset):
        raise ConfigurationError(
            f"the worker's dataset is a {type(dataset).__name__}, and only a psnb.data.Dataset "
            "knows the shapes and dtypes of its elements"
        )
    return dataset.element_spec


def make_iterator(dataset: WorkerDataset) -> SharedIterator:
    """Return a new iterator over the dataset of this worker."""
    return SharedIterator(iter(dataset.whole))


def make_leased_iterator(splits: Sequence[Dataset], epoch: int) -> LeasedSplitReader:
    """Return the worker's part in an epoch over leased splits."""
    # Not after the user's own `prefetch`: `prefetch(0)` says that nothing is read ahead.
    ahead = None if ends_with_prefetch(splits[0]) else _read_ahead
    return LeasedSplitReader(splits, epoch, lease_requests, ahead=ahead)


def _read_ahead() -> ReadAhead:
    return ReadAhead(worker_context())


def _lease_requests() -> LeaseRequests | None:
    """Return the `LeaseRequests` of the calling thread's closure; None outside of closures."""
    context = current_context()
    return None if context is None else context.lease_requests


def latest_element() -> str:
    """Return which element the calling thread's closure took last; empty if it took none."""
    mine = _lease_requests()
    return "" if mine is None else mine.latest


def lease_requests() -> LeaseRequests:
    """Return the `LeaseRequests` of the calling thread's closure."""
    found = _lease_requests()
    if found is None:
        raise ClosureInputError(
            "a dataset with sharding='dynamic' is read in closures only, not while another "
            "per-worker value is made"
        )
    return found


class Resources:
    """The values of one session by their numbers.

    Thread-safe: the event loop adds and discards, closure threads make and wait.
    """

    def __init__(self) -> None:
        # Plain dict operations are atomic; a value's own waiting is its Future's.
        self._values: dict[int, Future[Any]] = {}

    def define(self, resource_id: int) -> None:
        """Announce a value: closures that come later may wait for it."""
        self._values[resource_id] = Future()

    def make(self, resource_id: int, function: Callable[[], Any]) -> None:
        """Make an announced value; its users get what ``function`` raises."""
        future = self._values.get(resource_id)
        if future is None or not future.set_running_or_notify_cancel():
            return
        try:
            value = function()
        except BaseException as error:  # a boundary: the error is delivered to each user
            future.set_exception(error)
        else:
            future.set_result(value)

    def get(self, resource_id: int) -> Any:
        """Return a value, waiting until it is made.

        Raises
        ------
        ClosureInputError
            If making it failed, or it was released.
        """
        future = self._values.get(resource_id)
        if future is None:
            raise ClosureInputError(f"per-worker value {resource_id} was released")
        try:
            return future.result()
        except ClosureInputError as error:  # of a value that this one is made of; it says it all
            raise ClosureInputError(*error.args) from error
        except BaseException as error:  # whatever `make` has caught
            raise ClosureInputError(
                f"a per-worker value that the closure uses could not be made: {error_text(error)}"
            ) from error

    def number_of(self, value: object) -> int | None:
        """Return the number of a value that was made here; None of any other."""
        for number, future in list(self._values.items()):
            made = future.done() and not future.cancelled() and future.exception() is None
            if made and future.result() is value:
                return number
        return None

    def discard(self, resource_id: int) -> None:
        """Forget a value."""
        future = self._values.pop(resource_id, None)
        if future is not None:
            future.cancel()

    def clear(self) -> None:
        """Forget all values; callers that wait for one get an error."""
        for resource_id in list(self._values):
            self.discard(resource_id)


# A worker's part of a dataset in the memory of the workers: a `Memory` that is a per-worker value.


def make_worker_memory(
    sources: Sequence[Dataset], seed: int, batch_size: int, limit: int | None, name: str
) -> Memory:
    """Return the worker's part, with nothing in it yet.

    ``name`` is the same on all workers of the dataset, and different for every dataset.
    """
    context = worker_context()
    mail = context.mail
    if mail is None:
        raise ConfigurationError("a dataset in the memory of workers needs workers")
    worker = mail.worker
    granted = memory_limit(worker) or psutil.virtual_memory().total // context.num_workers
    arguments = sources, seed, batch_size, limit or granted // 2, worker.local_directory
    memory = Memory(*arguments, worker.address, partial(Sender, mail, name))
    mail.receivers[name] = memory
    return memory


def make_memory_iterator(
    memory: Memory, generation: int, layout: ShufflePlan, epoch: int
) -> LeasedSplitReader:
    """Return the worker's part in an epoch over the partitions."""
    splits = make_memory_splits(memory, generation, layout)

    def prepare(numbers: Sequence[int]) -> None:
        memory.ensure(generation, layout, numbers)

    return LeasedSplitReader(splits, epoch, lease_requests, prepare)


def make_memory_splits(memory: Memory, generation: int, layout: ShufflePlan) -> Sequence[Dataset]:
    """Return the partitions as datasets; one that is not here is made again where it is read."""
    return [memory.examples(generation, layout, (number,)) for number in range(layout.partitions)]
