"""Table: one shard of a variable or embedding on a server, with its optimizer state. Pure.

Not thread-safe by design: a server runs every operation on one thread, so an operation is atomic,
and a snapshot falls between two updates. `psnb._src.client` checks arguments before they are
sent. Arrays that numpy or a compiled loop would misread are refused here as well
(`psnb._src.server.tables.checks`), because they may come from elsewhere. An array that a table
returns is valid until the next operation; a caller that needs it for longer copies it (sending it
does).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np

from psnb._src.server.memory import require_room
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.changed_rows import NO_ROWS, ChangedRows, Changes, Watcher
from psnb._src.server.tables.checks import POSITION, Expected, check_array, forms
from psnb._src.server.tables.updater import Updater
from psnb._src.transport.message import Float16Message
from psnb.errors import InternalError, InvalidArrayError

_SEGMENTS = ops.MOST_PIECE + 2
"""How many segments a server has in memory while it loads one: as read, its own rows, as given."""


class Table(ABC):
    """Base of the tables of a server.

    Because it may be large, checkpoints (`psnb._src.server.snapshots`) and transfers to a copy
    (`psnb._src.server.replication`) read and write it in *segments*: ranges of its rows. Everything
    that is not by row is its *tail*. The rows of a dense table are its numbers.

    Attributes
    ----------
    watchers : list of Watcher
        Called before rows change.
    """

    writes: ClassVar[tuple[type[ops.TableWrite], ...]]
    """What a closure's commit may do."""

    by_row: ClassVar[bool] = False
    """Whether rows change one by one."""

    kind: tuple[Any, ...] | None = None
    """What tables have in common whose rows may be looked up and pushed together, if it has rows.
    """

    counts: bool = False
    """Whether each lookup for training changes it, that of ids with a row, too."""

    leaves: bool = False
    """Whether rows leave by themselves."""

    expires: bool = False
    """Whether it is to hear of each minute, as its replicas are."""

    updater: Updater
    """Its optimizer, and the counts of updates."""

    expected: Expected
    """What is loaded must be."""

    name: str
    """What it is called in messages."""

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []
        self._changed: ChangedRows | None = None  # from the first question on

    @property
    @abstractmethod
    def extent(self) -> int:
        """How many rows it has."""

    @abstractmethod
    def nbytes(self) -> int:
        """Return the bytes of parameters, optimizer state and index."""

    @abstractmethod
    def segment(self, start: int, stop: int) -> ops.Segment:
        """Return copies of the rows from ``start`` to ``stop``."""

    @abstractmethod
    def column(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        """Return a copy of some rows of one array, by their numbers."""

    def make_room(self, rows: int) -> None:
        """Get the memory for so many rows in all, which will be loaded; nothing is changed.

        Raises
        ------
        MemoryError
            If there is none.
        """
        require_room(_SEGMENTS * ops.SEGMENT)

    @abstractmethod
    def clear(self) -> None:
        """Remove all content, before new segments are loaded."""

    @abstractmethod
    def put(self, segment: ops.Segment) -> None:
        """Load rows, which may come from other shards; existing rows are replaced.

        An invalid segment raises ConfigurationError, and nothing is changed.
        """

    def tail(self) -> ops.Segment:
        """Return everything that is not by row, for `finish`."""
        return {"step": np.array([self.updater.step])}

    def finish(self, tail: ops.Segment) -> None:
        """Load what `tail` returned, after all segments.

        An invalid tail raises ConfigurationError, and nothing is changed.
        """
        self.expected.check_tail(forms(self.name, tail), tail.__getitem__)
        self._changing_rows(NO_ROWS)
        self.updater.step = int(tail["step"][0])

    def beside(self) -> ops.Segment:
        """Return what replicas and marks have, and no checkpoint, for `take_beside`."""
        return {"skipped": np.array([self.updater.skipped])}

    def check_beside(self, beside: ops.Segment) -> None:
        """Raise InvalidArrayError unless `take_beside` can load it."""
        if missing := self.beside().keys() - beside.keys():
            raise InvalidArrayError(f"{self.name!r}: arrays {sorted(missing)} are missing")
        check_array(f"skipped of {self.name!r}", beside["skipped"], POSITION, (1,))

    def take_beside(self, beside: ops.Segment) -> None:
        """Load what `beside` returned, after all else."""
        self.updater.skipped = int(beside["skipped"][0])

    def choices(self, size: int, read: np.ndarray | None) -> Iterable[ops.TableChange]:
        """Yield what must be done first on all replicas, for a write of ``size`` ids.

        Or for a lookup of ids.
        """
        return ()

    @property
    def excess(self) -> int:
        """How many rows more than its bound it has: only while it is loaded."""
        return 0

    def settling(self) -> Iterator[ops.TableChange]:
        """Yield what must be done on all replicas after it was loaded."""
        return iter(())

    def changed_since(self, mark: str) -> Changes:
        """Return what has changed since a mark, or since something that is none.

        From the first call on, the table tracks changes.
        """
        if self._changed is None:
            self._changed = ChangedRows()
            self.watchers.append(self._changed)
        return self._changed.take(mark, self.extent if self.by_row else 0)

    def tick(self, loading: bool = False) -> None:
        """Count a minute; changes that are not asked for are forgotten.

        While it is ``loading``, it keeps memory for rows that are to come.
        """
        if self._changed is not None and not self._changed.tick():
            self.watchers.remove(self._changed)
            self._changed = None

    def state(self) -> ops.Segment:
        """Return copies of all that a checkpoint needs."""
        return {**self.segment(0, self.extent), **self.tail()}

    def load(self, state: ops.Segment) -> None:
        """Load what `state` returned; raises as `put` does."""
        self.expected.check_state(forms(self.name, state), state.__getitem__)
        self.clear()
        self.put(state)
        self.finish(state)

    @abstractmethod
    def _saved(self, writes: Sequence[ops.TableOperation]) -> Callable[[], None]:
        """Return a function that undoes the effect of these writes."""

    def changing(self, rows: np.ndarray | None) -> None:
        """Tell watchers that rows are about to change; None for all of them."""
        if self.watchers:
            self._watched(lambda watcher: watcher.changing(rows))

    def _changing_rows(self, rows: np.ndarray) -> None:
        """Tell watchers that rows are about to change; of none, that only the tail does."""
        self.changing(rows)

    def _watched(self, note: Callable[[Watcher], None]) -> None:
        for watcher in list(self.watchers):
            try:
                note(watcher)
            except MemoryError:
                watcher.lapse()

    @abstractmethod
    def reserve(self, write: ops.TableOperation) -> Callable[[], None]:
        """Get all memory that one of the `writes` needs, after all checks; return what makes it.

        The function takes no more memory, and is called once at most, then or later: whatever
        happens to the table meanwhile, its memory stays reserved as long as there is a reference to
        it.

        Raises
        ------
        MemoryError
            If there is no memory; nothing is changed.
        """

    def preview(self, writes: Sequence[ops.TableOperation], read: ops.TableRead) -> Any:
        """Return what a read would return after some writes, without making them.

        So a closure sees its own writes before they are committed.
        """
        undo = self._saved(writes)
        step, skipped = self.updater.step, self.updater.skipped
        try:
            for write in writes:
                self._rehearse(write)
            result: np.ndarray | Float16Message = self.run(read)
            # Before the writes are undone; what is halved is a copy.
            return result.copy() if isinstance(result, np.ndarray) else result
        finally:
            undo()
            self.updater.step, self.updater.skipped = step, skipped

    def _rehearse(self, write: ops.TableOperation) -> None:
        """Make a write that will be undone."""
        self.run(write)

    def run(self, operation: ops.TableOperation) -> Any:
        """Run an operation; raises InternalError if this kind of table does not have it."""
        match operation:
            case ops.Preview(writes, read):
                return self.preview(writes, read)
            case ops.SkipUpdates(count):
                return self.updater.skip(count)
            case ops.PutSegment(segment):
                return self.put(segment)
            case ops.ReadState():
                return self.state()
            case ops.ReadOptimizer():
                return self.updater.optimizer
            case ops.ReadRate():
                return self.updater.shown_rate()
            case ops.TuneOptimizer(hyperparameters):
                return self.updater.tune(hyperparameters)
            case ops.CountUpdates():
                return self.updater.step
            case ops.CountSkipped():
                return self.updater.skipped
            case ops.MakeRoom(rows):
                return self.make_room(rows)
            case ops.ClearTable():
                return self.clear()
            case ops.FinishTable(tail, beside):
                if beside:
                    self.check_beside(beside)
                self.finish(tail)
                if beside:
                    self.take_beside(beside)
                return self.excess
        raise self.unknown(operation)

    def unknown(self, operation: ops.TableOperation) -> InternalError:
        """Return the error for an operation that the table does not have."""
        return InternalError(f"{type(self).__name__} {self.name!r} has no operation {operation}")


def with_rates(
    pushes: Sequence[tuple[Sequence[Table], ops.Push]], *, as_one: bool = False
) -> list[ops.Push]:
    """Return pushes, each with the learning rates that its tables have for it.

    A push whose ids all turn out to have no row is not a step; later pushes of the same commit have
    the rate of one step later.

    Parameters
    ----------
    pushes : sequence of tuple
        Each with its tables, in the order in which they will be applied.
    as_one : bool
        Whether a table's pushes will be one update.

    Raises
    ------
    ConfigurationError
        If a learning rate cannot be computed.
    """
    ahead: Counter[Table] = Counter()
    found: list[ops.Push] = []
    for tables, push in pushes:
        rates = [table.updater.rate(ahead[table]) for table in tables]
        several = isinstance(push, ops.PushRows)
        rated = {"rates": rates} if several else {"rate": rates[0]}
        found.append(msgspec.structs.replace(push, **rated))
        if not as_one:
            ahead.update(tables)
    return found


@dataclass(slots=True, eq=False)
class ReservedWrite:
    """A write that will not fail for want of memory.

    It holds the memory as long as it exists, so nothing must be released when a commit is dropped
    or its writer ends. Sent to another process it has no memory: a copy must reserve again.

    Attributes
    ----------
    write : OnTables
        The write.
    make : callable or None
        Makes the write; None if it waits for the end of a round.
    reservation : object
        The memory that it needs at the end of the round.
    """

    write: ops.OnTables
    make: Callable[[], None] | None = None
    reservation: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ReservedWrite, (self.write,)

    def without(self, table: str) -> list[ReservedWrite]:
        """Return what is left of it without a table."""
        if table not in self.write.tables:
            return [self]
        parts = self.write.parts()
        make: Any = self.make
        return [
            ReservedWrite(part, make.part(at))
            for at, part in enumerate(parts)
            if part.tables != (table,)
        ]
