"""Local copies of tables, for workers that train locally between exchanges. Pure, no locks.

A copy is a table of the same kind as on the server, with the same optimizer. The values that were
fetched are kept too: the difference is what the worker has learned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from psnb._src.server import (
    Admission,
    BlendValues,
    Constant,
    DenseTable,
    GrowingRowIndex,
    MergeRows,
    MergeValues,
    Optimizer,
    Push,
    PushRows,
    PutRows,
    SkipUpdates,
    SparseTable,
    TableOperation,
    TableWrite,
    composed,
)


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
    def write(self, write: TableOperation) -> None:
        """Repeat a write that the server has made; it does not count as learned here."""

    @abstractmethod
    def push(self, push: Push | BlendValues) -> None:
        """Let the optimizer apply gradients here, or blend."""

    @abstractmethod
    def learned(self, share: float) -> TableWrite | None:
        """Return the write that sends a share of what was learned; None if it is nothing."""


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
        self._pushed = False
        self._blend: BlendValues | None = None  # all of them, one after the other

    def missing(self, ids: np.ndarray | None) -> np.ndarray | None:
        return None

    def install(self, ids: np.ndarray | None, state: Mapping[str, np.ndarray]) -> None:
        pass

    def write(self, write: TableOperation) -> None:
        if not isinstance(write, SkipUpdates):
            self.table.run(write)
            self._fetched.run(write)

    def push(self, push: Push | BlendValues) -> None:
        self.table.run(push)
        if isinstance(push, BlendValues):
            self._blend = composed(self._blend, push)
        else:
            self._pushed = True

    def learned(self, share: float) -> TableWrite | None:
        if (blend := self._blend) is not None:
            # Not the difference to what was fetched: others have moved the values meanwhile.
            part = blend.terms.dtype.type(share)
            return BlendValues(blend.shares * part, blend.terms * part)
        if not self._pushed:
            return None
        state = self.table.state()
        values = (state["values"] - self._fetched.read()) * state["values"].dtype.type(share)
        return MergeValues(values, _slots(state), int(state["step"][0]), share)


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

    def write(self, write: TableOperation) -> None:
        # The other writes of an embedding are counts, which are not read here.
        if isinstance(write, PutRows):
            here = self._asked.find(write.ids) >= 0
            for table in (self.table, self._fetched):
                table.assign(write.ids[here], write.values[here])

    def push(self, push: Push | BlendValues) -> None:
        assert isinstance(push, PushRows)
        self.table.run(push)
        self._pushed.append(push.ids)

    def learned(self, share: float) -> TableWrite | None:
        if not self._pushed:
            return None
        state = self.table.fetch(np.unique(np.concatenate(self._pushed)))
        ids = state["ids"]
        values = (state["values"] - self._fetched.lookup(ids)) * state["values"].dtype.type(share)
        return MergeRows(ids, values, _slots(state), int(state["step"][0]), share)


def _slots(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name.removeprefix("slot."): array
        for name, array in state.items()
        if name.startswith("slot.")
    }
