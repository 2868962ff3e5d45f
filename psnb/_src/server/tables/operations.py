"""Operations on a table, and on a shard that holds it. Pure, only data.

First operations on variables, then, from `LookUpRows` on, on embeddings, then, from `SkipUpdates`
on, on both. A `TableOperation` has the arguments of a table's method (`psnb._src.server.tables`).
`OnTables` adds the names of the tables: so it is an operation of the shard, and a write in a
closure's commit. Rows are looked up and pushed in any number of tables at once; all else is an
operation of one table (`on_table`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from psnb._src.transport.message import InHalves, Message

Segment = dict[str, np.ndarray]
"""Some rows of a table: the part of each of its arrays for these rows."""

ALL = slice(None)

_SHOWN = 3
"""Names of tables in a message."""

SEGMENT = 4 << 20
"""Bytes of a table that are read, written or sent at a time: no server is blocked for long."""

MOST_PIECE = 4
"""How many segments are read at once, at most, of which a table takes its own rows."""


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


class TableChange(TableOperation, frozen=True):
    """Changes a table."""

    changes: ClassVar[bool] = True


class TableWrite(TableChange, frozen=True):
    """May be part of a closure's commit."""


class Push(TableWrite, frozen=True):
    """Lets the optimizer apply gradients.

    The last field of each is ``half``: whether gradients of float32 are `halved` on their way.
    (Those of several tables never are: they would have one exponent.)
    """

    collected: ClassVar[bool] = True

    def wire(self) -> tuple[Any, ...]:
        wire = super().wire()
        return tuple(InHalves(e) if _is_float32(e) else e for e in wire) if wire[-1] else wire


class ReadValues(TableRead, frozen=True):
    """Returns the values; with ``half`` they are `halved`."""

    half: bool = False


class GatherRows(TableRead, frozen=True):
    """Returns some rows (int64, ``(n,)``), ``(n, ...)``; ``half`` as for `ReadValues`."""

    rows: np.ndarray
    half: bool = False


class AssignValues(TableWrite, frozen=True):
    """Replaces the values; optimizer state stays."""

    values: np.ndarray


class AddValues(TableWrite, frozen=True):
    """Adds to the values."""

    values: np.ndarray


class AssignRows(TableWrite, frozen=True):
    """Replaces some rows; the last value of a row counts."""

    rows: np.ndarray
    values: np.ndarray


class AddRows(TableWrite, frozen=True):
    """Adds to some rows; all values of a row count."""

    rows: np.ndarray
    values: np.ndarray


class PushGradient(Push, frozen=True):
    """Lets the optimizer apply a gradient of the shape of the values.

    ``norm`` is the norm of the whole variable's gradient; if it is left out, this slice is the
    whole. ``rate`` is the learning rate, if it was computed before. With ``ranges`` the gradient is
    that of some numbers (`psnb._src.server.tables.presence`); all others stay as they are, and so
    does their count of updates, unless all are counted ``together``.
    """

    gradient: np.ndarray
    norm: float | None = None
    rate: float | None = None
    ranges: np.ndarray | None = None
    together: bool = False
    half: bool = False


class BlendValues(TableWrite, frozen=True):
    """Makes ``(1 - share) * value + term`` of each value."""

    collected: ClassVar[bool] = True

    shares: np.ndarray
    terms: np.ndarray


class MergeValues(TableWrite, frozen=True):
    """Merges what a copy has learned: adds its ``values``, moves towards its optimizer state.

    Each slot moves the ``share`` (0 to 1) of the way to the copy's, so it stays between the two;
    the step is the copy's if that is later. With ``ranges``, the state of all else stays;
    ``counts`` are the copy's counts of updates where they differ.
    """

    values: np.ndarray
    slots: Mapping[str, np.ndarray]
    step: int
    share: float
    ranges: np.ndarray | None = None
    counts: np.ndarray | None = None


class BagMembers(Message, frozen=True):
    """Which ids are in which bags; see `psnb._src.server.tables.bags`.

    Attributes
    ----------
    position : numpy.ndarray
        Which of the ids each member is, int32 ``(n,)``, one bag after the other.
    bounds : numpy.ndarray
        Where the members of each bag begin and end, int64 ``(bags + 1,)``.
    factors : numpy.ndarray
        What each member's row is multiplied by, of the table's dtype; empty for 1.
    """

    position: np.ndarray
    bounds: np.ndarray
    factors: np.ndarray


class RowsOperation(TableOperation, frozen=True):
    """An operation on rows of any number of tables of one kind, each named once.

    ``offsets`` say where the ids of each table begin and end, int64 ``(tables + 1,)``; without them
    all are of one table. With ``bags``, in one table, rows and gradients are those of bags of its
    ids: the sums of their members' rows.
    """

    def part(self, number: int) -> Any:
        """Return what it does in one of its tables, in views of its arrays."""
        raise NotImplementedError

    def _ids_of(self, number: int, offsets: np.ndarray | None) -> slice:
        return ALL if offsets is None else slice(offsets[number], offsets[number + 1])


