"""The tables of an exported model, from the servers to a prediction. Thread-safe.

Rows are in files that are mapped into memory: only what a lookup touches is read. An id is found by
bisection among the ids, which are mapped as well.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from psnb._src.checkpoint.saved_table import SavedTable
from psnb._src.data.ragged import Ragged
from psnb._src.models.export.quantization import restored
from psnb._src.server.kernels import read_only
from psnb._src.server.tables.admission import Admission
from psnb._src.server.tables.initializers import Initializer
from psnb._src.utils.arrays import bits_of, integers_of
from psnb.errors import IdOutOfRangeError


@dataclass(frozen=True)
class ExportedTable:
    """A table, wherever its rows are.

    Attributes
    ----------
    name : str
        Its name.
    dim : int
        Floats a row.
    rows : int or None
        As `psnb.Embedding.rows`.
    dtype : numpy.dtype
        Of the rows, also where they are stored in another one.
    padding_idx : int or None
        The id that gives zeros.
    initializer, admission, seed
        How rows of ids begin that have none, and which ids get one.
    """

    name: str
    dim: int
    rows: int | None
    dtype: np.dtype
    padding_idx: int | None
    initializer: Initializer
    admission: Admission
    seed: int

    def known(self) -> dict[str, Any]:
        """Return these by name, for another one of the same table."""
        return {each.name: getattr(self, each.name) for each in fields(ExportedTable)}


@dataclass(frozen=True)
class StoredRows:
    """The rows that were exported.

    Attributes
    ----------
    dtype : numpy.dtype
        In which they are returned.
    stored : numpy.ndarray
        The rows, ``(n, dim)``.
    scales : numpy.ndarray or None
        By what each is multiplied, if they are int8.
    ids, places : numpy.ndarray or None
        Ids that have a row, ascending, and where it is; None if ids are the places.
    """

    dtype: np.dtype
    stored: np.ndarray
    scales: np.ndarray | None
    ids: np.ndarray | None
    places: np.ndarray | None

    def __len__(self) -> int:
        return len(self.stored)

    def found(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of ids (uint64 ``(n,)``), and which have none: theirs are arbitrary."""
        if self.ids is None or self.places is None:
            return self._taken(ids), np.zeros(ids.size, np.bool_)
        if not self.ids.size:
            empty = np.empty((ids.size, self.stored.shape[1]), self.dtype)
            return empty, np.ones(ids.size, np.bool_)
        # An id beyond all others is compared with the last one.
        at = np.minimum(np.searchsorted(self.ids, ids), self.ids.size - 1)
        return self._taken(self.places[at]), self.ids[at] != ids

    def _taken(self, places: np.ndarray) -> np.ndarray:
        scales = None if self.scales is None else self.scales.take(places)
        return restored(self.stored.take(places.astype(np.intp), axis=0), scales, self.dtype)


@dataclass(frozen=True)
class StoredTable(ExportedTable):
    """A table, as `psnb.Embedding` gives its rows for evaluation.

    Attributes
    ----------
    content : StoredRows or SavedTable
        Its rows: the exported ones, or a checkpoint's.
    """

    content: StoredRows | SavedTable

    def lookup(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows of ids of any shape, ``ids.shape + (dim,)``.

        An id without a row gives the initial values that its row would have, or zeros if it would
        not be admitted at once.

        Raises
        ------
        IdOutOfRangeError
            If an id is outside `rows`.
        InvalidArrayError
            If the ids are not integers.
        """
        flat = self._checked(ids)
        found, missing = self.content.found(flat)
        if missing.any():
            found[missing] = self._first(flat[missing])
        if self.padding_idx is not None:
            found[flat == np.uint64(self.padding_idx)] = 0
        return found.reshape(*ids.shape, self.dim)

    def lookup_bags(self, bags: Ragged, combiner: str) -> np.ndarray:
        """Return the rows of each bag, combined into one by ``sum``, ``mean`` or ``sqrtn``.

        A bag without ids gives zeros, and the padding does not count.
        """
        rows, offsets, lengths = self.lookup(bags.values), bags.offsets, bags.lengths
        found = np.zeros((len(bags), self.dim), self.dtype)
        some = lengths > 0
        if rows.size:
            found[some] = np.add.reduceat(rows, offsets[:-1][some])
        if combiner != "sum":
            counts = lengths
            if self.padding_idx is not None:
                real = self._checked(bags.values) != np.uint64(self.padding_idx)
                counts = np.diff(np.concatenate([[0], real.cumsum()])[offsets])
            divisors = np.maximum(counts, 1) if combiner == "mean" else np.sqrt(counts.clip(1))
            found /= divisors[:, None].astype(self.dtype)
        return found

    def _checked(self, ids: np.ndarray) -> np.ndarray:
        flat = integers_of(ids, f"ids of table {self.name!r}").reshape(-1)
        if self.rows is not None and flat.size:
            low, high = int(flat.min()), int(flat.max())
            if low < 0 or high >= self.rows:
                raise IdOutOfRangeError(
                    f"table {self.name!r} has {self.rows} rows, so ids are 0 to {self.rows - 1}; "
                    f"found id {low if low < 0 else high}"
                )
        return bits_of(flat)

    def _first(self, ids: np.ndarray) -> np.ndarray:
        found = np.zeros((ids.size, self.dim), self.dtype)
        if self.admission.min_count == 1:
            at = np.flatnonzero(self.admission.may_enter(ids, self.seed))
            first = np.empty((at.size, self.dim), self.dtype)
            self.initializer.fill(first, read_only(ids[at]), self.seed)
            found[at] = first
        return found
