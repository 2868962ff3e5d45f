"""Table: one shard of a variable or embedding on a server, with its optimizer state. Pure.

Not thread-safe by design: a server runs every operation on one thread, so an operation is atomic,
and a snapshot falls between two updates. `psnb._src.client` checks arguments before they are
sent. Arrays that numpy or a compiled loop would misread are refused here as well
(`psnb._src.server.states`), because they may come from elsewhere. An array that a table
returns is valid until the next operation; a caller that needs it for longer copies it (sending it
does).
"""

from __future__ import annotations

import math
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from psnb._src.server import kernels
from psnb._src.server.kernels import read_only
from psnb._src.server.optimizer import Optimizer, Updater
from psnb._src.server.row_index import GrowingArray
from psnb._src.transport.stream import InHalves, Message
from psnb.errors import ConfigurationError, InternalError


class Watcher(ABC):
    """Hears of it before rows of a table change.

    It may need memory for that. If there is none, the change goes on, and `lapse` is called: a
    checkpoint or a copy of a server can be made again, what a closure has learned cannot.
    """

    @abstractmethod
    def changing(self, rows: np.ndarray | None) -> None:
        """Take note of rows (distinct) that are about to change; None for all of them."""

    def changing_parts(self, rows: np.ndarray, width: int) -> None:
        """Note that some rows of a variable are about to change, and how many numbers of each."""
        self.changing(None)

    def changing_use(self) -> None:
        """Take note that the use of all rows is about to change, and nothing else."""
        self.changing(None)

    def renumbering(self) -> None:
        """Take note that rows are about to be removed or renumbered."""
        self.lapse()

    @abstractmethod
    def lapse(self) -> None:
        """Take note that something changes which there was no memory to take note of."""


# ChangedRows: what of a table has changed since some moment. Pure.
#
# Deltas of checkpoints and transfers to replicas ask for it, any number of them.
#
# Each row has the number of the period in which it changed last, two bytes; the rows that change in
# the present one have a bit each, which stay in the processor's caches. A question ends a period,
# and is answered with a mark, which the next question passes. Nothing is kept of consumers: one
# that could not use an answer asks with its old mark again, and several never meet. What cannot be
# known since a mark (rows were renumbered, it is another table) is answered with all rows.
#
# Not thread-safe; the server's one thread is its only user.

TICKS = 24 * 60
"""Minutes after which the changes of a table are forgotten, if they are not asked for."""

_PERIOD, _BITS = np.dtype(np.uint16), np.dtype(np.uint8)
_LAST = int(np.iinfo(_PERIOD).max)
_NONE = np.empty(0, np.int64)


class Changes(NamedTuple):
    """What has changed.

    Attributes
    ----------
    mark : str
        Of this moment, to ask with the next time.
    rows : numpy.ndarray or None
        The numbers of the rows, ascending; None if all have changed, or most, or it is not known.
    nothing : bool
        Whether what is not by row is as it was, too.
    """

    mark: str
    rows: np.ndarray | None
    nothing: bool


