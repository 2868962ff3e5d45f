"""BatchRows: the rows that one batch uses, each once, and the way back for their gradients. Pure.

A batch names its ids, table by table; each table numbers its distinct ids by *positions*, from 0.
Missing rows are fetched for all tables and variables in one round trip to each server, and all
gradients are pushed in another one. A framework computes with positions, which are small, whatever
the ids are. Belongs to one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from xxhash import xxh3_64_intdigest

from psnb._src.client.arguments import checked_ids
from psnb._src.client.dense_shards import Blend, PartialGradient
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import Handle, shards_of
from psnb._src.client.ids import Ids
from psnb._src.client.pull import pull, push
from psnb._src.client.updates import weigh
from psnb._src.client.variable import Variable
from psnb._src.server.hashing import distinct
from psnb._src.server.tables.row_index import GrowingRowIndex
from psnb._src.utils.phases import PULL, counted_as
from psnb._src.worker.resources import latest_element
from psnb.errors import InvalidArrayError

Pushed = np.ndarray | Blend | PartialGradient | list[Any]
"""A push to a variable; the items of a list are pushed one after the other."""

_Distinct = tuple[np.ndarray, np.ndarray]


class _TableRows:
    """The distinct ids of one table, and how many of their rows were fetched.

    ``distinct`` returns what `psnb._src.server.hashing.distinct` does.
    """

    def __init__(self, table: Embedding, distinct: Callable[[np.ndarray], _Distinct]) -> None:
        self.table, self._distinct = table, distinct
        self.fetched = 0
        self.found = np.empty(0, np.uint64)
        self._index: GrowingRowIndex | None = None  # made when ids come a second time

    def locate(self, flat: np.ndarray) -> np.ndarray:
        """Return the position of each id; new ids get the next ones."""
        if not self.found.size:
            self.found, position = self._distinct(flat)
            return position
        if self._index is None:
            self._index = GrowingRowIndex()
            self._index.locate(self.found)
        found = self._index.locate(flat)
        self.found = self._index.ids()
        return found

    def ids(self, at: slice | np.ndarray) -> Ids:
        return Ids(self.found[at], self.table.padding_idx, distinct=True)

    @property
    def count(self) -> int:
        """How many ids there are."""
        return self.found.size


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
        self._known: dict[tuple[int, int], _Distinct] = {}  # by the size of ids, and their hash

    @counted_as(PULL)
    def locate(self, table: Embedding, *ids: ArrayLike) -> list[np.ndarray]:
        """Return the positions of ids among the rows of their table.

        Parameters
        ----------
        table : Embedding
            Their table.
        *ids : array_like of int
            Each of any shape.

        Returns
        -------
        list of numpy.ndarray
            For each of ``ids`` an int64 array of its shape.

        Raises
        ------
        InvalidArrayError, IdOutOfRangeError
            If they are not ids of the table.
        """
        checked = [checked_ids(each, table.name, table.rows) for each in ids]
        rows = self._rows_of(table)
        if len(checked) == 1:
            return [rows.locate(checked[0].reshape(-1)).reshape(checked[0].shape)]
        flat = [each.reshape(-1) for each in checked]
        found = rows.locate(np.concatenate(flat))
        parts = np.split(found, np.cumsum([each.size for each in flat])[:-1])
        return [part.reshape(each.shape) for part, each in zip(parts, checked, strict=True)]

    def counts(self) -> dict[Embedding, int]:
        """Return how many rows of each table the batch uses."""
        return {each.table: each.count for each in self._tables.values()}

    def find(self, table: Embedding, number: int) -> int | None:
        """Return the position of an id; None if the batch does not use it."""
        at = np.flatnonzero(self._rows_of(table).found == np.uint64(number))
        return int(at[0]) if at.size else None

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
        wanted: dict[Handle, Ids | None] = dict.fromkeys(variables)
        new = [each for each in self._tables.values() if each.count > each.fetched]
        wanted |= {each.table: each.ids(slice(each.fetched, None)) for each in new}
        found = pull(wanted, training=self._training) if wanted else {}
        for each in new:
            each.fetched = each.count
        rows = {each.table: found.pop(each.table) for each in new}
        return found, rows  # type: ignore[return-value]  # the rest are variables

    def push(
        self,
        gradients: Mapping[Handle, Pushed],
        used: Mapping[Embedding, np.ndarray] | None = None,
        loss: float = 0.0,
        weight: float | None = None,
    ) -> None:
        """Push gradients in one round trip to each server; in a closure, at its end.

        Parameters
        ----------
        gradients : mapping
            For a variable its gradient or `Blend`, or a list of both; for an embedding the
            gradients of all its rows here, ``(n, dim)``. More rows than there are, of padding, are
            left out.
        used : mapping, optional
            For embeddings with rows that were fetched in vain: the positions ``(m,)`` of the rows
            that get a gradient.
        loss : float, optional
            The loss that they are the gradients of.
        weight : float, optional
            The batch's weight in its round, as far as that is known.

        Raises
        ------
        InvalidArrayError
            If a gradient is not finite; or the loss, even if all gradients are (of a part of the
            model that it does not depend on): then the step has learned from no loss.
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
            raise InvalidArrayError(
                f"the loss is {loss}, so nothing of this step was written. Mend the model or its "
                "data, or make all parameters with nonfinite='skip' or 'allow'"
            )
        if weight is not None:  # also if there is nothing to push
            weigh(weight)
        if given:
            push(given)

    def _rows_of(self, table: Embedding) -> _TableRows:
        key = shards_of(table).tables
        if key not in self._tables:
            self._tables[key] = _TableRows(table, self._distinct)
        return self._tables[key]

    def _distinct(self, flat: np.ndarray) -> _Distinct:
        """Return what `distinct` does; ids that came before, for another table, are known.

        A linear and a deep part, say, have a table each for the same ids.
        """
        key = flat.size, xxh3_64_intdigest(flat.data)
        known = self._known.get(key)
        if known is None or not np.array_equal(known[0][known[1]], flat):
            known = self._known[key] = distinct(flat)
        return known


_SHOWN = 8


def batch_summary(fields: Iterable[tuple[str, np.ndarray]]) -> str:
    """Return shapes of a batch's fields, and the range of floats.

    Fields with numbers that are not finite come first. At the end is which element of its dataset
    the closure took last: the batch, unless it made the batch of several.
    """
    bad, good = [], []
    for name, array in fields:
        shape = list(array.shape)
        if array.dtype.kind != "f" or not array.size:
            good.append(f"{name} {shape} {array.dtype}")
            continue
        finite = array[np.isfinite(array)]
        span = f"{finite.min():.3g} to {finite.max():.3g}" if finite.size else "nothing finite"
        line = f"{name} {shape} {span}"
        if missing := array.size - finite.size:
            bad.append(f"{line}, {missing} not finite")
        else:
            good.append(line)
    lines = [*bad, *good]
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    taken = latest_element()
    source = f"; it is {taken} (elements count from 0)" if taken else ""
    return "; ".join(lines[:_SHOWN]) + more + source
