"""Writes of tables, by name: each is one operation."""

from __future__ import annotations

from typing import Any

from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import Table


def push(table: Table, *fields: Any, **named: Any) -> None:
    """Push gradients to a table of either kind."""
    kind = ops.PushRows if isinstance(table, SparseTable) else ops.PushGradient
    table.run(kind(*fields, **named))


def merge(table: Table, *fields: Any) -> None:
    """Merge what a copy has learned."""
    table.run((ops.MergeRows if isinstance(table, SparseTable) else ops.MergeValues)(*fields))


def assign(table: Table, *fields: Any) -> None:
    """Replace values, or rows."""
    table.run((ops.PutRows if isinstance(table, SparseTable) else ops.AssignValues)(*fields))
