"""Bags whose rows are summed on the servers give what they give where rows travel, in each mode."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from psnb._src.client.bags import pooling
from psnb._src.client.commit import ask, drive, end_round
from psnb._src.client.embedding import Embedding
from psnb._src.client.embedding_spec import EmbeddingSpec
from psnb._src.client.handles import shards_of
from psnb._src.client.local.downpour import accumulating
from psnb._src.client.local.dry_run import DryRunClient
from psnb._src.client.parameter_shards import clipped_tables
from psnb._src.client.requests import Request
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.updates import Round, Updates, buffered
from psnb._src.data.ragged import Ragged
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit
from psnb._src.server.operations import CreateSparse, EndRound
from psnb._src.server.optimizers import SGD, Adagrad
from psnb._src.server.tables.admission import CountFilter, Probability
from psnb._src.server.tables.initializers import Uniform
from psnb._src.server.tables.operations import LookUpRows, OnTables, Preview, PushRows
from psnb._src.server.tables.row_use import CtrAccessor
from psnb.errors import InvalidArrayError
from tests.client.in_process import DIM, ROWS, SHARDS, InProcess, embedding
from tests.client.local.test_geo import Worker

BAGS = Ragged.from_rows([[1, 2, 1, 5], [], [5, 7], [3, 1, 8, 2, 2], [0], [4, 6, 0, 9, 1, 3]])
WEIGHTS = np.linspace(-1.0, 2.0, BAGS.values.size)
GRADIENTS = np.sin(np.arange(len(BAGS) * DIM)).reshape(len(BAGS), DIM)
EXACT, HALF = 1e-6, 2e-3

WAYS = [
    ("sum", False),
    ("mean", False),
    ("sqrtn", False),
    ("sum", True),
    ("mean", True),
    ("sqrtn", True),
]


@contextmanager
def sums_travel(*, always: bool) -> Iterator[None]:
    """Have bags always, or never, summed on the servers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooling, "_sums_are_fewer_bytes", lambda *_: always)
        yield


def asked(transport: InProcess) -> list[LookUpRows | PushRows]:
    """Return the lookups and pushes since the last question."""
    found: list[Any] = []
    for request in transport.carried:
        of: Any = getattr(request.operation, "operation", None)
        part: Any = getattr(request.operation, "part", None)
        found += [of.read, *of.writes] if isinstance(of, Preview) else [of]
        found += [write.operation for write in (part.writes if part else ())]
    transport.carried.clear()
    return [each for each in found if isinstance(each, LookUpRows | PushRows)]


def travelled(transport: InProcess) -> set[bool]:
    """Return whether these were of bags."""
    return {each.bags is not None for each in asked(transport)}


class Table(NamedTuple):
    """An embedding, the way to it, and what it was asked."""

    e: Embedding
    transport: InProcess
    how: dict[str, Any]

    def look(self, **more: Any) -> np.ndarray:
        return self.e.lookup_bags(BAGS, None, **self.how, **more)

    def push(self, factor: float = 1.0, **more: Any) -> None:
        gradients = (factor * GRADIENTS).astype(self.e.dtype)
        self.e.push_bags(BAGS, None, gradients, **self.how, **more)

    def rows(self) -> np.ndarray:
        return self.e.lookup(np.arange(ROWS), training=False)


def made(combiner: str = "mean", weighted: bool = False, shards: int = 3, **more: Any) -> Table:
    transport = InProcess(shards)
    given: dict[str, Any] = {"rows": None, "optimizer": Adagrad(0.5), "shards": shards, **more}
    e = embedding(transport=transport, **given)
    how = {"combiner": combiner, "weights": WEIGHTS.astype(e.dtype) if weighted else None}
    return Table(e, transport, how)


def both(run: Callable[[Table], list[Any]], atol: float = EXACT, **more: Any) -> None:
    """Run something on two tables, where rows travel and where sums do, and compare the results."""
    results = []
    for always in (False, True):
        table = made(**more)
        with sums_travel(always=always):
            results.append(run(table))
        assert always in travelled(table.transport)
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=atol, atol=atol)


