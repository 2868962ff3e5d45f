"""DatasetIterator: iterates over a dataset; its state can be saved and resumed."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from psnb._src.data.node import Context, Counters, Node
from psnb._src.data.reader import Reader
from psnb._src.data.stages import profile_for
from psnb._src.utils.foreign_names import SaysWhatToUse
from psnb._src.utils.phases import READ, counted_as
from psnb._src.utils.stages import Stages
from psnb.errors import DatasetError

T = TypeVar("T")

VERSION = 1
"""The version of the format of states."""


class DatasetIterator(SaysWhatToUse, Iterator[Any]):
    """Iterates over a dataset once.

    Ends its threads and closes its files when it is closed or garbage-collected. Threads may share
    it: each element goes to one of them, and while it is made the others wait.

    Parameters
    ----------
    node : Node
        The node of the dataset.
    state : dict, optional
        From `state`, of an iterator over a dataset made in the same way.

    Raises
    ------
    DatasetError
        If the state is invalid, or is of another chain or a later version of psnb.
    """

    def __init__(self, node: Node, state: dict[str, Any] | None = None) -> None:
        self._chain, self._partial = node.fingerprint(), node.partial
        self._counters = Counters(stages=profile_for(node))
        inner = None
        if state is None:
            self._seed = secrets.randbits(63)
        else:
            self._check(node, state)
            self._seed, inner = state["seed"], state["at"]
        # One thread at a time in the reader. The same one may come again: a user's function runs in
        # there, and so may a signal's handler.
        self._lock = threading.RLock()
        self._closed = False  # whether `close` was called
        self._reader = Reader(node, Context(self._seed, counters=self._counters), inner)

    @property
    def errors_ignored(self) -> int:
        """How many errors `Dataset.ignore_errors` has skipped, also in elements read ahead."""
        return sum(self._counters.errors_ignored.values())

    @property
    def empty_files(self) -> int:
        """How many files without a record were passed over, also in what is read ahead."""
        return len(self._counters.empty_files)

    def __iter__(self) -> DatasetIterator:
        return self

    @counted_as(READ)
    def __next__(self) -> Any:
        found = self._alone(self._next)
        if found is None:
            self._end()
            raise StopIteration
        return found[0]

    def stages(self) -> Stages:
        """Return what each part of the chain has given so far, and what it took; any thread.

        Printed, it is a table, from the sources on: make the stage that takes most of the time
        faster, or parallel. In a closure, it counts all iterations of the worker over such a chain.

        Returns
        -------
        tuple of StageStatistics
            A snapshot; its ``slowest`` is the stage with the most time of its own.
        """
        return self._counters.stages.statistics()

    def latest(self) -> str:
        """Return which element came last, for a message.

        Its number, from 0; and file and record of its first example, if they are known. A batch of
        shuffled examples has others of other files.
        """
        return self._alone(self._reader.latest)

    def state(self) -> dict[str, Any]:
        """Return the position of this iterator, between two elements.

        Returns
        -------
        dict
            With JSON's types only, and small: it has no elements that can be read again. An
            iterator made with it (`Dataset.iterator`) gives exactly the elements that this one
            would give from here on, provided that files have not changed and functions are
            deterministic. The order of elements may differ in parallel maps that need not keep it.
        """
        return {
            "version": VERSION,
            "chain": self._chain,
            "seed": self._seed,
            "at": self._alone(self._reader.state),
        }

    def partitions(self) -> list[list[Any]]:
        """Return number, rows and checksum of each partition that was read, for psnb only."""
        return self._counters.partitions

    def close(self) -> None:
        """End threads and close files; idempotent. There are no more elements then.

        It does not wait for a thread that makes an element: that one closes when it has it.
        """
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._reader.close()
            finally:
                self._lock.release()

    def __enter__(self) -> DatasetIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> tuple[Any] | None:
        return None if self._closed else self._reader.next_element()

    def _end(self) -> None:
        closed = self._closed
        self.close()
        if not closed and not self._partial and not self._reader.position:
            self._counters.check_files()

    def _alone(self, function: Callable[[], T]) -> T:
        """Call a function of the reader while no other thread is in there."""
        try:
            with self._lock:
                return function()
        finally:
            if self._closed:  # by another thread perhaps, which left it to this one
                self.close()

    def _check(self, node: Node, state: Any) -> None:
        missing = {"version", "chain", "seed", "at"}
        if not isinstance(state, dict) or missing - state.keys():
            raise DatasetError(
                "this is not a state of a dataset's iterator; take one with iterator.state()"
            )
        if state["version"] != VERSION:
            raise DatasetError(
                f"the state has version {state['version']}, this psnb reads version {VERSION}"
            )
        if state["chain"] != self._chain:
            raise DatasetError(
                "the state belongs to another dataset than this one, which is\n"
                + "\n".join(node.lines())
                + "\nMake the dataset as it was when the state was taken"
            )
