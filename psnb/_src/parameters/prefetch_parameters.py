"""`prefetch`: fetches the parameters for the next batches while this one is processed.

Threads: one, named ``psnb-prefetch``, for as long as a loop over `prefetch` lasts. It only asks the
servers and waits. The thread that runs the loop takes the batches and calls ``wanted``, so a
dataset is never used by two threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from psnb._src.checks import integer
from psnb._src.parameters.handles import Handle
from psnb._src.parameters.together import asking
from psnb._src.phases import PULL, counted_as
from psnb._src.threads import Answer, uninterrupted

Batch = TypeVar("Batch")
Found = dict[Handle, np.ndarray]


def prefetch(
    batches: Iterable[Batch], wanted: Callable[[Batch], Mapping[Handle, Any]], depth: int = 1
) -> Iterator[tuple[Batch, Found]]:
    """Yield each batch with what `pull` returns for it, which is fetched ahead.

    In the notebook, in closures and in Dask tasks::

        for batch, found in psnb.prefetch(batches, lambda batch: {table: batch.ids}):
            gradients = compute(found[table], batch)
            psnb.push({table: (batch.ids, gradients)}, immediate=True)

    The request for a batch is sent when the batch that comes ``depth`` batches earlier is handed
    out. It sees all writes that this thread had made by then, as with `pull` (in a closure also
    those held back until its end). This thread's writes for the ``depth`` batches in between: those
    that are held back are not seen; the others (``immediate=True``, or outside of closures) may or
    may not be seen, like those of other workers. So with the default, a worker may miss the last
    one of its own steps; with ``depth=0``, which fetches when a batch is due, it misses none.

    Parameters
    ----------
    batches : iterable
        Anything; taken in the calling thread, up to ``depth`` batches early.
    wanted : callable
        Takes a batch, returns the argument of `pull` for it.
    depth : int
        How many batches ahead, 0 or more.

    Yields
    ------
    tuple
        A batch, and the result of `pull` for it.

    Raises
    ------
    ConfigurationError
        If ``depth`` is not such a number.

    Errors of ``batches``, of ``wanted`` and of the servers are raised when their batch is due,
    after all batches before it. Leaving the loop, also by an error, waits for open requests and
    ends the thread; if the iterator outlives the loop, its ``close`` does so. One thread uses an
    iterator; there may be any number of iterators.
    """
    return _fetched(iter(batches), wanted, integer("psnb.prefetch: depth", depth, 0))


def _fetched(
    batches: Iterator[Batch], wanted: Callable[[Batch], Mapping[Handle, Any]], depth: int
) -> Iterator[tuple[Batch, Found]]:
    pool = ThreadPoolExecutor(1, "psnb-prefetch")
    asked: deque[tuple[Batch | None, Answer[Found]]] = deque()
    ended = False
    try:
        while True:
            while len(asked) <= depth and not ended:
                try:
                    batch = next(batches)
                except StopIteration:
                    ended = True
                except Exception as error:
                    ended = True
                    failed: Answer[Found] = Answer()
                    failed.set_exception(error)
                    asked.append((None, failed))
                else:
                    asked.append((batch, _asked(pool, wanted, batch)))
            if not asked:
                return
            due, found = asked.popleft()
            yield due, _waited_for(found)  # type: ignore[misc]  # no batch, no result
            del due, found  # keep no reference to what the caller has dropped
    finally:
        pool.shutdown(cancel_futures=True)


@counted_as(PULL)
def _waited_for(found: Answer[Found]) -> Found:
    return found.result()


@counted_as(PULL)
def _asked(
    pool: ThreadPoolExecutor, wanted: Callable[[Batch], Mapping[Handle, Any]], batch: Batch
) -> Answer[Found]:
    found: Answer[Found] = Answer()
    try:
        ask = asking(wanted(batch))
    except Exception as error:
        found.set_exception(error)
    else:
        with uninterrupted:
            pool.submit(found.give, ask)
    return found
