"""The kinds of tables, and what must be compiled before one is made. Pure, without Dask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from psnb._src.server.admission import Always
from psnb._src.server.dense import DenseTable
from psnb._src.server.sparse import SparseTable
from psnb._src.server.table import Table

__all__ = ["OPTIMIZABLE", "TABLES", "DenseTable", "SparseTable", "Table", "warm_up"]

TABLES: Mapping[str, type[Table]] = {"create_dense": DenseTable, "create_sparse": SparseTable}
"""The operations that make a table, and of what kind."""

OPTIMIZABLE = (np.dtype(np.float32), np.dtype(np.float64))
"""The dtypes that optimizers work on."""


def warm_up(table: type[Table], arguments: Mapping[str, Any]) -> None:
    """Compile the kernels that a table will need, or load them from numba's cache.

    Takes a second or two the first time on a machine, a tenth of a second later. Any thread may
    call it except the event loop's, which must not be blocked.

    Parameters
    ----------
    table : type
        The kind of table.
    arguments : mapping of str to Any
        The arguments that it will be made with.
    """
    optimizer = arguments["optimizer"]
    if optimizer is not None:
        optimizer = replace(optimizer, clipnorm=1.0)  # clipnorm may be switched on later
    if table is DenseTable:
        if optimizer is not None:
            value = np.zeros(1, arguments["values"].dtype)
            DenseTable("", value, optimizer).push(value)
        return
    # The smallest table: one row on its shard, whose id is admitted.
    rows = None if arguments["rows"] is None else int(arguments["index"]) + 1
    ids = np.array([arguments["index"]], np.uint64)
    SparseTable(**{**arguments, "rows": rows}).lookup(ids)
    small = SparseTable(
        **{**arguments, "rows": rows, "admission": Always(), "optimizer": optimizer}
    )
    for training in (False, True):
        small.lookup(ids, training)
    if optimizer is not None:
        small.push(ids, np.zeros((1, arguments["dim"]), arguments["dtype"]))
