"""What a request may do with a table, and with a shard that holds it. Pure, only data.

A `TableOperation` has the arguments of a table's method (`psnb._src.server.tables`). `OnTable` adds
the name of the table: so it is an operation of the shard, and a write in a closure's commit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from psnb._src.transport.message import InHalves, Message

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
        Of the closures that pushed, in their order.
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