class ChangedRows(Watcher):
    """Knows when the rows of a table changed."""

    def __init__(self) -> None:
        self._ticks = 0
        self._begin()

    def changing(self, rows: np.ndarray | None) -> None:
        """Note rows that change in this period; an empty array is a change beside the rows."""
        self._anything = self._period
        if rows is None:
            self._all = self._period
        else:  # rows that were added in this period need no bit
            kernels.set_bits(self._bits, read_only(rows))

    def lapse(self) -> None:
        """Forget all: something was not noted, or no row can be told from another."""
        self._begin()

    def knows(self, mark: str) -> bool:
        """Return whether rows have the numbers that they had at a mark, and all was noted since."""
        return mark.rpartition("-")[0] == self._key

    def take(self, since: str, rows: int) -> Changes:
        """Return what has changed since a mark, and a new mark.

        Parameters
        ----------
        since : str
            A mark, or something that is none.
        rows : int
            How many rows the table has now, that change one by one.
        """
        self._ticks = 0
        self._end_period(rows)
        mark = f"{self._key}-{self._period}"
        found, nothing = None, False
        if self.knows(since):
            period = int(since.rpartition("-")[2])
            nothing = self._anything <= period
            found = _NONE if nothing else self._since(period)
        if self._period == _LAST:
            self._begin()
        else:
            self._period += 1
        return Changes(mark, found, nothing)

    def nbytes(self) -> int:
        """Return the bytes that it takes."""
        return self._periods.rows.nbytes + self._bits.nbytes

    def tick(self) -> bool:
        """Count a minute; return whether there was a question lately."""
        self._ticks += 1
        return self._ticks < TICKS

    def _begin(self) -> None:
        self._key = uuid.uuid4().hex
        self._period = 1
        self._all = self._anything = 0  # the last periods in which all and anything changed
        self._periods, self._bits = GrowingArray(1, _PERIOD), np.zeros(0, _BITS)

    def _end_period(self, rows: int) -> None:
        """Move the bits to the periods, and know the rows that were added."""
        known = self._periods.rows[:, 0]
        if rows:  # else it is a variable: nothing has compiled this for it
            kernels.mark_rows(known, self._bits, self._period)
        if rows > known.size:
            self._anything = self._period
            self._periods.grow(rows)
            self._periods.rows[known.size :] = self._period
        self._bits = np.zeros(-(-rows // 8), _BITS)

    def _since(self, period: int) -> np.ndarray | None:
        if self._all > period:
            return None
        changed = self._periods.rows[:, 0] > period
        most = 2 * np.count_nonzero(changed) > changed.size
        return None if most else np.flatnonzero(changed)


# What a request may do with a table, and with a shard that holds it. Pure, only data.
#
# A `TableOperation` names one of a table's methods and has its arguments; see there for what they
# mean (`psnb._src.server.dense`, `psnb._src.server.sparse`, `psnb._src.server.table`). `OnTable`
# adds the name of the table: so it is an operation of the shard, and a write in a closure's commit.

Segment = dict[str, np.ndarray]
"""Some rows of a table: the part of each of its arrays for these rows."""

SEGMENT = 4 << 20
"""Bytes of a table that are read, written or sent at a time: no server is blocked for long."""


def row_nbytes(segment: Segment) -> int:
    """Return the bytes that a row takes."""
    return sum(array.itemsize * math.prod(array.shape[1:]) for array in segment.values())


def rows_in_segment(nbytes: int) -> int:
    """Return how many rows a segment may have, by the bytes of a row."""
    return max(1, SEGMENT // max(1, nbytes))


class Operation(Message, frozen=True):
    """What a server may be asked to do."""

    changes: ClassVar[bool] = False
    """Whether it may change what copies on other servers must have, too."""

    descriptive: ClassVar[bool] = False
    """Whether it may have objects of classes that a notebook defines."""

    def __str__(self) -> str:
        """Return its name, for messages."""
        return type(self).__name__


class TableOperation(Operation, frozen=True):
    """An operation of a table."""

    collected: ClassVar[bool] = False
    """Whether it waits for the end of a round, in the mode that has rounds."""


class TableRead(TableOperation, frozen=True):
    """Returns values or rows."""


class TableWrite(TableOperation, frozen=True):
    """Changes a table, and may be part of a closure's commit."""

    changes: ClassVar[bool] = True


class Push(TableWrite, frozen=True):
    """Lets the optimizer apply gradients.

    The last field of each is ``half``: whether gradients of float32 are `halved` on their way.
    """

    collected: ClassVar[bool] = True

    def wire(self) -> tuple[Any, ...]:
        wire = super().wire()
        return tuple(InHalves(e) if _is_float32(e) else e for e in wire) if wire[-1] else wire


# Of variables.


class ReadValues(TableRead, frozen=True):
    """`DenseTable.read`; ``half``: the answer is `halved`."""

    half: bool = False


class GatherRows(TableRead, frozen=True):
    """`DenseTable.gather`; as `ReadValues`."""

    rows: np.ndarray
    half: bool = False


class AssignValues(TableWrite, frozen=True):
    """`DenseTable.assign`."""

    values: np.ndarray


class AddValues(TableWrite, frozen=True):
    """`DenseTable.add`."""

    values: np.ndarray


class AssignRows(TableWrite, frozen=True):
    """`DenseTable.scatter_assign`."""

    rows: np.ndarray
    values: np.ndarray


class AddRows(TableWrite, frozen=True):
    """`DenseTable.scatter_add`."""

    rows: np.ndarray
    values: np.ndarray


class PushGradient(Push, frozen=True):
    """`DenseTable.push`."""

    gradient: np.ndarray
    norm: float | None = None
    rate: float | None = None
    ranges: np.ndarray | None = None
    together: bool = False
    half: bool = False


class BlendValues(TableWrite, frozen=True):
    """`DenseTable.blend`."""

    collected: ClassVar[bool] = True

    shares: np.ndarray
    terms: np.ndarray


class MergeValues(TableWrite, frozen=True):
    """`DenseTable.merge`."""

    values: np.ndarray
    slots: Mapping[str, np.ndarray]
    step: int
    share: float
    ranges: np.ndarray | None = None
    counts: np.ndarray | None = None


# Of embeddings.


class LookUpRows(TableRead, frozen=True):
    """`SparseTable.lookup`; as `ReadValues`."""

    ids: np.ndarray
    training: bool = True
    half: bool = False


class FetchRows(TableRead, frozen=True):
    """`SparseTable.fetch`."""

    ids: np.ndarray


class PushRows(Push, frozen=True):
    """`SparseTable.push`."""

    ids: np.ndarray
    gradients: np.ndarray
    norm: float | None = None
    distinct: bool = False
    rate: float | None = None
    half: bool = False


class MergeRows(TableWrite, frozen=True):
    """`SparseTable.merge`."""

    ids: np.ndarray
    values: np.ndarray
    slots: Mapping[str, np.ndarray]
    step: int
    share: float


class PutRows(TableWrite, frozen=True):
    """`SparseTable.assign`."""

    ids: np.ndarray
    values: np.ndarray


class RecordUse(TableWrite, frozen=True):
    """`SparseTable.record`."""

    collected: ClassVar[bool] = True

    ids: np.ndarray
    shows: np.ndarray
    clicks: np.ndarray


class EndDay(TableWrite, frozen=True):
    """`SparseTable.end_day`."""


class ReadUse(TableOperation, frozen=True):
    """`SparseTable.row_use`."""

    ids: np.ndarray


class ShrinkTable(TableOperation, frozen=True):
    """`SparseTable.shrink`."""

    changes: ClassVar[bool] = True

    threshold: float
    days: float
    forget_waiting: bool


class DescribeRows(TableOperation, frozen=True):
    """`SparseTable.describe_rows`."""


# Of both.


class SkipUpdates(TableWrite, frozen=True):
    """`Table.skip`."""

    count: int


class Preview(TableOperation, frozen=True):
    """`Table.preview`."""

    writes: Sequence[TableOperation]
    read: TableRead


class ReadState(TableOperation, frozen=True):
    """`Table.state`."""


class ReadOptimizer(TableOperation, frozen=True):
    """`Table.optimizer`."""


class ReadRate(TableOperation, frozen=True):
    """`Table.rate_now`."""


class TuneOptimizer(TableOperation, frozen=True):
    """`Table.tune`."""

    changes: ClassVar[bool] = True
    descriptive: ClassVar[bool] = True

    hyperparameters: Mapping[str, Any]


class CountUpdates(TableOperation, frozen=True):
    """`Table.updates`."""


class CountSkipped(TableOperation, frozen=True):
    """`Table.skipped`."""


class ClearTable(TableOperation, frozen=True):
    """`Table.clear`."""

    changes: ClassVar[bool] = True


class PutSegment(TableOperation, frozen=True):
    """`Table.put`."""

    changes: ClassVar[bool] = True

    segment: Segment


class FinishTable(TableOperation, frozen=True):
    """`Table.finish`."""

    changes: ClassVar[bool] = True

    tail: Segment


class RoundWeights(Message, frozen=True):
    """What the closures of a round count.

    Attributes
    ----------
    each : sequence of float
        Of those that pushed, in their order.
    total : float
        Of all, those without gradients too; above 0.
    """

    each: Sequence[float]
    total: float


class ShardOperation(Operation, frozen=True):
    """An operation of a shard."""

    changes: ClassVar[bool] = True


class OnTable(ShardOperation, frozen=True):
    """An operation of a table that the shard holds."""

    table: str
    operation: TableOperation

    def __str__(self) -> str:
        """Return both names, for messages."""
        return f"{self.operation} of {self.table!r}"


def _is_float32(field: Any) -> bool:
    return isinstance(field, np.ndarray) and field.dtype == np.float32


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

    writes: ClassVar[tuple[type[TableWrite], ...]]
    """What a closure's commit may do."""

    _name: str
    _updater: Updater

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []
        self._changed: ChangedRows | None = None  # from the first question on

    @property
    @abstractmethod
    def extent(self) -> int:
        """How many rows it has."""

    @property
    def counted(self) -> int:
        """How many rows change one by one: none of a dense table."""
        return 0

    @abstractmethod
    def nbytes(self) -> int:
        """Return the bytes of parameters, optimizer state and index."""

    @abstractmethod
    def segment(self, start: int, stop: int) -> Segment:
        """Return copies of the rows from ``start`` to ``stop``."""

    @abstractmethod
    def column(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        """Return a copy of some rows of one array, by their numbers."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all content, before new segments are loaded."""

    @abstractmethod
    def put(self, segment: Segment) -> None:
        """Load rows, which may come from other shards; existing rows are replaced.

        An invalid segment raises ConfigurationError, and nothing is changed.
        """

    def tail(self) -> Segment:
        """Return everything that is not by row, for `finish`."""
        return {"step": np.array([self._updater.step])}

    @abstractmethod
    def check_tail(self, tail: Segment) -> None:
        """Raise ConfigurationError unless this has the form that `tail` returns."""

    def finish(self, tail: Segment) -> None:
        """Load what `tail` returned, after all segments.

        An invalid tail raises ConfigurationError, and nothing is changed.
        """
        self.check_tail(tail)
        self._changing(None)
        self._updater.step = int(tail["step"][0])

    def changed_since(self, mark: str) -> Changes:
        """Return what has changed since a mark, or since something that is none.

        From the first call on, the table takes note of what changes.
        """
        if self._changed is None:
            self._changed = ChangedRows()
            self.watchers.append(self._changed)
        return self._changed.take(mark, self.counted)

    def tick(self) -> None:
        """Count a minute; changes that are not asked for are forgotten."""
        if self._changed is not None and not self._changed.tick():
            self.watchers.remove(self._changed)
            self._changed = None

    def state(self) -> Segment:
        """Return copies of all that a checkpoint needs."""
        return {**self.segment(0, self.extent), **self.tail()}

    @abstractmethod
    def check_state(self, state: Segment) -> None:
        """Raise ConfigurationError unless this has the form that `state` returns."""

    def load(self, state: Segment) -> None:
        """Load what `state` returned; raises as `put` does."""
        self.check_state(state)
        self.clear()
        self.put(state)
        self.finish(state)

    def take_over(self, tail: Segment, skipped: int, optimizer: Optimizer | None) -> None:
        """Take the counts and the optimizer of a table like this one."""
        self.finish(tail)
        self._updater.skipped, self._updater.optimizer = skipped, optimizer

    @abstractmethod
    def _saved(self, writes: Sequence[TableOperation]) -> Callable[[], None]:
        """Return a function that undoes the effect of these writes."""

    def _changing(self, rows: np.ndarray | None) -> None:
        if self.watchers:
            self._watched(lambda watcher: watcher.changing(rows))

    def _renumbering(self) -> None:
        self._watched(lambda watcher: watcher.renumbering())

    def _watched(self, note: Callable[[Watcher], None]) -> None:
        for watcher in list(self.watchers):
            try:
                note(watcher)
            except MemoryError:
                watcher.lapse()

    @abstractmethod
    def reserve(self, write: TableOperation) -> Callable[[], None]:
        """Get all memory that one of the `writes` needs, after all checks; return what makes it.

        That takes no more memory, and is called once at most, then or later: whatever happens to
        the table meanwhile, what was got is kept for it as long as there is a reference to it.

        Raises
        ------
        MemoryError
            If there is no memory; nothing is changed.
        """

    def check_write(self, write: TableOperation) -> None:
        """Raise InternalError unless an operation is one of the `writes`."""
        if not isinstance(write, self.writes):
            raise self._unknown(write)

    def preview(self, writes: Sequence[TableOperation], read: TableRead) -> np.ndarray:
        """Return what a read would return after some writes, without making them.

        So a closure sees its own writes before they are committed.
        """
        undo = self._saved(writes)
        step, skipped = self._updater.step, self._updater.skipped
        try:
            for write in writes:
                self._rehearse(write)
            result: np.ndarray = self.run(read)
            return result.copy()  # before the writes are undone
        finally:
            undo()
            self._updater.step, self._updater.skipped = step, skipped

    def _rehearse(self, write: TableOperation) -> None:
        """Make a write that will be undone."""
        self.run(write)

    def changes(self, operation: TableOperation) -> bool:
        """Return whether an operation may change the table."""
        return operation.changes

    def skip(self, count: int) -> None:
        """Count updates, or rows of them, that were left out because they were not finite."""
        self._updater.skipped += count

    def updates(self) -> int:
        """Return how many updates the optimizer has applied."""
        return self._updater.step

    def skipped(self) -> int:
        """Return how many were left out because they were not finite, since the table was made."""
        return self._updater.skipped

    def optimizer(self) -> Optimizer | None:
        """Return the optimizer as it is now."""
        return self._updater.optimizer

    def rate_is_users(self) -> bool:
        """Return whether a user's function gives the learning rate."""
        return self._updater.rate_is_users()

    def rate(self, ahead: int) -> float:
        """Return the learning rate of a coming push; see `Updater.rate`."""
        return self._updater.rate(ahead)

    def rate_now(self) -> float:
        """Return the learning rate of the next push, for views; NaN if there is none."""
        try:
            return self._updater.rate(0)
        except ConfigurationError:  # a push would say so
            return math.nan

    def tune(self, hyperparameters: Mapping[str, Any]) -> None:
        """Change hyperparameters of the optimizer, from the next update on."""
        self._updater.tune(hyperparameters)

    def run(self, operation: TableOperation) -> Any:
        """Run an operation; raises InternalError if this kind of table does not have it."""
        match operation:
            case Preview(writes, read):
                return self.preview(writes, read)
            case SkipUpdates(count):
                return self.skip(count)
            case PutSegment(segment):
                return self.put(segment)
            case ReadState():
                return self.state()
            case ReadOptimizer():
                return self.optimizer()
            case ReadRate():
                return self.rate_now()
            case TuneOptimizer(hyperparameters):
                return self.tune(hyperparameters)
            case CountUpdates():
                return self.updates()
            case CountSkipped():
                return self.skipped()
            case ClearTable():
                return self.clear()
            case FinishTable(tail):
                return self.finish(tail)
        raise self._unknown(operation)

    def _unknown(self, operation: TableOperation) -> InternalError:
        return InternalError(f"{type(self).__name__} {self._name!r} has no operation {operation}")


def with_rates(pushes: Sequence[tuple[Table, Push]], *, as_one: bool = False) -> list[Push]:
    """Return pushes, each with the learning rate that its table has for it.

    A push all of whose ids turn out to have no row is not a step; those of the same commit behind
    it have the rate of one step later.

    Parameters
    ----------
    pushes : sequence of tuple
        Each with its table, in the order in which they will be applied.
    as_one : bool
        Whether a table's pushes will be one update.

    Raises
    ------
    ConfigurationError
        If a learning rate cannot be computed.
    """
    ahead: Counter[Table] = Counter()
    found: list[Push] = []
    for table, push in pushes:
        found.append(msgspec.structs.replace(push, rate=table.rate(ahead[table])))
        ahead[table] += not as_one
    return found


# ReservedWrite: a write of a commit, and the memory for it. Pure.


@dataclass(slots=True, eq=False)
class ReservedWrite:
    """A write that will not fail for want of memory.

    It has the memory as long as it is there, so that must not be given back: not when a commit is
    given up, nor when its writer ends. It goes to another process without memory: what is copied
    must be reserved again.

    Attributes
    ----------
    write : OnTable
        The write.
    make : callable or None
        Makes the write; None if it waits for the end of a round.
    share : object
        The memory that it needs at the end of the round.
    """

    write: OnTable
    make: Callable[[], None] | None = None
    share: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ReservedWrite, (self.write,)
