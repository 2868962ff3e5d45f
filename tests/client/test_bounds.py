"""A table with a bound in each mode: no row gets what was pushed to another id."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from psnb._src.client.embedding import Embedding
from psnb._src.client.embedding_spec import embedding_spec
from psnb._src.client.handles import shards_of
from psnb._src.client.local.downpour import accumulating
from psnb._src.client.requests import Request
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.updates import Round, Updates, buffered
from psnb._src.server.commit_log import Commit
from psnb._src.server.operations import ApplyCommit, PreparePart
from psnb._src.server.optimizers import SGD
from psnb.errors import ServerMemoryError
from tests.client.in_process import InProcess
from tests.client.local.test_geo import Worker, on_shards
from tests.client.test_rounds import apply_round, never

BOUND, IDS = 24, 60

Closure = Callable[[Embedding], None]


class Run:
    """A table, to which closures push to ids of which there are more than rows."""

    def __init__(self) -> None:
        self.transport = InProcess(2)
        shards = self.transport.shards
        how = {"initializer": 0.0, "optimizer": SGD(1.0), "dtype": "float64"}
        spec = embedding_spec(len(shards), "e", 2, **how, max_rows=BOUND)
        for number, shard in enumerate(shards):
            creation = spec.creation(number, len(shards), spec.optimizer)
            self.transport.call([Request(shard, creation)])
        self.table = Embedding(SparseShards(spec, shards, self.transport))
        self.commits = 0

    def closures(self, *several: Closure) -> None:
        """Run closures, which read all before one of them writes."""
        made = [self._ran(each) for each in several]
        for updates in made:
            updates.commit(self.transport, self._commit())

    def _commit(self) -> Commit:
        self.commits += 1
        return Commit("a", self.commits - 1)

    def _ran(self, closure: Closure, updates: Updates | None = None) -> Updates:
        updates = updates or Updates(counted=True)
        with buffered(updates), self._how():
            closure(self.table)
        return updates

    def _how(self) -> Any:
        return nullcontext()

    def states(self) -> list[dict[str, list[Any]]]:
        found = shards_of(self.table).shard_states()
        return [{key: each.tolist() for key, each in state.items()} for state in found]

    def check(self) -> None:
        """There are no more rows than may be, and each has what was pushed to its own id."""
        for state in shards_of(self.table).shard_states():
            assert state["ids"].size <= BOUND // 2
            own, count = state["values"].T
            np.testing.assert_allclose(own, (state["ids"] + 1.0) * count, rtol=1e-9)


class Prepared(Run):
    """Other ids take rows between what prepares commits and what applies them."""

    others = 1_000

    def closures(self, *several: Closure) -> None:
        made = [(self._commit(), self._ran(each).parts()) for each in several]
        for commit, parts in made:
            self.transport.call([Request(to, PreparePart(commit, parts[to])) for to in parts])
        for _ in range(2 * BOUND):
            self.others += 1
            self.table.lookup([self.others])
        for commit, parts in made:
            self.transport.call([Request(to, ApplyCommit(commit)) for to in parts])


class Downpour(Run):
    """Gradients of a closure's steps are added up."""

    def _how(self) -> Any:
        return accumulating(self.transport)


class Synchronous(Run):
    """Closures make a round, whose mean is one update."""

    rounds = 0

    def closures(self, *several: Closure) -> None:
        of, first = Round("s", self.rounds), self.commits
        for each in several:
            updates = self._ran(each, Updates(counted=True, sync_round=of))
            updates.commit(self.transport, self._commit())
        numbers = range(first, self.commits)
        where = self.transport.attempt, self.transport.shards, [shards_of(self.table)]
        apply_round(*where, "a", self.rounds, numbers, never)
        self.rounds += 1


class Geo(Run):
    """Workers learn on copies of their own, and merge what they have learned."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = [Worker(self.transport, 2, 2) for _ in range(2)]
        self.near = on_shards(self.table)

    def closures(self, *several: Closure) -> None:
        for worker, each in zip(self.workers, several, strict=False):
            worker.run(lambda each=each: each(self.near))


def pushing(ids: np.ndarray, times: int = 2) -> Closure:
    def closure(table: Embedding) -> None:
        for time in range(times):
            table.lookup(ids)
            gradient = np.stack([-(ids + 1.0), -np.ones(ids.size)], 1)
            table.push(ids, gradient * (1 + time))

    return closure


@pytest.mark.parametrize("mode", [Run, Prepared, Downpour, Synchronous, Geo])
def test_rows_have_what_was_pushed_to_their_own_ids(mode: type[Run]) -> None:
    run, random = mode(), np.random.default_rng(0)
    for _ in range(25):
        run.closures(*(pushing(random.choice(IDS, 2, replace=False)) for _ in range(2)))
        run.check()
    found = run.table.statistics()
    assert found.evicted > BOUND
    assert found.rows == BOUND
    assert any(any(row) for state in run.states() for row in state["values"])


@pytest.mark.parametrize("mode", [Run, Downpour, Synchronous, Geo])
def test_more_ids_at_once_than_there_may_be_rows_change_nothing(mode: type[Run]) -> None:
    run = mode()
    for start in range(0, 40, 4):
        run.closures(*[pushing(np.arange(start, start + 4))] * 2)
    before = run.states()

    def closure(table: Embedding) -> None:
        table.push(np.arange(100, 200), np.ones((100, 2)))

    with pytest.raises(ServerMemoryError, match="ids are to have one at once"):
        run.closures(closure)
    assert run.states() == before
    run.closures(*[pushing(np.arange(6))] * 2)
    assert run.states() != before
    run.check()
