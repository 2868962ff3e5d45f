"""Exported: what a framework gives to be written, and what it makes of that when it is loaded.

A framework has two small parts. One makes an `Exported` of a model (`Exportable.to_export`). The
other is a module ``<framework>_program`` here: without Dask, its ``load(manifest, programs,
dense, tables)`` makes a `Computation` of what was written, or raises ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from psnb._src.data.ragged import Ragged
from psnb._src.models.export.feeds import Fetch, ModelFeed
from psnb._src.models.export.sources import DenseSources
from psnb._src.models.export.tables import ExportedTable, StoredTable


class RowChunk(NamedTuple):
    """Some rows of a table.

    Attributes
    ----------
    ids : numpy.ndarray
        uint64 ``(n,)``, distinct over all chunks; ascending from 0 if the table has fixed rows.
    rows : numpy.ndarray
        ``(n, dim)``.
    scores : numpy.ndarray or None
        How much each row is used, if that is recorded.
    """

    ids: np.ndarray
    rows: np.ndarray
    scores: np.ndarray | None = None


@dataclass(frozen=True)
class TableSource(ExportedTable):
    """A table whose rows are to be written.

    Attributes
    ----------
    scored : bool
        Whether chunks have scores.
    chunks : callable
        Fetches the rows, chunk by chunk.
    """

    scored: bool
    chunks: Callable[[], Iterator[RowChunk]]


@dataclass(frozen=True)
class Exported:
    """What is written of a model.

    Attributes
    ----------
    framework : str
        Which room loads it.
    feeds : sequence of ModelFeed
        What it needs of a batch.
    fetches : sequence of Fetch
        What it returns.
    outputs : object
        The structure of what it returns, with numbers in place of ``fetches``; see `nested`.
    dense : mapping of str to numpy.ndarray
        Its dense parameters.
    tables : mapping of str to TableSource
        Its tables.
    programs : mapping of str to bytes
        Its computation, in files by name.
    detail : mapping
        What else the framework needs; as JSON can hold it.
    written_with : mapping of str to str
        The versions of libraries.
    sources : DenseSources
        Where dense parameters are on the servers.
    """

    framework: str
    feeds: Sequence[ModelFeed]
    fetches: Sequence[Fetch]
    outputs: Any
    dense: Mapping[str, np.ndarray]
    tables: Mapping[str, TableSource]
    programs: Mapping[str, bytes]
    detail: Mapping[str, Any]
    written_with: Mapping[str, str]
    sources: DenseSources


class Computation(Protocol):
    """A computation that was loaded."""

    def __call__(
        self, feeds: Mapping[str, np.ndarray | Ragged], tables: Mapping[str, StoredTable]
    ) -> Sequence[np.ndarray]:
        """Return the arrays of all fetches. Thread-safe."""

    def with_dense(self, dense: Mapping[str, np.ndarray]) -> Computation:
        """Return the same with other dense parameters, of the same shapes and dtypes."""