class LookUpRows(RowsOperation, TableRead, frozen=True):
    """`look_up`; ``half`` as for `ReadValues`, in one table."""

    ids: np.ndarray
    offsets: np.ndarray | None = None
    training: bool = True
    bags: BagMembers | None = None
    half: bool = False

    def part(self, number: int) -> LookUpRows:
        at = self._ids_of(number, self.offsets)
        return LookUpRows(self.ids[at], None, self.training, None, self.half)


class FetchRows(TableRead, frozen=True):
    """`SparseTable.fetch`."""

    ids: np.ndarray


class PushRows(RowsOperation, Push, frozen=True):
    """Lets the optimizers apply the gradients of ids, ``(n, dim)``, distinct in each table.

    By table: ``norms`` are those of the whole embeddings' gradients; where one is left out, this
    shard's is the whole. ``rates`` are the learning rates, if they were computed before.
    """

    ids: np.ndarray
    gradients: np.ndarray
    offsets: np.ndarray | None = None
    norms: Sequence[float | None] | None = None
    rates: Sequence[float] | None = None
    bags: BagMembers | None = None
    half: bool = False

    def part(self, number: int) -> PushRows:
        at = self._ids_of(number, self.offsets)
        norms = self.norms and self.norms[number : number + 1]
        rates = self.rates and self.rates[number : number + 1]
        return PushRows(self.ids[at], self.gradients[at], None, norms, rates, None, self.half)


class MergeRows(TableWrite, frozen=True):
    """Merges what a copy has learned of distinct ids, as `MergeValues` does."""

    ids: np.ndarray
    values: np.ndarray
    slots: Mapping[str, np.ndarray]
    step: int
    share: float


class PutRows(TableWrite, frozen=True):
    """Replaces the rows of distinct ids by ``values`` (``(n, dim)``); that admits the ids."""

    ids: np.ndarray
    values: np.ndarray


class RecordUse(TableWrite, frozen=True):
    """Adds shows and clicks (float32, ``(n,)``) to the rows of ids that have one."""

    collected: ClassVar[bool] = True

    ids: np.ndarray
    shows: np.ndarray
    clicks: np.ndarray


class EndDay(TableWrite, frozen=True):
    """Lets shows and clicks decay, and counts a day unseen."""


class ReadUse(TableOperation, frozen=True):
    """`SparseTable.row_use`."""

    ids: np.ndarray


class ChooseLeaving(TableChange, frozen=True):
    """Has the rows of ids leave next, in their order, in place of those chosen before."""

    ids: np.ndarray


class ForgetWaiting(TableChange, frozen=True):
    """Limits how many ids wait for a row; those that were seen most often go on waiting."""

    most: int


class CountMinute(TableChange, frozen=True):
    """`SparseTable.count_minute`."""


class RemoveRows(TableChange, frozen=True):
    """Removes the rows of ids, if they have some."""

    ids: np.ndarray


class ShrinkTable(TableChange, frozen=True):
    """`SparseTable.shrink`."""

    threshold: float
    days: float
    forget_waiting: bool


class DescribeRows(TableOperation, frozen=True):
    """`SparseTable.describe_rows`."""


class ScanRows(TableOperation, frozen=True):
    """Asks for a piece of all rows, from ``start`` on; see `psnb._src.server.tables.looking`.

    ``numbering`` is that of the piece before. The answer is None if rows have other numbers now.
    """

    start: int
    numbering: str


class FindNearest(ScanRows, frozen=True):
    """Asks for the ``count`` rows nearest to each query (float64, ``(n, dim)``): `Nearest`."""

    queries: np.ndarray
    count: int
    metric: int


class MeasureRows(ScanRows, frozen=True):
    """Asks for counts of norms and days, and so many of the most used ids: `Measured`."""

    most_used: int


class ListIds(ScanRows, frozen=True):
    """Asks for those ids whose hashes have the bits ``part`` under a mask: `Listed`."""

    part: int
    mask: int


class ReadRows(TableOperation, frozen=True):
    """`psnb._src.server.tables.looking.read_rows`."""

    ids: np.ndarray


class Scanned(Message, frozen=True):
    """The answer to a piece, and where the next one begins; None at the end."""

    numbering: str
    then: int | None


class Nearest(Scanned, frozen=True):
    """Ids of rows near to each query, and float64 keys, the less the nearer: ``(n, count)``."""

    keys: np.ndarray
    ids: np.ndarray