def steps(table: Table) -> list[Any]:
    found = [table.look(training=False), table.look()]
    for factor in (1.0, -2.0):
        table.push(factor)
        found.append(table.look())
    counts = table.e.statistics()
    return [*found, table.rows(), counts.rows, counts.waiting]


@pytest.mark.parametrize(("combiner", "weighted"), WAYS)
@SHARDS
def test_each_combiner_gives_the_same(combiner: str, weighted: bool, shards: int) -> None:
    both(steps, combiner=combiner, weighted=weighted, shards=shards)


@pytest.mark.parametrize(
    "more",
    [
        {"rows": ROWS},
        {"dtype": "float64"},
        {"half": True},
        {"optimizer": SGD(0.5, clipnorm=0.5)},
        {"admission": CountFilter(3)},
        {"admission": Probability(0.5)},
        {"admission": CountFilter(2), "optimizer": Adagrad(0.5, clipnorm=0.5)},
    ],
    ids=str,
)
@SHARDS
def test_each_option_gives_the_same(more: dict[str, Any], shards: int) -> None:
    both(steps, HALF if "half" in more else EXACT, weighted=True, shards=shards, **more)


def test_sums_and_gradients_of_bags_travel_with_16_bits_where_rows_do() -> None:
    table = made(half=True)
    with sums_travel(always=True):
        table.look()
        table.push()
    found = asked(table.transport)
    assert [each.half for each in found] == [True] * 2 * 3


def test_padding_counts_as_not_there() -> None:
    def run(table: Table) -> list[Any]:
        table.e._shards.padding_idx = 1
        return steps(table)

    both(run, weighted=True)


def test_the_use_of_rows_is_recorded_alike() -> None:
    def run(table: Table) -> list[Any]:
        shows = np.arange(len(BAGS))
        table.push(shows=shows, clicks=shows / 2)
        use = table.e.row_use(np.arange(ROWS))
        return [use.show, use.click]

    both(run, accessor=CtrAccessor())


