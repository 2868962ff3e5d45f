"""Writes of tables, by name: each is one operation."""

from __future__ import annotations

from typing import Any

import numpy as np

from psnb._src.server.hashing import summed
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import Table


def push(
    table: Table, ids: Any, gradients: Any = None, norm: float | None = None, **named: Any
) -> None:
    """Push gradients to a table of either kind, those of equal ids summed as by a client."""
    if not isinstance(table, SparseTable):
        return table.run(ops.PushGradient(ids, gradients, **named))
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and np.unique(ids).size < ids.size:
        ids, gradients = summed(ids, gradients)
    norms = None if norm is None else [norm]
    return table.run(ops.PushRows(ids, gradients, None, norms, **named))


def merge(table: Table, *fields: Any) -> None:
    """Merge what a copy has learned."""
    table.run((ops.MergeRows if isinstance(table, SparseTable) else ops.MergeValues)(*fields))


def assign(table: Table, *fields: Any) -> None:
    """Replace values, or rows."""
    table.run((ops.PutRows if isinstance(table, SparseTable) else ops.AssignValues)(*fields))
