"""Direct: a process that writes outside of closures, at any time; see `psnb._src.client.direct`.

Each commit adds one to a row of its own, on some shards: on all of them, or on none. Where tables
go back to a mark meanwhile, it is wholly before that, or wholly after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from psnb._src.client.commit import UndecidedError, ask, resolve_in_doubt
from psnb._src.client.commit import commit as commit_on
from psnb._src.client.direct import CommitNumbers
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import PROCESS, Commit, Part
from psnb._src.server.operations import CreateDense
from psnb._src.server.tables.operations import AddRows, on_table
from psnb.errors import ServerUnresponsiveError
from tests.model.world import Process

if TYPE_CHECKING:
    from tests.model.notebook import Notebook

DIRECT, WRITER = "direct", f"{PROCESS}d"
MOST = 64
"""Commits that there can be."""


def creation() -> CreateDense:
    """Return what makes the table of a shard."""
    return CreateDense(DIRECT, np.zeros(MOST), None)


class _Written:
    """A commit: where, from which step to which, and whether it is done, if that is known."""

    def __init__(self, shards: Sequence[ShardId], begun: int) -> None:
        self.shards, self.begun = shards, begun
        self.ended: int | None = None
        self.done: bool | None = None


class Direct(Process):
    """A process that writes.

    Parameters
    ----------
    seed : int
        Of its own chance.
    notebook : Notebook
        Whose parameters it writes to.
    """

    def __init__(self, seed: int, notebook: Notebook) -> None:
        super().__init__(notebook.world, "another process")
        self._random, self._notebook = Random(seed), notebook
        self._numbers, self._written = CommitNumbers(), list[_Written]()

    def act(self) -> None:
        """Write, now and then."""
        if self._random.random() < 0.02 and len(self._written) < MOST:
            self._write()

    def _write(self) -> None:
        every = self._notebook.shards
        shards = tuple(self._random.sample(every, self._random.randint(1, 3)))
        row, made = len(self._written), _Written(shards, self.world.steps)
        self._written.append(made)
        number, settled = self._numbers.begin(shards)
        commit = Commit(WRITER, number, settled=settled, shards=shards)
        part = Part([on_table(DIRECT, AddRows(np.array([row]), np.ones(1)))])

        def ended(outcome: Any) -> None:
            undecided = isinstance(outcome, UndecidedError)
            if undecided and isinstance(outcome.reason, ServerUnresponsiveError):
                attempts = {WRITER: {number: 1}}
                finish = resolve_in_doubt(shards, attempts, (), ask, lambda error: None)
                self.world.drive(self, finish, lambda outcome: over())
                return
            made.done = None if undecided else outcome is None
            over()

        def over() -> None:
            made.ended = self.world.steps
            self._numbers.end(number)
            self.world.counts["direct commits"] += made.done is True

        parts = dict.fromkeys(shards, part)
        self.world.drive(self, commit_on(commit, parts, self.together, ask), ended)

    def check(self, values: Mapping[int, np.ndarray]) -> None:
        """Assert that each that is over is there wholly or not at all, and which."""
        notebook = self._notebook
        lost, risked, spans = notebook.lost_at, notebook.risked_at, notebook.spans
        for row, each in enumerate(self._written):
            begun, end = each.begun, each.ended
            if end is None:
                continue
            numbers = {shard.number for shard in each.shards}
            kept = {
                number
                for number in numbers
                if number in values and max(lost.get(number, -1), risked.get(number, -1)) < begun
            }
            found = {number for number, array in values.items() if array[row]}
            told = f"direct commit {row} of {begun} to {end} on {numbers}: on {found} of {kept}"
            assert found <= numbers, told
            assert all(array[row] in (0, 1) for array in values.values()), f"twice: {told}"
            assert found & kept in (set(), kept), f"half of it is there: {told}"
            if not any(e.first < end and begun <= e.latest for e in spans):
                assert not found & kept, f"it was taken back: {told}"
            elif any(e.first < begun and end <= e.last for e in spans):
                assert found >= kept or not each.done, f"it is lost: {told}"
                if each.done is False and not self.world.counts["takeovers"]:
                    assert not found & kept, f"it has failed, and is there: {told}"
