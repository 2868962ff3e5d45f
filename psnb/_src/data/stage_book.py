"""StageBook: the stages of iterations over one chain, and what those that have ended have counted.

Thread-safe. What is read in a thread with a `StageLog` is kept there together for all iterations
over one kind of chain: a worker may read a dataset in hundreds of parts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from psnb._src.stages import Stages, StageStatistics
from psnb._src.threads import Lock

if TYPE_CHECKING:
    from psnb._src.data.node import Node
    from psnb._src.data.stage_counts import StageCounts

_MOST_CHAINS = 16


class _PlaceCounts:
    """What is known of a place in the chain: its input's places follow from who reads them."""

    def __init__(self, stage: StageCounts) -> None:
        self.node = stage.node
        self.above = None if stage.above is None else stage.above.place
        self.elements, self.seconds = 0, 0.0  # of stages that have ended


class StageBook:
    """The stages of one chain."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the two below, for a moment each
        self._open: dict[StageCounts, None] = {}
        self._places: dict[int, _PlaceCounts] = {}

    def add(self, stage: StageCounts) -> None:
        """Note a stage that begins."""
        with self._lock:
            if stage.place not in self._places:
                self._places[stage.place] = _PlaceCounts(stage)
            self._open[stage] = None

    def end(self, stage: StageCounts) -> None:
        """Note that a stage is not read any more; idempotent."""
        with self._lock:
            self._end(stage)

    def statistics(self) -> Stages:
        """Return a snapshot, from the sources on."""
        with self._lock:
            for stage in [each for each in self._open if each.iterator() is None]:
                self._end(stage)  # it was forgotten rather than closed
            now = {
                place: StageStatistics(
                    each.node.brief(),
                    each.elements,
                    each.seconds,
                    each.node.waits,
                    place=place,
                )
                for place, each in self._places.items()
            }
            for stage in self._open:
                iterator = stage.iterator()
                level, limit = (iterator.level() if iterator is not None else None) or (None, None)
                here = StageStatistics(
                    "", stage.elements, max(0.0, stage.seconds), level=level, limit=limit
                )
                now[stage.place] = now[stage.place].plus(here)
            return Stages(self._in_order(now, None, 0))

    def _in_order(
        self, now: dict[int, StageStatistics], above: int | None, depth: int
    ) -> Iterator[StageStatistics]:
        """Yield the stages that are read by one, each after its own inputs."""
        inputs = [place for place, each in self._places.items() if each.above == above]
        deeper = depth + (len(inputs) > 1)
        for place in inputs:
            yield from self._in_order(now, place, deeper)
            yield replace(now[place], depth=deeper)

    def _end(self, stage: StageCounts) -> None:
        if stage in self._open:
            del self._open[stage]
            place = self._places[stage.place]
            place.elements += stage.elements
            place.seconds += stage.seconds


class StageLog:
    """The books of all chains that some threads read, by the kind of the chain."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the dict, for a moment each
        self._books: OrderedDict[str, StageBook] = OrderedDict()

    def book(self, node: Node) -> StageBook:
        """Return the book for a chain; parts of one dataset have the same."""
        kind = _kind(node)
        with self._lock:
            book = self._books.setdefault(kind, StageBook())
            self._books.move_to_end(kind)
            while len(self._books) > _MOST_CHAINS:
                self._books.popitem(last=False)
            return book

    def statistics(self) -> dict[str, Stages]:
        """Return a snapshot of all chains, by their kind."""
        with self._lock:
            books = dict(self._books)
        return {kind: book.statistics() for kind, book in books.items()}


def _kind(node: Node) -> str:
    inputs = ",".join(map(_kind, node.inputs))
    return f"{inputs}>{node.name}" if inputs else node.name


class _CurrentLog(threading.local):
    log: StageLog | None = None


_current = _CurrentLog()


def log_stages(log: StageLog | None) -> None:
    """From now on, count what this thread begins to iterate over in a log; None for no more."""
    _current.log = log


def book_for(node: Node) -> StageBook:
    """Return the book for an iteration that begins in this thread."""
    return StageBook() if _current.log is None else _current.log.book(node)
