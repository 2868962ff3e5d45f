"""ReadAhead: reads the next element of a split while a closure computes with the one before.

Whose that element will be is not known while it is read. So the functions of the dataset can ask
psnb for nothing then: their writes would belong to no closure, and what they look up would miss the
last step's writes. The first one that asks ends the reading ahead of its epoch, and is called again
by the closure that takes the element (`NoClosureYet`). To let it wait for that closure instead
would be one call less, and a deadlock if it holds a lock that the closure wants.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from psnb._src.data.nodes.parallel import Workers
from psnb._src.utils.ahead import before_closure
from psnb._src.utils.threads import Answer
from psnb._src.worker.context import Cancellation, WorkerContext, end_printed_lines, entered
from psnb._src.worker.leasing import Iterated


class _Read(NamedTuple):
    element: Any
    error: Exception | None
    latest: str
    state: Any  # the iterator's, after it; None at the end


class ReadAhead:
    """An iterator with a state, one element ahead of who takes from it.

    All of it is read in one thread, ``psnb-ahead``, which ends with it: so a generator that begins
    with a connection to a database, say, has it in one thread.

    Parameters
    ----------
    iterator : Iterated
        Where it reads; nobody else may use it from here on.
    count : int or None
        How many elements are taken at most: none is read behind them.
    context : WorkerContext
        That of the closure which begins: what is printed says which worker prints it.
    """

    def __init__(self, iterator: Iterated, count: int | None, context: WorkerContext) -> None:
        self._iterator, self._left = iterator, count
        # Without what is that closure's own, which would be kept.
        self._context = replace(
            context, cancellation=Cancellation(), lease_requests=None, states=None
        )
        self._state, self._latest = iterator.state(), ""
        self._thread = Workers(1, "ahead")
        self._reading: Answer[_Read] | None = None

    def __next__(self) -> Any:
        reading, self._reading = self._reading or self._read(), None
        try:
            read = reading.result()
            self._latest, self._state = read.latest, read.state
            if read.error is not None:
                raise read.error
            if self._left is not None:
                self._left -= 1
            if self._left != 0:
                self._reading = self._read()
            return read.element
        finally:
            del reading  # an error refers to this frame, and would keep itself alive

    def _read(self) -> Answer[_Read]:
        return self._thread.submit(_read, self._iterator, self._context)

    def state(self) -> Any:
        """Return where it is: behind the element that was taken last."""
        return self._state

    def latest(self) -> str:
        """Return which element was taken last, for messages."""
        return self._latest

    def close(self) -> None:
        """End the thread, and what the iterator has opened; does not wait for an element."""
        self._iterator.close()
        self._thread.close()


def _read(iterator: Iterated, context: WorkerContext) -> _Read:
    with entered(context), before_closure():
        try:
            element = next(iterator)
        except StopIteration as end:
            return _Read(None, end, "", None)
        except Exception as error:  # a dataset may raise anything
            return _Read(None, error, "", iterator.state())
        finally:
            end_printed_lines()
        return _Read(element, None, iterator.latest(), iterator.state())