class Measured(Scanned, frozen=True):
    """What some rows are.

    Attributes
    ----------
    rows, finite, zeros : int
        How many there are, of which all numbers are finite, and of which all are 0.
    total, least, most : float
        The sum, the least and the largest of the norms that are finite.
    bins, counts : numpy.ndarray
        The numbers of bins with norms above 0, and how many are there; int64.
    days : numpy.ndarray
        How many rows were unseen for 0, 1, ... days; empty if that is not recorded.
    used : numpy.ndarray
        The ids with the highest scores, the highest first.
    use : numpy.ndarray
        Their shows, clicks, days unseen and scores, float64 ``(n, 4)``.
    """

    rows: int
    finite: int
    zeros: int
    total: float
    least: float
    most: float
    bins: np.ndarray
    counts: np.ndarray
    days: np.ndarray
    used: np.ndarray
    use: np.ndarray


class Listed(Scanned, frozen=True):
    """Ids of rows."""

    ids: np.ndarray


class RowsThere(Message, frozen=True):
    """Which of some ids have a row (bool, ``(n,)``), and the rows of these."""

    there: np.ndarray
    values: np.ndarray


MOST_FOUND = 1 << 18
"""Ids that `Nearest` has at most, of all queries."""


class MeasureMoves(TableOperation, frozen=True):
    """Returns how many updates the optimizer has applied, and `MovedRows.moves`."""


class SkipUpdates(TableWrite, frozen=True):
    """Counts updates, or rows of them, that were left out because they were not finite."""

    count: int


class Preview(TableOperation, frozen=True):
    """`Table.preview`."""

    writes: Sequence[TableOperation]
    read: TableRead


COUNTING = (LookUpRows, FetchRows, Preview)
"""Reads that count as occurrences of their ids."""


def ids_used(of: TableOperation) -> int:
    """Return of how many ids an operation uses the rows, or makes them, at most."""
    if isinstance(of, Preview):
        return sum(ids_used(each) for each in (*of.writes, of.read))
    if isinstance(of, LookUpRows):
        return of.ids.size if of.training else 0
    used = isinstance(of, FetchRows | PushRows | MergeRows | PutRows)
    return of.ids.size if used else 0  # type: ignore[attr-defined]


class ReadState(TableOperation, frozen=True):
    """`Table.state`."""


class ReadOptimizer(TableOperation, frozen=True):
    """Returns the optimizer as it is now."""


class ReadRate(TableOperation, frozen=True):
    """Returns the learning rate of the next push, for views; NaN if there is none."""


class TuneOptimizer(TableChange, frozen=True):
    """Changes hyperparameters of the optimizer, from the next update on."""

    descriptive: ClassVar[bool] = True

    hyperparameters: Mapping[str, Any]


class CountUpdates(TableOperation, frozen=True):
    """Returns how many updates the optimizer has applied."""


class CountSkipped(TableOperation, frozen=True):
    """Returns how many updates were skipped, since the table was made."""


class MakeRoom(TableChange, frozen=True):
    """`Table.make_room`."""

    rows: int


class ClearTable(TableChange, frozen=True):
    """`Table.clear`."""


class PutSegment(TableChange, frozen=True):
    """`Table.put`."""

    segment: Segment


class FinishTable(TableChange, frozen=True):
    """`Table.finish`, and `Table.take_beside` if there is something; returns `Table.excess`."""

    tail: Segment
    beside: Segment = msgspec.field(default_factory=dict)


class RoundWeights(Message, frozen=True):
    """What the closures of a round count.

    Attributes
    ----------
    each : sequence of float
        Of the closures that pushed, in their order.
    total : float
        Of all, those without gradients too; above 0.
    """

    each: Sequence[float]
    total: float


def names_of_tables(names: Sequence[str]) -> str:
    """Return the names of tables, for messages; of many the first ones."""
    more = len(names) - _SHOWN
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown} and {more} more" if more > 0 else shown


class ShardOperation(Operation, frozen=True):
    """An operation of a shard."""

    changes: ClassVar[bool] = True


class OnTables(ShardOperation, frozen=True):
    """An operation of tables that the shard holds."""

    nested: ClassVar[bool] = True

    tables: tuple[str, ...]
    operation: TableOperation

    def __str__(self) -> str:
        """Return the names, for messages."""
        return f"{self.operation} of {names_of_tables(self.tables)}"

    def without(self, table: str) -> list[OnTables]:
        """Return what is left of it without a table."""
        if table not in self.tables:
            return [self]
        return [each for each in self.parts() if each.tables != (table,)]

    def on(self, table: str) -> TableOperation:
        """Return what it does in one of its tables."""
        of = self.operation
        found: TableOperation = of
        if len(self.tables) > 1 and isinstance(of, RowsOperation):
            found = of.part(self.tables.index(table))
        return found

    def parts(self) -> list[OnTables]:
        """Return the same as operations of one table each."""
        of = self.operation
        if len(self.tables) == 1 or not isinstance(of, RowsOperation):
            return [self]
        return [OnTables((name,), of.part(at)) for at, name in enumerate(self.tables)]


def on_table(name: str, operation: TableOperation) -> OnTables:
    """Return an operation of one table."""
    return OnTables((name,), operation)


def _is_float32(field: Any) -> bool:
    return isinstance(field, np.ndarray) and field.dtype == np.float32
