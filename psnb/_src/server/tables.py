"""The kinds of tables, and what must be compiled before one is made. Pure, without Dask."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from psnb._src.first_rows import Always
from psnb._src.server.dense import DenseTable
from psnb._src.server.operations import CreateDense, CreateSparse, CreateTable
from psnb._src.server.optimizers import Optimizer, Workspace
from psnb._src.server.sparse import SparseTable
from psnb._src.server.table import Table
from psnb.errors import InternalError

__all__ = ["OPTIMIZABLE", "DenseTable", "SparseTable", "Table", "build", "warm_up"]

OPTIMIZABLE = (np.dtype(np.float32), np.dtype(np.float64))
"""The dtypes that optimizers work on."""


def build(creation: CreateTable) -> Table:
    """Make a table."""
    match creation:
        case CreateDense(name, values, optimizer):
            return DenseTable(name, values, optimizer)
        case CreateSparse():
            return SparseTable(**msgspec.structs.asdict(creation))
    raise InternalError(f"there are no tables of {type(creation).__name__}")


def warm_up(creation: CreateTable) -> None:
    """Compile the kernels that a table will need, or load them from numba's cache.

    Takes a second or two the first time on a machine, a tenth of a second later. Any thread may
    call it except the event loop's, which must not be blocked.

    Parameters
    ----------
    creation : CreateTable
        What it will be made with.
    """
    if isinstance(creation, CreateDense):
        if (optimizer := _clipping(creation.optimizer)) is not None:
            value = np.zeros(1, creation.values.dtype)
            DenseTable("", value, optimizer).push(value)
    elif isinstance(creation, CreateSparse):
        # The smallest table: one row on its shard, whose id is admitted.
        rows = None if creation.rows is None else int(creation.index) + 1
        ids = np.array([creation.index], np.uint64)
        arguments = {**msgspec.structs.asdict(creation), "rows": rows}
        SparseTable(**arguments).lookup(ids)
        optimizer = _clipping(creation.optimizer)
        small = SparseTable(**{**arguments, "admission": Always(), "optimizer": optimizer})
        for training in (False, True):
            small.lookup(ids, training)
        if optimizer is not None:
            small.changed_since("")
            row = np.zeros((1, creation.dim), creation.dtype)
            small.push(ids, row)
            small.merge(ids, row, dict.fromkeys(optimizer.slots, row), 0, 1.0)
            if not isinstance(creation.admission, Always):  # some ids may have no row
                room = Workspace.of_rows(creation.dim, row.dtype)
                list(room.parts(np.array([-1, 0]), np.repeat(row, 2, 0), gaps=True))
        if creation.accessor is not None:
            counts = np.zeros(1, np.float32)
            small.record(ids, counts, counts)


def _clipping(optimizer: Optimizer | None) -> Optimizer | None:
    """Return an optimizer that clips by norm, which may be switched on later, if it may."""
    clips = optimizer is not None and optimizer.by_element
    return replace(optimizer, clipnorm=1.0) if clips else optimizer  # type: ignore[type-var]
