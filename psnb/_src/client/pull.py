"""`pull`, `push` and `prefetch`: several parameters in one request to each server.

Threads: any may pull and push. A loop over `prefetch` has one of its own, named ``psnb-prefetch``,
for as long as it lasts. That only asks the servers and waits. The thread that runs the loop takes
the batches and calls ``wanted``, so a dataset is never used by two threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.fused import RowsPushed, pushing_rows, reading_rows
from psnb._src.client.handles import Handle, shards_of
from psnb._src.client.server_client import ServerClient
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.updates import PendingRead, ShardWrite, fetch_together, weigh, write
from psnb._src.utils.checks import integer
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.ownership import owned
from psnb._src.utils.phases import PULL, PUSH, counted_as
from psnb._src.utils.text import shown
from psnb._src.utils.threads import Answer
from psnb.errors import ConfigurationError, InvalidArrayError


@counted_as(PULL)
def pull(wanted: Mapping[Handle, Any], *, training: bool = True) -> dict[Handle, np.ndarray]:
    """Read several variables and embeddings with one request to each server.

    Thread-safe; in the notebook, in closures and in Dask tasks. On one server, no other operation
    comes between the parts of one `pull`. In a closure, it sees the closure's own writes.

    Parameters
    ----------
    wanted : mapping
        For an embedding, the ids to look up; for a variable, rows to gather or None for all of it.
        The keys are the `Variable` and `Embedding` objects.
    training : bool
        False for evaluation and serving, as in `Embedding.lookup`.

    Returns
    -------
    dict
        The same keys, with what `Embedding.lookup`, `Variable.gather` or `Variable.read` return.

    Raises
    ------
    ConfigurationError
        If a key is not a variable or embedding.
    InvalidArrayError, IdOutOfRangeError, ServerLostError
        As in those methods; everything is checked before anything is sent.
    """
    return asking(wanted, training=training)()


def asking(
    wanted: Mapping[Handle, Any], *, training: bool = True
) -> Callable[[], dict[Handle, np.ndarray]]:
    """Return a function that does a `pull`, in any thread, and sees this thread's writes so far.

    Raises
    ------
    ConfigurationError, InvalidArrayError, IdOutOfRangeError
        As `pull`.
    """
    _check(wanted)
    dense: dict[Handle, PendingRead] = {}
    tables: dict[Handle, tuple[SparseShards, Any]] = {}
    for handle, which in wanted.items():
        shards = shards_of(handle)
        if isinstance(shards, SparseShards):
            tables[handle] = shards, which
        else:
            dense[handle] = shards.reading(which)
    rows = reading_rows([*tables.values()], training=training)
    handles = list(tables)

    def fetch() -> dict[Handle, np.ndarray]:
        fetched = fetch_together([*dense.values(), *(reading for _, reading in rows)])
        found: dict[Handle, Any] = dict.fromkeys(wanted)  # in their order
        found.update(zip(dense, fetched, strict=False))
        for (numbers, _), values in zip(rows, fetched[len(dense) :], strict=True):
            for at, value in zip(numbers, values, strict=True):
                found[handles[at]] = value
        return found

    return fetch


@counted_as(PUSH)
def push(
    gradients: Mapping[Handle, Any], *, immediate: bool = False, weight: float | None = None
) -> None:
    """Push gradients of several variables and embeddings with one request to each server.

    Parameters
    ----------
    gradients : mapping
        For an embedding, the ids and gradients that `Embedding.push` takes, and shows and clicks if
        wanted, as a tuple; for a variable, its gradient. The keys are the `Variable` and
        `Embedding` objects.
    immediate : bool
        In a closure: write now, not at its end. Such a write happens at least once.
    weight : float, optional
        In mode `Sync`, what the closure's batch counts in its round, such as its number of
        examples, where gradients are of a mean over it; see there.

    Raises
    ------
    ConfigurationError
        If a key is not a variable or embedding, or was made without an optimizer.
    InvalidArrayError, IdOutOfRangeError
        As `Embedding.push` and `Variable.push`; nothing was changed.
    ServerLostError
        If a server is gone; no parameter of its strategy was changed. After a
        `ServerUnresponsiveError`, they may have been changed.
    """
    _check(gradients)
    dense: list[tuple[DenseShards, Any]] = []
    rows: list[RowsPushed] = []
    for handle, given in gradients.items():
        shards = shards_of(handle)
        if not isinstance(shards, SparseShards):
            dense.append((shards, given))
        elif isinstance(given, tuple | list) and 2 <= len(given) <= 4:
            rows.append((shards, *given, *_NO_USE[len(given) - 2 :]))
        else:
            raise InvalidArrayError(
                f"psnb.push: expected (ids, gradients) for embedding {handle.name!r}, found "
                f"{type(given).__name__}"
            )
    push_together(dense, rows, immediate=immediate, weight=weight)


def push_together(
    dense: Sequence[tuple[DenseShards, Any]],
    rows: Sequence[RowsPushed],
    *,
    immediate: bool = False,
    weight: float | None = None,
) -> None:
    """Push gradients of variables and embeddings; see `push`."""
    # One request to each server: what has the same `ServerClient` goes together.
    clients: dict[ServerClient | None, ServerClient] = {}
    for shards in [*(each for each, _ in dense), *[each[0] for each in rows]]:
        if shards.own_client not in clients:
            clients[shards.own_client] = shards.server_client
    writes: dict[ServerClient, list[ShardWrite]] = {each: [] for each in clients.values()}
    for variable, given in dense:
        writes[clients[variable.own_client]].extend(variable.pushing(given))
    for client, own in writes.items():
        own.extend(pushing_rows([each for each in rows if clients[each[0].own_client] is client]))
    if weight is not None:
        weigh(weight)
    for client, own in writes.items():
        write(client, own, immediate=immediate)


def _check(handles: Mapping[Handle, Any]) -> None:
    for handle in handles:
        if not isinstance(handle, Handle):
            raise ConfigurationError(
                f"psnb.pull and psnb.push take variables and embeddings as keys, "
                f"found {shown(handle)}"
            )


_NO_USE = (None, None)
"""Shows and clicks that are not given."""

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
    those held back until its end). This thread's writes for the ``depth`` batches in between:
    held-back writes are not seen; the others (``immediate=True``, or outside of closures) may or
    may not be seen, like those of other workers. So with the default, a worker may miss the last
    one of its own steps; with ``depth=0``, which fetches when a batch is due, it misses none.

    Errors of ``batches``, of ``wanted`` and of the servers are raised when their batch is due,
    after all batches before it. Leaving the loop, also by an error, waits for open requests and
    ends the thread; if the iterator outlives the loop, its ``close`` does so. One thread uses an
    iterator; there may be any number of iterators.

    Parameters
    ----------
    batches : iterable
        Anything; taken in the calling thread, up to ``depth`` batches early. Batches that are read
        early are copies, so a generator may fill the same arrays for each batch.
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
                    if depth:  # it waits here while the next one is made, in the same array perhaps
                        batch = owned(batch)
                except StopIteration:
                    ended = True
                except Exception as error:  # a dataset may raise anything
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
    except Exception as error:  # raised where the result is taken
        found.set_exception(error)
    else:
        with uninterrupted:
            pool.submit(found.give, ask)
    return found
