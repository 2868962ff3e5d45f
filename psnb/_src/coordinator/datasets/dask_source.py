"""Dask collections as datasets: which partitions there are, where they lie, computing them in time.

A persisted collection is read where it lies. Of another one Dask computes the partitions that are
read now and a few ahead, on workers rather than servers, and lets them go when every closure that
used them has ended: a closure whose worker dies reads its elements again. One task on the client's
event loop sees to that for each epoch (`PartitionFeed`). What dies with its worker Dask computes
again by itself, as the notebook's futures want it.

There may be tens of thousands of partitions, and the loop serves all else in between. So Dask is
asked about some of them at a time, and about each once: again only where its worker has gone, or
when a lease shows that partitions were moved. A plugin of the scheduler would hear of each task
that anybody runs, and not of moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from distributed import Client, Future
from xxhash import xxh3_64

from psnb._src.client.dask_frame import frames_and_pandas
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.dask_compat.collections import (
    Delayed,
    compute,
    empty_frame,
    futures_of,
    holders,
    is_dask_collection,
    make_delayed,
    partitions_delayed,
    partitions_kept,
    tasks_of,
    with_own_tasks,
)
from psnb._src.dask_compat.reach import (
    event_loop,
    offload,
    scheduler_address,
    scheduler_identity,
)
from psnb._src.data.block import Block, block_spec
from psnb._src.data.nodes.partitions import Partitions, PartRange, rows_of_partition
from psnb._src.data.spec import Spec
from psnb._src.strategy.core import StrategyCore
from psnb._src.utils.text import counted, error_text, shown
from psnb._src.utils.threads import run_on_loop
from psnb._src.worker.partitions import on_this_worker
from psnb.errors import ConfigurationError, DatasetError

logger = logging.getLogger("psnb")


_AHEAD = 2
"""Partitions that are computed ahead for each worker."""


_LOOK = 0.25
"""Seconds after which it is looked again where partitions are; after each lease if Dask computes
them as they are read."""


_WORKERS_KNOWN = 1.0
"""Seconds after which Dask is asked again which workers there are, if no session begins or ends."""


_AT_ONCE = 256
"""Partitions about which Dask is asked at a time: some milliseconds, here and in the scheduler."""


_BEGIN_TIMEOUT = 60.0


_WHAT = (
    "from_dask takes a DataFrame, Series, Array or Bag of Dask, or a list of delayed objects or "
    "futures, a partition each"
)


_Part: TypeAlias = "Future | Delayed"
"""A partition: a future of a persisted collection, or what Dask computes."""


class DaskPartitions:
    """The partitions of a collection; pickled for a worker, it reads them there.

    Parameters
    ----------
    partitions : sequence of distributed.Future or dask.delayed.Delayed
        By number.
    columns : list of str, optional
        Which columns of tables.
    known : Spec
        That of the rows, if it is known.
    frame : dask.dataframe.DataFrame or Series, optional
        The collection, if it is one of these.

    Attributes
    ----------
    partitions, frame
        As given.
    keys : tuple
        Dask's keys of the partitions.
    persisted : bool
        Whether the partitions are results that Dask keeps.
    """

    def __init__(
        self,
        partitions: Sequence[_Part],
        columns: list[str] | None,
        known: Spec,
        frame: Any = None,
    ) -> None:
        self.partitions, self._columns, self._known = tuple(partitions), columns, known
        self.frame = frame
        self.keys = tuple(each.key for each in self.partitions)
        delayed = [each for each in partitions if not isinstance(each, Future)]
        self.persisted = not delayed
        # What it is made of that lives on a cluster.
        self._wanted = [each for each in partitions if isinstance(each, Future)]
        self._wanted += futures_of(delayed) if delayed else []

    def __reduce__(self) -> tuple[Any, ...]:
        return on_this_worker, (self.keys, self._columns, self._known)

    def spec(self) -> Spec:
        """Return that of the rows, if it is known."""
        return self._known

    def read(self, number: int) -> tuple[Block, int]:
        """Return the rows of a partition, here in the notebook."""
        part = self.partitions[number]
        try:
            value = part.result() if isinstance(part, Future) else compute(part)[0]
        except Exception as error:  # of the user's graph, or the cluster's
            raise DatasetError(
                f"from_dask, partition {number}: {type(error).__name__}: {error}"
            ) from error
        return rows_of_partition(value, self._columns), 0

    def require_of(self, client: Client) -> None:
        """Raise ConfigurationError if it lives on another client's cluster, or nowhere any more."""
        for each in self._wanted:
            if each.client is not client:
                raise ConfigurationError(
                    f"the collection was persisted by another client, {each.client.id} of "
                    f"{scheduler_address(each.client) or 'none'}, and the strategy's is "
                    f"{client.id} of {scheduler_address(client)}: persist it with that one, as in "
                    "client.persist(collection)"
                )
            if each.status in ("cancelled", "lost"):
                raise ConfigurationError(
                    "the collection's partitions are not on the cluster any more: it was released "
                    "or cancelled, or the cluster was restarted. Persist it again"
                )


