"""What a request may do with a table, and with a shard that holds it. Pure, only data.

A `TableOperation` names one of a table's methods and has its arguments; see there for what they
mean (`psnb._src.server.dense`, `psnb._src.server.sparse`, `psnb._src.server.table`). `OnTable` adds
the name of the table: so it is an operation of the shard, and a write in a closure's commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from psnb._src.transport import Message, halved, part_unwired, widened

Segment = dict[str, np.ndarray]
"""Some rows of a table: the part of each of its arrays for these rows."""


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
        return (
            tuple(halved(each) if _is_float32(each) else each for each in wire)
            if wire[-1]
            else wire
        )

    @classmethod
    def unwired(cls, *fields: Any) -> Any:
        return cls(*map(widened, fields))


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


class ShardOperation(Operation, frozen=True):
    """An operation of a shard."""

    changes: ClassVar[bool] = True


class OnTable(ShardOperation, frozen=True):
    """An operation of a table that the shard holds."""

    table: str
    operation: TableOperation

    def wire(self) -> tuple[Any, ...]:
        return "OnTable", self.table, self.operation.wire()

    @classmethod
    def unwired(cls, *fields: Any) -> OnTable:
        table, operation = fields
        return cls(table, part_unwired(operation))

    def __str__(self) -> str:
        """Return both names, for messages."""
        return f"{self.operation} of {self.table!r}"


def _is_float32(field: Any) -> bool:
    return isinstance(field, np.ndarray) and field.dtype == np.float32
