"""Rows of a table as a Dask DataFrame, which is read in Dask's tasks."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb.errors import ConfigurationError


def frame_of_rows(table: Any, ids: range | np.ndarray, partition_rows: int) -> Any:
    """Return a Dask DataFrame; see `Embedding.to_dask`."""
    frames, pandas = frames_and_pandas("to_dask")
    starts = range(0, max(1, len(ids)), partition_rows)
    parts = [ids[start : start + partition_rows] for start in starts]
    index = pandas.Index(np.asarray(ids[:0], getattr(ids, "dtype", np.int64)), name="id")
    columns = {str(n): np.empty(0, table.dtype) for n in range(table.dim)}
    read = _RowReader(table, uuid.uuid4().hex)
    return frames.from_map(read, parts, meta=pandas.DataFrame(columns, index=index))


def frames_and_pandas(method: str) -> tuple[Any, Any]:
    """Return the modules of Dask's DataFrames and of pandas."""
    try:
        import pandas
        from dask import dataframe
    except ImportError as error:
        raise ConfigurationError(
            f"{method} makes a Dask DataFrame: pip install 'dask[dataframe]'"
        ) from error
    return dataframe, pandas


@dataclass(frozen=True)
class _RowReader:
    """Reads rows of a table as a frame of pandas.

    No two are equal for Dask: otherwise it would use the rows of an earlier moment for a later one.
    """

    table: Any  # an Embedding
    moment: str

    def __dask_tokenize__(self) -> str:
        return self.moment

    def __call__(self, ids: Any) -> Any:
        import pandas

        wanted = np.asarray(ids)
        rows = self.table.lookup(wanted, training=False)
        names = [str(number) for number in range(self.table.dim)]
        return pandas.DataFrame(rows, index=pandas.Index(wanted, name="id"), columns=names)