def partitions_of(collection: Any, columns: Sequence[str] | None) -> Partitions:
    """Return the node that reads a Dask collection; see `Dataset.from_dask`."""
    if isinstance(columns, str):
        raise ConfigurationError(f"columns is a list of names, found {columns!r}")
    wanted = None if columns is None else list(columns)
    found, known = _found(collection, wanted)
    frame = None if empty_frame(collection) is None else collection
    source = DaskPartitions(found, wanted, known, frame)
    if not found:
        raise ConfigurationError(f"{_WHAT}; this has no partition")
    if not source.persisted:
        _warn_of_shared(found)
    token = xxh3_64(repr(source.keys).encode()).hexdigest()
    return Partitions(token, tuple(map(PartRange, range(len(found)))), source)


def _found(collection: Any, columns: list[str] | None) -> tuple[list[_Part], Spec]:
    if isinstance(collection, Delayed | Future):
        collection = [collection]
    if isinstance(collection, list | tuple) and all(
        isinstance(each, Delayed | Future) for each in collection
    ):
        return _singles(collection), None
    if not is_dask_collection(collection) or not hasattr(collection, "to_delayed"):
        raise ConfigurationError(f"{_WHAT}; found {shown(collection)}")
    kept, known = partitions_kept(collection), None
    if (meta := empty_frame(collection)) is not None:
        if columns is not None:
            there = list(getattr(collection, "columns", ()))
            if absent := [name for name in columns if name not in there]:
                raise ConfigurationError(f"the columns are {there}; no {absent}")
            if kept is None:
                collection = collection[columns]  # files are read for these alone then
        with contextlib.suppress(DatasetError):  # an empty column of objects may hold anything
            known = block_spec(rows_of_partition(meta, columns))
    elif columns is not None:
        raise ConfigurationError(f"columns are those of a DataFrame, found {shown(collection)}")
    elif any(len(chunks) > 1 for chunks in getattr(collection, "chunks", ())[1:]):
        raise ConfigurationError(
            "an array is read by rows, and this one is cut along other axes, too: "
            "rechunk(dict.fromkeys(range(1, array.ndim), -1)) joins those"
        )
    if kept is not None:
        return list(kept), known
    return list(with_own_tasks(partitions_delayed(collection))), known


def _singles(several: Sequence[_Part]) -> list[_Part]:
    """Return delayed objects and futures as partitions."""
    kept = [[each] if isinstance(each, Future) else partitions_kept(each) for each in several]
    delayed = with_own_tasks(each for each, held in zip(several, kept, strict=True) if held is None)
    others = iter(delayed)
    return [next(others) if held is None else held[0] for held in kept]


_LOOKED_AT = 20
"""Partitions of which it is looked at what they share."""


def _warn_of_shared(found: Sequence[_Part]) -> None:
    """Warn if partitions need the same tasks, which would be computed again for each of them."""
    tasks = [tasks_of(each) for each in found[:_LOOKED_AT] if not isinstance(each, Future)]
    if sum(map(len, tasks)) > 2 * len(set().union(*tasks)) + len(tasks):
        warnings.warn(
            "from_dask: partitions of this collection need the results of each other's tasks, as "
            "after a shuffle, and Dask computes those again for every few of them: persist() it "
            "first",
            stacklevel=4,
        )


