"""BatchRows: the rows that one batch uses, each once, and the way back for their gradients. Pure.

A batch names its ids, table by table; each table numbers its distinct ids by *positions*, from 0.
Missing rows are fetched for all tables and variables in one round trip to each server, and all
gradients are pushed in another one. A framework computes with positions, which are small, whatever
the ids are. Belongs to one thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.client.arguments import checked_ids
from psnb._src.client.dense_shards import Blend, DenseShards, PartialGradient
from psnb._src.client.embedding import Embedding
from psnb._src.client.fused import RowsPushed, reading_rows
from psnb._src.client.handles import Handle, shards_of
from psnb._src.client.ids import Ids
from psnb._src.client.pull import push_together
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.updates import fetch_together
from psnb._src.client.variable import Variable
from psnb._src.server.hashing import distinct_within
from psnb._src.server.tables.row_index import GrowingRowIndex
from psnb._src.utils.arrays import bits_of
from psnb._src.utils.phases import PULL, PUSH, counted_as
from psnb._src.worker.resources import latest_element
from psnb.errors import InvalidArrayError

Pushed = np.ndarray | Blend | PartialGradient | list[Any]
"""A push to a variable; the items of a list are pushed one after the other."""


_NO_IDS = np.empty(0, np.uint64)


class _TableRows:
    """The distinct ids of one table, and how many of their rows were fetched."""

    def __init__(self, table: Embedding, shards: SparseShards) -> None:
        self.table, self.shards = table, shards
        self.fetched = 0
        self.found = _NO_IDS
        self._index: GrowingRowIndex | None = None  # made when ids come a second time

    def locate(self, flat: np.ndarray) -> np.ndarray:
        """Return the position of each id, if there were some before; new ids get the next ones."""
        if self._index is None:
            self._index = GrowingRowIndex()
            self._index.locate(self.found)
        found = self._index.locate(flat)
        self.found = self._index.ids()
        return found


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
        self._by_handle: dict[object, _TableRows] = {}

    @counted_as(PULL)
    def locate(
        self, wanted: Mapping[Embedding, Sequence[ArrayLike]]
    ) -> dict[Embedding, list[np.ndarray]]:
        """Return the positions of ids among the rows of their tables.

        Parameters
        ----------
        wanted : mapping of Embedding to sequence of array_like of int
            By table its ids, each of any shape.

        Returns
        -------
        dict
            The same, with an int64 array of the shape of each.

        Raises
        ------
        InvalidArrayError, IdOutOfRangeError
            If they are not ids of the table.
        """
        if not wanted:
            return {}
        known = self._by_handle
        tables = [known[each] if each in known else self._rows_of(each) for each in wanted]
        arrays, flat = _checked(tables, list(wanted.values()))
        sizes = [
            several[0].size if len(several) == 1 else sum(each.size for each in several)
            for several in arrays
        ]
        bounds = [0, *accumulate(sizes)]
        # All in one call: a table's ids are so few that a call takes longer.
        numbered = distinct_within(flat, bounds)
        found: dict[Embedding, list[np.ndarray]] = {}
        for at, (table, several) in enumerate(zip(wanted, arrays, strict=True)):
            rows, (ids, position) = tables[at], numbered[at]
            if rows.found is _NO_IDS:
                rows.found = ids
            else:
                position = rows.locate(ids)[position]
            plain = len(several) == 1 and several[0].ndim == 1
            found[table] = [position] if plain else _shaped(position, several)
        return found

    def counts(self) -> dict[Embedding, int]:
        """Return how many rows of each table the batch uses."""
        return {each.table: each.found.size for each in self._tables.values()}

    def find(self, table: Embedding, number: int) -> int | None:
        """Return the position of an id; None if the batch does not use it."""
        at = np.flatnonzero(self._rows_of(table).found == np.uint64(number))
        return int(at[0]) if at.size else None

    @counted_as(PULL)
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
        new = [each for each in self._tables.values() if each.found.size > each.fetched]
        dense = {variable: shards_of(variable).reading() for variable in variables}
        if not (dense or new):
            return {}, {}
        wanted = [
            (each.shards, Ids(each.found[each.fetched :], each.shards.padding_idx, distinct=True))
            for each in new
        ]
        reading = reading_rows(wanted, training=self._training)
        fetched = fetch_together([*dense.values(), *(each for _, each in reading)])
        rows: dict[Embedding, np.ndarray] = {}
        for (numbers, _), values in zip(reading, fetched[len(dense) :], strict=True):
            for number, value in zip(numbers, values, strict=True):
                rows[new[number].table] = value
        for each in new:
            each.fetched = each.found.size
        return dict(zip(dense, fetched, strict=False)), rows

    @counted_as(PUSH)
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
        dense: list[tuple[DenseShards, Any]] = []
        rows: dict[_TableRows, RowsPushed] = {}
        for handle, gradient in gradients.items():
            if handle in self._by_handle or isinstance(handle, Embedding):
                table: Any = handle
                of = self._by_handle.get(table) or self._rows_of(table)
                at: Any = slice(of.found.size)
                if used is not None and table in used:
                    at = used[table]
                if of.found.size:
                    ids = Ids(of.found[at], of.shards.padding_idx, distinct=True)
                    own: Any = gradient
                    rows[of] = of.shards, ids, own[at], None, None
            else:
                dense.append((shards_of(handle), gradient))
        if not math.isfinite(loss) and (
            any(shards.refuses_nonfinite for shards, _ in dense)
            or any(each.shards.refuses_nonfinite for each in rows)
        ):
            raise InvalidArrayError(
                f"the loss is {loss}, so nothing of this step was written. Mend the model or its "
                "data, or make all parameters with nonfinite='skip' or 'allow'"
            )
        push_together(dense, [*rows.values()], weight=weight)  # the weight also without a push

    def _rows_of(self, table: Embedding) -> _TableRows:
        shards = shards_of(table)
        if shards.tables not in self._tables:
            self._tables[shards.tables] = _TableRows(table, shards)
        found = self._by_handle[table] = self._tables[shards.tables]
        return found


def _checked(
    tables: Sequence[_TableRows], wanted: Sequence[Sequence[ArrayLike]]
) -> tuple[Sequence[Sequence[np.ndarray]], np.ndarray]:
    """Return arrays of ids, and all ids as uint64 along one axis; see `checked_ids`."""
    given: Any = [each for several in wanted for each in several]
    plain = {type(each) for each in given} == {np.ndarray} and given[0].dtype.kind in "iu"
    ranges = [True for each in tables if each.shards.rows is not None]
    if plain and not ranges and len({each.dtype for each in given}) == 1:  # mostly, and fast
        return wanted, bits_of(np.concatenate(given, axis=None))  # type: ignore[return-value]
    checked = [
        [checked_ids(each, rows.shards.name, rows.shards.rows) for each in several]
        for rows, several in zip(tables, wanted, strict=True)
    ]
    return checked, np.concatenate([each for several in checked for each in several], axis=None)


def _shaped(found: np.ndarray, like: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the parts of an array, each of the shape of another one."""
    if len(like) == 1:
        return [found.reshape(like[0].shape)]
    parts = np.split(found, np.cumsum([each.size for each in like])[:-1])
    return [part.reshape(each.shape) for part, each in zip(parts, like, strict=True)]


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
