"""ReadAhead: reads the next element of a split while a closure computes with the one before.

Whose that element will be is not known while it is read. So the functions of the dataset can ask
psnb for nothing then: their writes would belong to no closure, and what they look up would miss the
last step's writes (`NoClosureYet`). To let them wait for that closure instead would be a deadlock
if one holds a lock that the closure wants.

Whatever is raised here, or takes too long, raises nothing in the closure: it reads the element
again itself, and nothing is read ahead any more. So errors are the same as without this, and what
works only in the closure's thread does work: a database connection that a function keeps, a lock
that the closure holds around its ``next``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from psnb._src.data.iterator import DatasetIterator
from psnb._src.data.nodes.parallel import Workers
from psnb._src.protocol.messages import Lease
from psnb._src.utils.ahead import before_closure
from psnb._src.utils.threads import Answer
from psnb._src.worker.context import Cancellation, WorkerContext, entered
from psnb._src.worker.printing import end_printed_lines

logger = logging.getLogger("psnb")

T = TypeVar("T")

PATIENCE, _TIMES = 10.0, 4.0
"""Seconds after which a closure does not wait for the thread any more, at least, and how many times
as long as for the slowest element so far: what is only slow is not read by two at a time."""


class ReadAhead:
    """A thread, ``psnb-ahead``, that reads splits, one element ahead of the closures.

    It ends when this and the iterators that it made are gone. One thread at a time.

    Parameters
    ----------
    context : WorkerContext
        That of the closure which begins: what is printed says which worker prints it.

    Attributes
    ----------
    slowest : float
        Seconds that the slowest element so far has taken; set by what takes them.
    submit : callable
        Has the thread call a function, and returns an `Answer`.
    """

    def __init__(self, context: WorkerContext) -> None:
        # Without what is that closure's own, which would be kept.
        context = replace(context, cancellation=Cancellation(), lease_requests=None, states=None)
        # With what threads of closures have in context variables: Dask's worker, and where stages
        # are counted.
        call: Callable[..., Any] = partial(_call, context)
        self.submit = partial(Workers(1, "ahead").submit, copy_context().run, call)
        self.slowest = 0.0

    def iterate(self, make: Callable[[Any], DatasetIterator], lease: Lease) -> AheadIterator:
        """Return an iterator that is made, and read, in the thread.

        Parameters
        ----------
        make : callable
            Returns what to read, from a state on.
        lease : Lease
            Says from which, and how many elements are taken at most: none is read behind them.
        """
        return AheadIterator(self, partial(make, lease.state), lease.count)

    def wait(self) -> None:
        """Wait until nothing is being read, but no longer than for an element.

        So no function of the dataset is called by two threads where there is one closure.
        """
        with suppress(TimeoutError):
            self.submit(bool).result(self.patience)

    @property
    def patience(self) -> float:
        """For how many seconds an element is waited for."""
        return max(PATIENCE, _TIMES * self.slowest)


class NotReadError(Exception):
    """An element was not read ahead: the closure reads it, and all others, itself."""


class _Read(NamedTuple):
    element: Any
    seconds: float
    latest: str
    state: Any  # the iterator's, after it


class AheadIterator:
    """An iterator with a state; see `ReadAhead.iterate`.

    Attributes
    ----------
    seconds : float
        What it took to read the element that was taken last.
    partitions : callable
        Returns what partitions are read.
    close : callable
        Ends what the iterator has opened, after what is being read; does not wait.
    """

    def __init__(
        self, ahead: ReadAhead, make: Callable[[], DatasetIterator], count: int | None
    ) -> None:
        self._ahead, self._left, self._patience = ahead, count, ahead.patience
        self._iterator, self._state = ahead.submit(_make, make).result(self._patience)
        self.partitions = self._iterator.partitions
        self.close = partial(ahead.submit, self._iterator.close)
        self._latest, self.seconds = "", 0.0
        self._reading: Answer[_Read] | None = None

    def __next__(self) -> Any:
        """Return the next element; raises `NotReadError` once, and is to be used no more then."""
        reading, self._reading = self._reading or self._read(), None
        try:
            element, self.seconds, self._latest, self._state = reading.result(self._patience)
        except StopIteration:
            raise
        except BaseException as error:  # the closure meets it, too, if it is not of the thread
            if isinstance(error, TimeoutError):
                logger.warning(
                    "an element of a dataset took so long that it is read again, and that none is "
                    "read ahead any more in this epoch"
                )
            self.close()
            raise NotReadError from error
        finally:
            del reading  # an error refers to this frame, and would keep itself alive
        if self._left is not None:
            self._left -= 1
        if self._left != 0:
            self._reading = self._read()
        return element

    def _read(self) -> Answer[_Read]:
        answer: Answer[_Read] = self._ahead.submit(_read, self._iterator)
        return answer

    def state(self) -> Any:
        """Return where it is: behind the element that was taken last."""
        return self._state

    def latest(self) -> str:
        """Return which element was taken last, for messages."""
        return self._latest


def _call(context: WorkerContext, function: Callable[..., T], *args: Any) -> T:
    with entered(context):
        try:
            with before_closure():
                return function(*args)
        finally:
            end_printed_lines()


def _make(make: Callable[[], DatasetIterator]) -> tuple[DatasetIterator, Any]:
    iterator = make()
    return iterator, iterator.state()


def _read(iterator: DatasetIterator) -> _Read:
    begin = perf_counter()
    element = next(iterator)
    return _Read(element, perf_counter() - begin, iterator.latest(), iterator.state())