@pytest.mark.parametrize("nonfinite", ["skip", "allow"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_what_is_not_finite_is_summed_before_it_travels(nonfinite: str, bad: float) -> None:
    gradients = GRADIENTS.astype(np.float32)
    gradients[3] = bad  # id 2 is twice in this bag, so even the large number's sum is infinite
    results = []
    for always in (False, True):
        table = made("sum", nonfinite=nonfinite)
        with sums_travel(always=always), np.errstate(all="ignore"):
            table.e.push_bags(BAGS, None, gradients, "sum")
        assert travelled(table.transport) == {False}
        results.append([table.rows(), table.e.skipped()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_sum_that_is_not_finite_is_refused() -> None:
    table, gradients = made("sum"), GRADIENTS.astype(np.float32)
    gradients[3] = 3e38
    with sums_travel(always=True), pytest.raises(InvalidArrayError, match="not finite"):
        table.e.push_bags(BAGS, None, gradients, "sum")
    assert table.e.statistics().rows == 0


def test_gradients_that_change_after_a_push_of_a_closure_are_as_they_were() -> None:
    def run(table: Table) -> list[Any]:
        updates, gradients = Updates(counted=True), GRADIENTS.astype(np.float32)
        weights = np.ones(BAGS.values.size, np.float32)
        with buffered(updates):
            table.e.push_bags(BAGS, None, gradients, "sum", weights)
            gradients[:] = weights[:] = 7.0
        updates.commit(table.transport, Commit("a", 0))
        return [table.rows()]

    both(run)


def closure(table: Table, updates: Updates) -> list[Any]:
    with buffered(updates):
        table.push()
        found = [table.look(), table.look(training=False)]
        table.push(-2.0)
        return [*found, table.look()]


def in_closure(table: Table) -> list[Any]:
    updates = Updates(counted=True)
    found = closure(table, updates)
    before = table.rows()
    for _ in range(2):  # sent again, it counts once
        updates.commit(table.transport, Commit("a", 0))
    return [*found, before, table.rows()]


def in_round(table: Table) -> list[Any]:
    transport, found = table.transport, []
    for number, weight in enumerate((1.0, 3.0)):
        updates = Updates(counted=True, sync_round=Round("s", 0))
        found += closure(table, updates)
        with buffered(updates):
            table.push(weight)
        updates.commit(transport, Commit("a", number))
    owners, end = clipped_tables([shards_of(table.e)]), EndRound("a", 0, [0, 1], {})
    drive(end_round(transport.shards, owners, end, ask, print), transport.attempt)
    return [*found, table.rows()]


def in_geo(table: Table) -> list[Any]:
    kind, arguments = shards_of(table.e).__reduce__()  # type: ignore[misc]
    near = table._replace(e=Embedding(kind(*arguments)))
    worker = Worker(table.transport, 2)
    seen: list[Any] = []
    for _ in range(2):
        worker.run(lambda: seen.extend([near.look(), near.push(), near.look()][::2]))
    table.look()  # in any case; the copies asked for rows
    return [*seen, table.rows()]


def in_downpour(table: Table) -> list[Any]:
    updates, found = Updates(counted=True), []
    with buffered(updates), accumulating(table.transport):
        for _ in range(2):
            found.append(table.look())
            table.push()
    updates.commit(table.transport, Commit("a", 0))
    return [*found, table.rows()]


def in_dry_run(table: Table) -> list[Any]:
    kind, arguments = shards_of(table.e).__reduce__()  # type: ignore[misc]
    near = table._replace(e=Embedding(kind(*arguments)))

    def run() -> list[Any]:
        near.push()
        return [near.look()]

    found = DryRunClient(table.transport).run(run, None)
    return [*found, table.e.statistics().rows]


@pytest.mark.parametrize("clipnorm", [None, 0.5])
@pytest.mark.parametrize(
    "mode", [in_closure, in_round, in_geo, in_downpour, in_dry_run], ids=lambda each: each.__name__
)
@SHARDS
def test_each_mode_gives_the_same(
    mode: Callable[[Table], list[Any]], clipnorm: float | None, shards: int
) -> None:
    optimizer = Adagrad(0.5, clipnorm=clipnorm)
    both(mode, weighted=True, shards=shards, optimizer=optimizer)


class Counting(InProcess):
    """Counts the bytes of requests and answers."""

    nbytes = 0

    def attempt(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        found = super().attempt(requests, seen)
        self.nbytes += len(pickle.dumps(([each.operation for each in requests], found), 5))
        return found


@pytest.mark.parametrize("shards", [1, 2, 8])
@pytest.mark.parametrize("size", [1, 2, 20, 100])
@pytest.mark.parametrize("distinct", [10, 100_000], ids=["few", "many"])
def test_the_way_with_fewer_bytes_is_chosen(shards: int, size: int, distinct: int) -> None:
    dim, bags = 16, 200
    values = np.random.default_rng(0).integers(0, distinct, size * bags)
    offsets = np.arange(0, values.size, size)
    nbytes = {}
    for always in (False, True, None):
        transport = Counting(shards)
        for index, shard in enumerate(transport.shards):
            creation = CreateSparse(
                *("e", dim, None, index, shards, "float32", Uniform(), 3, SGD(1.0))
            )
            transport.call([Request(shard, creation)])
        spec = EmbeddingSpec("e", dim, None, np.dtype(np.float32), SGD(1.0))
        e, transport.nbytes = Embedding(SparseShards(spec, transport.shards, transport)), 0
        with (
            sums_travel(always=bool(always)) if always is not None else pytest.MonkeyPatch.context()
        ):
            found = e.lookup_bags(values, offsets, "sum")
            e.push_bags(values, offsets, found, "sum")
        nbytes[always] = transport.nbytes
    # Names, and what a message has besides, are not counted.
    assert nbytes[None] <= min(nbytes[True], nbytes[False]) * 1.05


def test_a_largest_number_is_found_where_all_rows_are() -> None:
    table = made("max")
    table.look()
    table.push()
    assert travelled(table.transport) == {False}


def test_servers_that_have_no_member_of_any_bag_are_not_asked() -> None:
    table = made("sum", shards=3, rows=ROWS)
    with sums_travel(always=True):
        table.e.lookup_bags([0, 3, 6, 3], [0, 2], "sum")
    asked = [each.to for each in table.transport.carried if isinstance(each.operation, OnTables)]
    assert asked == [table.transport.shards[0]]
