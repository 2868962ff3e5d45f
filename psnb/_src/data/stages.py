"""The stages of iterations over chains: how many elements each part has given, and its time.

Reading a node begins a stage. The counts are taken block by block, so they cost little. The time of
a stage is its own: the time of its inputs in the same thread is subtracted.

Threads: a stage belongs to the thread that reads its iterator. Any thread may take a snapshot,
whose numbers are a moment old. A stage does not hold its iterator.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from time import perf_counter
from typing import Any

from psnb._src.data.block import Block
from psnb._src.utils.interrupts import Lock
from psnb._src.utils.stages import Stages, StageStatistics, merged

_MOST_CHAINS = 16


class StageCounters:
    """Counts for one iterator.

    Parameters
    ----------
    node : Node
        What is iterated over.
    place : int
        The node's place in the chain.
    above : StageCounters or None
        The stage that reads this one.
    apart : bool
        Whether a thread of its own reads it: then its time is none of the stage above.
    """

    def __init__(self, node: Any, place: int, above: StageCounters | None, apart: bool) -> None:
        self.node, self.place, self.above, self._apart = node.counted, place, above, apart
        self.elements, self.seconds, self.moved, self.empty_files = 0, 0.0, 0, 0
        self._inside = 0.0  # the time of its inputs
        self.iterator: Callable[[], Any]  # a weak reference, until it has ended

    def next_block(self, source: Any, limit: int) -> Block | None:
        """Return the next elements of its iterator; see `NodeIterator.next_block`."""
        inside, begin = self._inside, perf_counter()
        try:
            block = source.next_block(limit)
        finally:
            seconds = perf_counter() - begin
            self.seconds += seconds - (self._inside - inside)
            if not self._apart and self.above is not None:
                self.above._inside += seconds
        if block is not None:
            self.elements += block.count
        return block

    def add(self, other: StageCounters) -> None:
        """Add what another has counted."""
        self.elements += other.elements
        self.seconds += other.seconds
        self.moved += other.moved
        self.empty_files += other.empty_files

    def statistics(self) -> StageStatistics:
        """Return its counts, and how many elements are in its iterator's buffer."""
        iterator = self.iterator()
        level, limit = (iterator.level() if iterator is not None else None) or (None, None)
        return StageStatistics(
            self.node.brief(),
            self.elements,
            max(0.0, self.seconds),
            self.node.waits,
            level,
            limit,
            place=self.place,
            moved=self.moved,
            empty_files=self.empty_files,
        )


class PipelineProfile:
    """The stages of one chain, with the counts of ended ones. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards all below, for a moment each
        self._open: dict[StageCounters, None] = {}
        self._ended: dict[int, StageCounters] = {}  # by place, with all that have ended there
        self._above: dict[int, int | None] = {}  # the place that reads a place

    def add(self, stage: StageCounters) -> None:
        with self._lock:
            self._open[stage] = None
            if stage.place not in self._above:
                self._above[stage.place] = None if stage.above is None else stage.above.place

    def end(self, stage: StageCounters) -> None:
        """Note that a stage is not read any more; idempotent."""
        with self._lock:
            self._end(stage)

    def statistics(self) -> Stages:
        """Return a snapshot, from the sources on."""
        with self._lock:
            for stage in [each for each in self._open if each.iterator() is None]:
                self._end(stage)  # it was forgotten rather than closed
            stages = [each.statistics() for each in (*self._ended.values(), *self._open)]
            now = {each.place: each for each in merged([Stages([each]) for each in stages])}
            return Stages(self._in_order(now, None, 0))

    def _in_order(
        self, now: dict[int, StageStatistics], above: int | None, depth: int
    ) -> Iterator[StageStatistics]:
        """Yield the stages that are read by one, each after its own inputs."""
        inputs = [place for place, reader in self._above.items() if reader == above]
        deeper = depth + (len(inputs) > 1)
        for place in inputs:
            yield from self._in_order(now, place, deeper)
            yield replace(now[place], depth=deeper)

    def _end(self, stage: StageCounters) -> None:
        if stage in self._open:
            del self._open[stage]
            stage.iterator = lambda: None
            total = self._ended.setdefault(stage.place, stage)
            if total is not stage:
                total.add(stage)


class StageLog:
    """The profiles of all chains that some threads read, by the kind of the chain. Thread-safe.

    All iterations over one kind of chain have one: a worker may read a dataset in many parts.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # guards the dict, for a moment each
        self._profiles: OrderedDict[str, PipelineProfile] = OrderedDict()

    def profile(self, node: Any) -> PipelineProfile:
        """Return the profile for a chain; parts of one dataset have the same."""
        kind = _kind(node)
        with self._lock:
            profile = self._profiles.setdefault(kind, PipelineProfile())
            self._profiles.move_to_end(kind)
            while len(self._profiles) > _MOST_CHAINS:
                self._profiles.popitem(last=False)
            return profile

    def statistics(self) -> dict[str, Stages]:
        """Return a snapshot of all chains, by their kind."""
        with self._lock:
            profiles = dict(self._profiles)
        return {kind: profile.statistics() for kind, profile in profiles.items()}


def _kind(node: Any) -> str:
    inputs = ",".join(map(_kind, node.inputs))
    return f"{inputs}>{node.name}" if inputs else node.name


_current: ContextVar[StageLog | None] = ContextVar("log of stages", default=None)


def log_stages(log: StageLog | None) -> None:
    """From now on, count iterations that this thread begins in a log; None ends that."""
    _current.set(log)


def profile_for(node: Any) -> PipelineProfile:
    """Return the profile for an iteration that begins in this thread."""
    log = _current.get()
    return PipelineProfile() if log is None else log.profile(node)
