"""Making tables: which loops must be compiled first, and which requests make tables. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import msgspec
import numpy as np

from psnb._src.dask_compat.reach import unpickled
from psnb._src.server import operations as ops
from psnb._src.server.disk import DiskSpace
from psnb._src.server.hashing import each_once
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import require_room
from psnb._src.server.optimizer import Optimizer, Workspace
from psnb._src.server.scanning import keep_nearest, row_norms
from psnb._src.server.stored import widened
from psnb._src.server.tables import operations as table_ops
from psnb._src.server.tables.admission import Always
from psnb._src.server.tables.bags import MEMBER
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.eviction.policy import LFU, LRU
from psnb._src.server.tables.eviction.replacing import delete_ids, lower_stamps
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import Table
from psnb.errors import InternalError

COMPILING = 1 << 24
"""Bytes that must be there before kernels are compiled or loaded: without memory LLVM ends the
process. (Those of a table took at most 4 MB when they were loaded from numba's cache.)"""


def build(creation: ops.CreateTable, disk: DiskSpace | None = None) -> Table:
    """Make a table; `MemoryError` if there is no memory to compile its loops.

    Its files, if it has some, are where ``disk`` says.
    """
    require_room(COMPILING)
    match creation:
        case ops.CreateDense(name, values, optimizer):
            return DenseTable(name, values, optimizer)
        case ops.CreateSparse():
            return SparseTable(**msgspec.structs.asdict(creation), disk=disk)
    raise InternalError(f"there are no tables of {type(creation).__name__}")


def warm_up(creation: ops.CreateTable) -> None:
    """Compile the kernels that a table will need, or load them from numba's cache.

    Takes a second or two the first time on a machine, a tenth of a second later. Any thread may
    call it except the event loop's, which must not be blocked.

    Parameters
    ----------
    creation : CreateTable
        What it will be made with.
    """
    require_room(COMPILING)
    if isinstance(creation, ops.CreateDense):
        if (optimizer := _clipping(creation.optimizer)) is not None:
            value = np.zeros(1, creation.values.dtype)
            DenseTable("", value, optimizer).run(table_ops.PushGradient(value))
    elif isinstance(creation, ops.CreateSparse):
        # The smallest table: one row on its shard, whose id is admitted.
        rows = None if creation.rows is None else int(creation.index) + 1
        ids = np.array([creation.index], np.uint64)
        arguments = {**msgspec.structs.asdict(creation), "rows": rows, "storage": "memory"}
        SparseTable(**arguments).lookup(ids)
        optimizer = _clipping(creation.optimizer)
        small = SparseTable(**{**arguments, "admission": Always(), "optimizer": optimizer})
        for training in (False, True):
            small.lookup(ids, training)
        row = np.zeros((1, creation.dim), small.computed)
        small.changed_since("")
        small.run(table_ops.PutRows(ids, row))
        each_once(ids)  # of what is loaded
        members = np.zeros(1, MEMBER), np.array([0, 1]), row[0, :0]
        bags = table_ops.BagMembers(*members)
        small.run(table_ops.LookUpRows(ids, None, False, bags))
        if optimizer is not None:
            small.run(table_ops.PushRows(ids, row, bags=bags))
            slots = {name: small.column(f"slot.{name}", slice(1)) for name in optimizer.slots}
            learned = {name: widened(slot) for name, slot in slots.items()}
            small.run(table_ops.MergeRows(ids, row, learned, 0, 1.0))
            if not isinstance(creation.admission, Always):  # some ids may have no row
                room = Workspace.of_rows(creation.dim, row.dtype)
                some = np.array([-1, 0])
                list(room.parts(some, some.view(np.uint64), np.repeat(row, 2, 0), gaps=True))
        if creation.accessor is not None:
            counts = np.zeros(1, np.float32)
            small.run(table_ops.RecordUse(ids, counts, counts))
        if creation.eviction is not None:
            evict = LFU if creation.eviction.counts else LRU
            eviction = replace(creation.eviction, max_rows=3, evict=evict)
            full = SparseTable(**{**arguments, "admission": Always(), "eviction": eviction})
            for more in range(4):  # one of them leaves
                full.lookup(ids + np.uint64(more))
            full.run(table_ops.RemoveRows(full.index.ids(slice(1))))
            lower_stamps(np.zeros(0, np.uint32), np.uint32(0))
            delete_ids(np.zeros(1, np.uint64), np.zeros(1, np.int32), read_only(ids[:0]))


@cache
def warm_up_scans() -> None:
    """Do the same for loops over all rows, which few tables need; once in a process."""
    require_room(COMPILING)
    query, ids = read_only(np.zeros((1, 1))), read_only(np.zeros(1, np.uint64))
    for dtype in (np.float32, np.float64):
        rows = read_only(np.zeros((1, 1), dtype))
        keep_nearest(rows, ids, query, 0, np.zeros((1, 1)), np.zeros((1, 1), np.uint64), 0)
        row_norms(rows, np.zeros(1))


def _clipping(optimizer: Optimizer | None) -> Optimizer | None:
    """Return an optimizer that clips by norm, which may be switched on later, if it may."""
    clips = optimizer is not None and optimizer.by_element
    return replace(optimizer, clipnorm=1.0) if clips else optimizer  # type: ignore[type-var]


def unpacked(operation: table_ops.Operation) -> table_ops.Operation:
    """Return an operation with what was pickled apart from its message."""
    if isinstance(operation, ops.OnShard) and isinstance(operation.operation, ops.Packed):
        return ops.OnShard(operation.shard, unpickled(operation.operation.payload))
    return operation


_LONG = (ops.Packed, ops.CreateTable, ops.ReadsFiles)


def takes_long(operation: table_ops.Operation) -> bool:
    """Return whether it makes tables, compiles loops, reads files or must be unpickled apart."""
    if isinstance(operation, ops.OnShard):
        return isinstance(operation.operation, _LONG) or begins_scan(operation)
    return bool(to_make(operation))


def begins_scan(operation: table_ops.Operation) -> bool:
    """Return whether an operation is the first piece of a question about all rows of a table."""
    match operation:
        case ops.OnShard(_, table_ops.OnTables(_, table_ops.ScanRows(start=0))):
            return True
    return False


def reads_files(operation: table_ops.Operation) -> bool:
    """Return whether the server is to read files for an operation."""
    return isinstance(operation, ops.OnShard) and isinstance(operation.operation, ops.ReadsFiles)


def to_make(operation: table_ops.Operation) -> list[tuple[int, ops.CreateTable]]:
    """Return the tables that an operation will make, and on which shard."""
    match operation:
        case ops.OnShard(shard, ops.CreateTable() as creation):
            return [(shard, creation)]
        case ops.RepeatChange(shard=shard, change=ops.CreateTable() as creation):
            return [(shard, creation)]
        case ops.SyncReplica(shard=shard, steps=steps):
            return [(shard, each) for each in steps if isinstance(each, ops.CreateTable)]
    return []
