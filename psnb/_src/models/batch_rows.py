"""BatchRows: the rows that one batch uses, each once, and the way back for their gradients. Pure.

A batch names its ids, table by table; each table numbers its distinct ids by *positions*, from 0.
What is not here yet is fetched for all tables and variables in one round trip to each server, and
all gradients are pushed in another one. A framework computes with positions, which are small,
whatever the ids are. Belongs to one thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.parameters import (
    Blend,
    DistinctIds,
    Embedding,
    Handle,
    Variable,
    checked_ids,
    pull,
    push,
    shards_of,
)
from psnb._src.phases import PULL, counted_as
from psnb._src.server import GrowingRowIndex, distinct
from psnb.errors import GradientError


class _TableRows:
    """The distinct ids of one table, and how many of their rows were fetched."""

    def __init__(self, table: Embedding) -> None:
        self.table = table
        self.fetched = 0
        self._found = np.empty(0, np.uint64)
        # What the first call has found: the distinct ids and the positions.
        self.first = self._found, np.empty(0, np.intp)
        self._index: GrowingRowIndex | None = None  # made when ids come a second time

    def locate(self, flat: np.ndarray, like: _TableRows | None = None) -> np.ndarray:
        """Return the position of each id; those that were not here get the next ones.

        ``like`` has located the same ids first.
        """
        if not self._found.size:
            self.first = distinct(flat) if like is None else like.first
            self._found, position = self.first
            return position
        if self._index is None:
            self._index = GrowingRowIndex()
            self._index.insert(self._found)
        found = self._index.insert(flat)
        self._found = self._index.ids()
        return found

    def find(self, number: int) -> int | None:
        """Return the position of one id; None if it is not here."""
        at = np.flatnonzero(self._found == np.uint64(number))
        return int(at[0]) if at.size else None

    def ids(self, at: slice | np.ndarray) -> DistinctIds:
        """Return the ids at positions."""
        table = self.table
        return DistinctIds(self._found[at], table.name, None, table.padding_idx)

    @property
    def count(self) -> int:
        """How many ids there are."""
        return self._found.size


class BatchRows:
    """The rows of some embeddings that a batch uses.

    Parameters
    ----------
    training : bool
        False for evaluation, as in `psnb.pull`.
    """

    def __init__(self, *, training: bool = True) -> None:
        self._training = training
        # By the table, not by the handle: several handles of a table are one update.
        self._tables: dict[object, _TableRows] = {}

    @counted_as(PULL)
    def locate(
        self, table: Embedding, *ids: ArrayLike, like: Embedding | None = None
    ) -> list[np.ndarray]:
        """Return the positions of ids among the rows of their table.

        Parameters
        ----------
        table : Embedding
            Their table.
        *ids : array_like of int
            Each of any shape.
        like : Embedding, optional
            A table of which the very same ids were located first: the positions are the same.

        Returns
        -------
        list of numpy.ndarray
            For each of ``ids`` an int64 array of its shape.

        Raises
        ------
        GradientError, IdOutOfRangeError
            If they are no ids of the table.
        """
        checked = [checked_ids(each, table.name, table.rows) for each in ids]
        flat = [each.reshape(-1) for each in checked]
        found = self._rows_of(table).locate(
            flat[0] if len(flat) == 1 else np.concatenate(flat),
            None if like is None else self._rows_of(like),
        )
        ends = np.cumsum([each.size for each in flat])[:-1]
        parts = zip(np.split(found, ends), checked, strict=True)
        return [part.reshape(each.shape) for part, each in parts]

    def counts(self) -> dict[Embedding, int]:
        """Return how many rows of each table the batch uses."""
        return {each.table: each.count for each in self._tables.values()}

    def find(self, table: Embedding, number: int) -> int | None:
        """Return the position of an id; None if the batch does not use it."""
        return self._rows_of(table).find(number)

    def fetch(
        self, variables: Iterable[Variable] = ()
    ) -> tuple[dict[Variable, np.ndarray], dict[Embedding, np.ndarray]]:
        """Fetch variables and the rows that are not here yet, in one round trip to each server.

        Returns
        -------
        tuple
            The values of the variables; and for each table that has new ids their rows
            ``(n, dim)``, in the order of their positions.
        """
        wanted: dict[Handle, DistinctIds | None] = dict.fromkeys(variables)
        new = [each for each in self._tables.values() if each.count > each.fetched]
        wanted |= {each.table: each.ids(slice(each.fetched, None)) for each in new}
        found = pull(wanted, training=self._training) if wanted else {}
        for each in new:
            each.fetched = each.count
        rows = {each.table: found.pop(each.table) for each in new}
        return found, rows  # type: ignore[return-value]  # what is left are variables

    def push(
        self,
        gradients: Mapping[Handle, np.ndarray | Blend],
        used: Mapping[Embedding, np.ndarray] | None = None,
        loss: float = 0.0,
    ) -> None:
        """Push gradients in one round trip to each server; in a closure, at its end.

        Parameters
        ----------
        gradients : mapping
            For a variable its gradient or `Blend`; for an embedding the gradients of all its rows
            here, ``(n, dim)``. More rows than there are, of padding, are left out.
        used : mapping, optional
            Of embeddings whose rows were fetched in part for nothing: the positions ``(m,)`` of
            those that get their gradient.
        loss : float, optional
            Of which they are the gradients.

        Raises
        ------
        GradientError
            If a gradient is not finite; or the loss, though all gradients may be (those of a part
            of the model that it does not depend on): then the step has learned from no loss.
        """
        given: dict[Handle, object] = {}
        for handle, gradient in gradients.items():
            if isinstance(handle, Embedding):
                assert isinstance(gradient, np.ndarray)
                rows = self._rows_of(handle)
                at = (used or {}).get(handle, slice(rows.count))
                if rows.count:
                    given[rows.table] = rows.ids(at), gradient[at]
            else:
                given[handle] = gradient
        if not math.isfinite(loss) and any(shards_of(h).refuses_nonfinite for h in given):
            raise GradientError(
                f"the loss is {loss}, so nothing of this step was written. Mend the model or its "
                "data, or make all parameters with nonfinite='skip' or 'allow'"
            )
        if given:
            push(given)

    def _rows_of(self, table: Embedding) -> _TableRows:
        key = shards_of(table).key
        if key not in self._tables:
            self._tables[key] = _TableRows(table)
        return self._tables[key]
