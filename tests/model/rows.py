"""Rows: a table with a bound on each shard, to which each step pushes beside all else.

A step has an id of its own, the step's number, and pushes what its attempt adds, and the id. So it
can be told whose a row is, whatever other ids had it before. Rows leave for others, and in minutes
of their own; a follower on each shard takes over what has changed, now and then, as deltas do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from psnb._src.server.operations import CreateSparse
from psnb._src.server.optimizers import SGD
from psnb._src.server.server import Host
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.eviction.policy import Eviction
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import LookUpRows, OnTables, PushRows, on_table
from psnb._src.server.tables.sparse import SparseTable
from tests.coordinator.queues import commit_of
from tests.server.pair import plain

if TYPE_CHECKING:
    from tests.model.notebook import Notebook

ROWS = "rows"

BOUND, MINUTES = 6, 30

Rows = dict[int, tuple[float, float]]
"""By id: the sum of what attempts have added, and of ids."""


def creation() -> CreateSparse:
    """Return what makes the table of a shard."""
    how = 2, None, 0, 1, "float64", Constant(0.0), 0, SGD(1.0)
    return CreateSparse(ROWS, *how, eviction=Eviction(BOUND, "lru", None, MINUTES))


def lookup(number: int) -> OnTables:
    """Return what makes the row of a step."""
    return on_table(ROWS, LookUpRows(np.array([number], np.uint64)))


def push(number: int, added: int) -> OnTables:
    """Return what an attempt at a step pushes to a shard."""
    return on_table(
        ROWS, PushRows(np.array([number], np.uint64), -np.array([[added, number + 1.0]]))
    )


def table_of(host: Host, index: int) -> SparseTable:
    found = host._hosted[index].shard.table(ROWS)
    assert isinstance(found, SparseTable)
    return found


def rows_of(state: Any) -> Rows:
    return {
        key: (added, own)
        for key, (added, own) in zip(state["ids"].tolist(), state["values"].tolist(), strict=True)
    }


def assert_same(one: ParameterShard, other: ParameterShard) -> None:
    """Assert that a replica has the rows of its primary, and will let the same leave."""
    told = [
        (
            plain(shard.creation(ROWS), shard.table(ROWS).state()),
            {key: each.tolist() for key, each in shard.table(ROWS).beside().items()},
        )
        for shard in (one, other)
    ]
    assert told[0] == told[1], f"a replica has other rows: {told[0]} and {told[1]}"


class Followers:
    """What is known of the rows of each shard by what has changed since the last time."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, Rows]] = {}

    def follow(self, index: int, table: SparseTable) -> None:
        """Take over what has changed; assert that it is all there is then."""
        mark, known = self._known.get(index, ("", {}))
        changes, there = table.changed_since(mark), rows_of(table.state())
        if changes.rows is None:
            known = dict(there)
        else:
            for key in changes.removed.tolist():
                known.pop(key, None)
            ids = table.index.ids(changes.rows)
            known |= {key: there[key] for key in ids.tolist()}
        assert known == there, f"a delta of shard {index} gives {known}, and there is {there}"
        self._known[index] = changes.mark, known


def assert_own(notebook: Notebook, index: int, table: SparseTable) -> None:
    """Assert that each row is that of its id: of one attempt at its step, or of none."""
    assert table.index.count <= BOUND
    steps = {
        row: closure
        for closure in notebook.closures
        for row in range(closure.first, closure.first + closure.granted)
    }
    for row, (added, own) in rows_of(table.state()).items():
        if not (added or own):
            continue  # it was looked up
        closure = steps[row]
        turn = closure.execution.round
        counted = notebook.ending.get(-1 if turn is None else turn, ())
        share = len(counted) if commit_of(closure) in counted else 1
        told = f"row {row} of shard {index} has {added}, {own}, times {share}"
        assert round(own * share) == row + 1, f"{told}: it is another id's, too"
        attempts = {attempt for at, attempt in notebook.wrote if at == row}
        assert round(added * share) in {1 + (each << 20) for each in attempts}, told