class PartitionFeed:
    """Sees to the partitions of one epoch; `begin` once, and `close`.

    Its task belongs to the client's event loop.

    Parameters
    ----------
    strategy : StrategyCore
        Knows the workers.
    leases : LeaseRegistry
        Knows what is read now and next.
    source : DaskPartitions
        What is read.
    numbers : sequence of list of int
        The partitions of each split.
    epoch : int
        The epoch's number.
    """

    def __init__(
        self,
        strategy: StrategyCore,
        leases: LeaseRegistry,
        source: DaskPartitions,
        numbers: Sequence[Sequence[int]],
        epoch: int,
    ) -> None:
        self._strategy, self._leases, self._epoch = strategy, leases, epoch
        self._source, self._numbers, self._client = source, numbers, strategy.client
        self._loop = event_loop(self._client)
        self._splits: defaultdict[int, list[int]] = defaultdict(list)  # by partition
        for split, several in enumerate(numbers):
            for number in several:
                self._splits[number].append(split)
        self._held: dict[int, tuple[Future, frozenset[str]]] = {}  # with the workers that may
        self._failed: set[int] = set()  # and were let go: computed again when they are leased
        # The user's own futures: never let go of. Of a persisted collection these are all.
        self._kept = {n: each for n, each in enumerate(source.partitions) if _is_kept(each)}
        self._computed: set[int] = set()  # the others that were there, or coming, at the last look
        self._workers: dict[str, str] = {}  # names by address
        self._present: frozenset[str] | None = None  # the sessions when Dask was asked for these
        self._asked_at = 0.0
        self._places: dict[int, frozenset[str]] = {}  # addresses, by partition, as last heard
        self._unknown = dict.fromkeys(self._kept)  # of which Dask is to be asked, in this order
        self._leased: list[int] = []  # splits, since the last look
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Find out where partitions are, or have the first computed; not on the event loop."""
        leased, asked, persisted = self._leased, self._asked, self._source.persisted

        def note(split: int | None) -> None:
            if split is not None:
                leased.append(split)
            if not persisted:  # others may be let go, and the next be computed
                asked.set()

        async def begin() -> None:
            while await self._look():
                pass
            self._leases.watch(self._epoch, note)
            run = _run(weakref.ref(self), self._asked)
            self._task = asyncio.create_task(run, name="psnb partitions")

        kept = self._kept.keys()
        absent = [n for n, several in enumerate(self._numbers) if not kept >= {*several}]
        self._leases.place(self._epoch, {}, dict.fromkeys(absent, False))
        run_on_loop(self._loop, begin, _BEGIN_TIMEOUT)

    def close(self) -> None:
        """Let go of what was computed; any thread, also in the middle of a garbage collection."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and all has ended
            self._loop.call_soon_threadsafe(_end, self._task, self._held)

    async def _look(self) -> bool:
        """See to what is needed, and ask where some partitions are; return if more can be asked."""
        await self._look_for_workers()
        if not self._source.persisted:
            await self._compute(frozenset(self._workers))
            self._leases.place(self._epoch, {}, self._availability())
        found, moved = await self._locate()
        holders = {split: self._most_of(split) for split in self._splits_of(moved)}
        self._leases.place(self._epoch, holders)
        return found and bool(self._unknown or self._leased)

    async def _look_for_workers(self) -> None:
        """Ask Dask for the workers, if others are present or some time is over."""
        present, now = self._leases.present(), self._loop.time()
        if present is self._present and now - self._asked_at < _WORKERS_KNOWN:
            return
        found = self._strategy.closure_workers(await scheduler_identity(self._client))
        self._present, self._asked_at = present, now
        changed = {address for address, _ in found.items() ^ self._workers.items()}
        self._workers = found
        if changed:
            self._unknown.update(
                (n, None) for n, each in self._places.items() if not changed.isdisjoint(each)
            )

    async def _locate(self) -> tuple[bool, list[int]]:
        """Ask where some partitions are.

        First those that were leased: if one is not where it was, others were moved, too.

        Returns
        -------
        found : bool
            Whether some are somewhere.
        moved : list of int
            Those that are elsewhere than before.
        """
        leased = {self._numbers[split][0] for split in self._leased[:_AT_ONCE]}
        del self._leased[:_AT_ONCE]
        first = {*islice(self._unknown, _AT_ONCE)}
        known = leased.difference(self._unknown)
        ready = [number for number in known | first if self._is_computed(number)]
        for number in first.difference(ready):  # behind all others
            self._unknown[number] = self._unknown.pop(number)
        if not ready:
            return False, []
        keys = self._source.keys
        where = await holders(self._client, [keys[number] for number in ready])
        moved, others = list[int](), False
        for number in ready:
            places = frozenset(where.get(keys[number], ()))
            before = self._places.get(number, frozenset())
            self._unknown.pop(number, None)
            if not places:  # it was lost, and is computed again
                self._unknown[number] = None
            elif number in known:
                others |= before.isdisjoint(places)
            if places != before:
                self._places[number] = places
                moved.append(number)
        if others and not self._unknown:
            self._unknown.update(dict.fromkeys(self._places))
        return any(where.values()), moved

    def _is_computed(self, number: int) -> bool:
        future = self._held[number][0] if number in self._held else self._kept.get(number)
        return future is not None and bool(future.status == "finished")

    def _splits_of(self, numbers: Iterable[int]) -> set[int]:
        return {split for number in numbers for split in self._splits[number]}

    def _most_of(self, split: int) -> frozenset[str]:
        """Return the workers that have the most of a split's partitions; none if nobody has one."""
        names = self._workers
        counts = Counter(
            names[address]
            for number in self._numbers[split]
            for address in self._places.get(number, ())
            if address in names
        )
        most = max(counts.values(), default=0)
        return frozenset(name for name, count in counts.items() if count == most)

    def _availability(self) -> dict[int, bool]:
        """Return whether the data of splits is there or will be, where that is new."""
        computed = self._held.keys() | self._failed
        changed, self._computed = computed ^ self._computed, computed
        return {
            split: all(each in computed or each in self._kept for each in self._numbers[split])
            for split in self._splits_of(changed)
        }

    async def _compute(self, workers: frozenset[str]) -> None:
        """Have Dask compute what is needed now, and let go of all else.

        Also of what has failed, once no closure reads it: one has raised the error then. Otherwise
        Dask would keep the failure for as long as there is an epoch, and raise it wherever the
        collection is computed.
        """
        needed = self._needed(_AHEAD * max(1, len(workers)))
        read = self._needed(0)
        self._failed -= read.keys()
        for number, (future, allowed) in list(self._held.items()):
            # Nobody is left who may compute it: Dask knows addresses, and started again a worker
            # has another one.
            stuck = not future.done() and not allowed & workers
            if failed := future.status == "error" and number not in read:
                self._failed.add(number)
            if number not in needed or stuck or failed:
                future.release()
                del self._held[number]
                self._places.pop(number, None)
                self._unknown.pop(number, None)
        there = self._held.keys() | self._failed
        new = [n for n in needed if n not in there and n not in self._kept]
        if new and workers:
            await asyncio.sleep(0)  # Dask hears first of what was released
            parts = [self._source.partitions[number] for number in new]
            where: dict[str, Any] = {"workers": sorted(workers), "allow_other_workers": False}
            futures = await offload(partial(self._client.compute, parts, **where))
            self._held |= {n: (each, workers) for n, each in zip(new, futures, strict=True)}
            self._unknown.update(dict.fromkeys(new))

    def _needed(self, ahead: int) -> dict[int, None]:
        """Return the partitions that are read or used now, and those of the next splits."""
        splits = self._leases.needed(self._epoch, ahead)
        return dict.fromkeys(number for split in splits for number in self._numbers[split])


