"""Local copies of tables, for workers that train locally between exchanges. Pure, no locks.

A copy is a table of the same kind as on the server, with the same optimizer. The values that were
fetched are kept too: the difference is what the worker has learned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import Admission
from psnb._src.server.tables.dense import DenseTable, composed
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.presence import pieces, union, whole
from psnb._src.server.tables.row_index import GrowingRowIndex
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.states import COUNTS

Make = Callable[[], object]
"""Makes a change for which all memory is reserved."""


class _Fetched(Admission):
    """Only ids that were fetched have rows."""

    def may_enter(self, ids: np.ndarray, seed: int) -> np.ndarray:
        return np.zeros(ids.size, bool)


class LocalTable(ABC):
    """A copy of a parameter's part on one shard.

    Attributes
    ----------
    table : DenseTable or SparseTable
        The copy.
    """

    table: DenseTable | SparseTable

    @abstractmethod
    def missing(self, ids: np.ndarray | None) -> np.ndarray | None:
        """Return the distinct ids that are still to be fetched; None for no ids."""

    @abstractmethod
    def install(self, ids: np.ndarray | None, state: Mapping[str, np.ndarray]) -> None:
        """Load what was fetched for these ids, unless it is here already."""

    @abstractmethod
    def reserve_write(self, write: ops.TableOperation) -> list[Make]:
        """Get the memory to repeat a write of the server, and return what does that.

        It does not count as learned here.
        """

    @abstractmethod
    def reserve_push(self, push: ops.Push | ops.BlendValues) -> list[Make]:
        """Get the memory to apply gradients here, or to blend, and return what does that."""

    @abstractmethod
    def learned(self, share: float) -> Sequence[ops.TableWrite]:
        """Return the writes that send a share of the learned changes."""


class LocalDense(LocalTable):
    """A copy of a slice of a variable.

    Parameters
    ----------
    name : str
        For messages.
    state : mapping
        What was fetched; see `DenseTable.state`.
    optimizer : Optimizer or None
        The parameter's.
    """

    def __init__(
        self, name: str, state: Mapping[str, np.ndarray], optimizer: Optimizer | None
    ) -> None:
        self.table: DenseTable = DenseTable(name, state["values"], optimizer)
        self.table.load(dict(state))
        self._fetched = DenseTable(name, state["values"], None)
        # The ranges that have got a gradient: an empty one at first, None for the whole slice.
        self._pushed: np.ndarray | None = np.empty((0, 2), np.int64)
        self._pushes = 0
        self._blend: ops.BlendValues | None = None  # all of them, in order

    def missing(self, ids: np.ndarray | None) -> np.ndarray | None:
        return None

    def install(self, ids: np.ndarray | None, state: Mapping[str, np.ndarray]) -> None:
        pass

    def reserve_write(self, write: ops.TableOperation) -> list[Make]:
        if isinstance(write, ops.SkipUpdates):
            return []
        return [table.reserve(write) for table in (self.table, self._fetched)]

    def reserve_push(self, push: ops.Push | ops.BlendValues) -> list[Make]:
        # Blends are sent as such, so they do not count as learned.
        blends = isinstance(push, ops.BlendValues)
        tables = (self.table, self._fetched) if blends else (self.table,)
        return [*(table.reserve(push) for table in tables), partial(self._note, push)]

    def _note(self, push: ops.Push | ops.BlendValues) -> None:
        if isinstance(push, ops.BlendValues):
            self._blend = composed(self._blend, push)
        else:
            assert isinstance(push, ops.PushGradient)
            self._pushed = union(self._pushed, push.ranges)
            self._pushes += 1

    def learned(self, share: float) -> Sequence[ops.TableWrite]:
        found: list[ops.TableWrite] = []
        if (blend := self._blend) is not None:
            # Not the difference to the fetched values: others have moved them meanwhile. And first:
            # the difference after the blend has the earlier learned changes, too.
            part = blend.terms.dtype.type(share)
            found.append(ops.BlendValues(blend.shares * part, blend.terms * part))
        if self._pushes:
            state = self.table.state()
            step, counts = int(state["step"][0]), state.get(COUNTS)
            values = self._difference(state["values"]) * state["values"].dtype.type(share)
            found.append(ops.MergeValues(values, _slots(state), step, share, self._pushed, counts))
        return found

    def _difference(self, values: np.ndarray) -> np.ndarray:
        """Return what was learned; 0 for what has had no gradient, also if it is not finite."""
        found, fetched = np.zeros_like(values), self._fetched.read().reshape(-1)
        ranges = whole(fetched.size) if self._pushed is None else self._pushed
        for columns, _ in pieces(ranges):
            now, before = values.reshape(-1)[columns], fetched[columns]
            np.subtract(now, before, out=found.reshape(-1)[columns], where=now != before)
        return found


class LocalSparse(LocalTable):
    """A copy of rows of an embedding.

    Parameters
    ----------
    name : str
        For messages.
    state : mapping
        What was fetched, for any ids; see `SparseTable.fetch`. It gives the form only, and is not
        loaded.
    optimizer : Optimizer or None
        The parameter's.
    """

    def __init__(
        self, name: str, state: Mapping[str, np.ndarray], optimizer: Optimizer | None
    ) -> None:
        dim, dtype = state["values"].shape[1], state["values"].dtype.str

        def rows(optimizer: Optimizer | None) -> SparseTable:
            return SparseTable(
                name, dim, None, 0, 1, dtype, Constant(0.0), 0, optimizer, _Fetched()
            )

        self.table: SparseTable = rows(optimizer)
        self._fetched = rows(None)
        self._asked = GrowingRowIndex()
        self._pushed: list[np.ndarray] = []

    def missing(self, ids: np.ndarray | None) -> np.ndarray | None:
        if ids is None:
            return None
        new = np.unique(ids[self._asked.find(ids) < 0])
        return new if new.size else None

    def install(self, ids: np.ndarray | None, state: Mapping[str, np.ndarray]) -> None:
        new = self._asked.find(state["ids"]) < 0
        rows = {name: array if name == "step" else array[new] for name, array in state.items()}
        for table in (self.table, self._fetched):
            table.put(rows)
            table.advance(int(state["step"][0]))
        if ids is not None:
            self._asked.locate(ids)

    def reserve_write(self, write: ops.TableOperation) -> list[Make]:
        # The other writes of an embedding are counts, which are not read here.
        if not isinstance(write, ops.PutRows):
            return []
        here = self._asked.find(write.ids) >= 0
        known = ops.PutRows(write.ids[here], write.values[here])
        return [table.reserve(known) for table in (self.table, self._fetched)]

    def reserve_push(self, push: ops.Push | ops.BlendValues) -> list[Make]:
        assert isinstance(push, ops.PushRows)
        return [self.table.reserve(push), partial(self._pushed.append, push.ids)]

    def learned(self, share: float) -> Sequence[ops.TableWrite]:
        if not self._pushed:
            return ()
        state = self.table.fetch(np.unique(np.concatenate(self._pushed)))
        ids = state["ids"]
        values = (state["values"] - self._fetched.lookup(ids)) * state["values"].dtype.type(share)
        return [ops.MergeRows(ids, values, _slots(state), int(state["step"][0]), share)]


def _slots(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name.removeprefix("slot."): array
        for name, array in state.items()
        if name.startswith("slot.")
    }
