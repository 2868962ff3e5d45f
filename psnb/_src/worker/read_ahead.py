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

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from psnb._src.data.nodes.parallel import Workers
from psnb._src.utils.ahead import before_closure
from psnb._src.utils.threads import Answer
from psnb._src.worker.context import Cancellation, WorkerContext, entered
from psnb._src.worker.lease_requests import Iterated
from psnb._src.worker.printing import end_printed_lines

T = TypeVar("T")

PATIENCE, _TIMES = 10.0, 4.0
"""Seconds after which a closure does not wait for the thread any more, at least, and how many times
as long as for the slowest element so far: what is only slow is not read by two at a time."""


class ReadAhead:
    """A thread, ``psnb-ahead``, that reads splits, one element ahead of who takes them.

    It ends when this and the iterators that it made are gone. One thread at a time.

    Parameters
    ----------
    context : WorkerContext
        That of the closure which begins: what is printed says which worker prints it.

    Attributes
    ----------
    slowest : float
        Seconds that the slowest element so far has taken; set by who takes them.
    """

    def __init__(self, context: WorkerContext) -> None:
        # Without what is that closure's own, which would be kept.
        context = replace(context, cancellation=Cancellation(), lease_requests=None, states=None)
        # With what threads of closures have in context variables: Dask's worker, and where stages
        # are counted.
        call: Callable[..., Any] = partial(_call, context)
        self._submit = partial(Workers(1, "ahead").submit, copy_context().run, call)
        self.slowest = 0.0

    def iterate(self, make: Callable[[], Iterated], count: int | None) -> AheadIterator:
        """Return an iterator that is made, and read, in the thread.

        Parameters
        ----------
        make : callable
            Returns what to read.
        count : int or None
            How many elements are taken at most: none is read behind them.
        """
        return AheadIterator(self._submit, make, count, max(PATIENCE, _TIMES * self.slowest))

    def wait(self) -> None:
        """Wait until nothing is being read; raises TimeoutError after `PATIENCE`."""
        self._submit(bool).result(max(PATIENCE, _TIMES * self.slowest))


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
    """

    def __init__(
        self,
        submit: Callable[..., Answer[Any]],
        make: Callable[[], Iterated],
        count: int | None,
        patience: float,
    ) -> None:
        self._submit, self._left, self._patience = submit, count, patience
        self._iterator, self._state = submit(_make, make).result(patience)
        self._latest, self.seconds = "", 0.0
        self._reading: Answer[_Read] | None = None

    def __next__(self) -> Any:
        reading = self._reading or self._read()
        self._reading = None
        try:
            element, self.seconds, self._latest, self._state = reading.result(self._patience)
        finally:
            del reading  # an error refers to this frame, and would keep itself alive
        if self._left is not None:
            self._left -= 1
        if self._left != 0:
            self._reading = self._read()
        return element

    def _read(self) -> Answer[_Read]:
        answer: Answer[_Read] = self._submit(_read, self._iterator)
        return answer

    def state(self) -> Any:
        """Return where it is: behind the element that was taken last."""
        return self._state

    def partitions(self) -> list[list[Any]]:
        """Return what partitions were read."""
        return self._iterator.partitions()

    def latest(self) -> str:
        """Return which element was taken last, for messages."""
        return self._latest

    def close(self) -> None:
        """End what the iterator has opened, after what is being read; does not wait."""
        self._submit(self._iterator.close)


def _call(context: WorkerContext, function: Callable[..., T], *args: Any) -> T:
    with entered(context):
        try:
            with before_closure():
                return function(*args)
        finally:
            end_printed_lines()


def _make(make: Callable[[], Iterated]) -> tuple[Iterated, Any]:
    iterator = make()
    return iterator, iterator.state()


def _read(iterator: Iterated) -> _Read:
    begin = perf_counter()
    element = next(iterator)
    return _Read(element, perf_counter() - begin, iterator.latest(), iterator.state())