def _is_kept(part: _Part) -> bool:
    return isinstance(part, Future)


async def _run(feed: weakref.ref[PartitionFeed], asked: asyncio.Event) -> None:
    while (found := feed()) is not None:
        more = False
        try:
            more = await found._look()
        except OSError as error:  # the scheduler cannot be reached at the moment
            logger.debug("where partitions are is not known: %s", error)
        except AttributeError:  # the client was closed
            return
        except Exception as error:  # of a graph, which the user has made
            logger.warning("from_dask: partitions cannot be computed: %s", error_text(error))
        del found
        if more:
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK):
                await asked.wait()
        asked.clear()


def _end(task: asyncio.Task[None] | None, held: dict[int, Any]) -> None:
    if task is not None:
        task.cancel()
    for future, _ in held.values():
        future.release()
    held.clear()


def frame_beside(frame: Any, paths: Sequence[str | None]) -> Any:
    """Return a Dask DataFrame of what files have, with the partitions and the index of a frame.

    Parameters
    ----------
    frame : dask.dataframe.DataFrame or Series
        What the files belong to.
    paths : sequence of str or None
        The file of each partition; None for one without rows.
    """
    frames, pandas = frames_and_pandas("infer_dask")
    there = next(filter(None, paths), None)
    if there is None:
        raise DatasetError("infer_dask: the collection has no row, so nothing was predicted")
    columns = pandas.read_parquet(there).iloc[:0]
    parts = [
        make_delayed(_beside)(part.index, path, columns)
        for part, path in zip(frame.to_delayed(), paths, strict=True)
    ]
    meta = columns.set_axis(empty_frame(frame).index)
    return frames.from_delayed(parts, meta=meta, divisions=frame.divisions, verify_meta=False)


def _beside(index: Any, path: str | None, columns: Any) -> Any:
    """Return the rows of a file with an index."""
    import pandas

    found = columns if path is None else pandas.read_parquet(path)
    if len(found) != len(index):
        raise DatasetError(
            f"infer_dask: a partition of {counted(len(index), 'row')} has "
            f"{counted(len(found), 'prediction')}, in {path}: a dataset that leaves rows out, or "
            "whose collection has changed, has no prediction for each. Filter the collection "
            "before from_dask"
        )
    return found.set_axis(index)
