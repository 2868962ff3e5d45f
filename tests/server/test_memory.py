"""A server without memory: what it cannot do wholly it does not do at all, and it goes on."""

from __future__ import annotations

import contextlib
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from psnb._src.server import snapshots
from psnb._src.server.making import build
from psnb._src.server.memory import Promise, no_memory, refusal
from psnb._src.server.messages import ServerRequest, number_in
from psnb._src.server.operations import CreateDense, CreateSparse, EndRound, OnShard, SquareNorms
from psnb._src.server.optimizers import SGD, Adam
from psnb._src.server.shard import ParameterShard
from psnb._src.server.snapshots import OpenSnapshots, PreallocatedPages
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import CountFilter, Probability
from psnb._src.server.tables.changed_rows import ChangedRows
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.eviction.policy import Eviction
from psnb._src.server.tables.initializers import Uniform
from psnb._src.server.tables.operations import (
    AddRows,
    AddValues,
    AssignRows,
    AssignValues,
    BlendValues,
    EndDay,
    LookUpRows,
    MergeRows,
    MergeValues,
    OnTables,
    PushGradient,
    PushRows,
    PutRows,
    RecordUse,
    ShrinkTable,
    SkipUpdates,
    TableWrite,
    on_table,
)
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import Table
from psnb._src.server.transfer import Transfer
from psnb.errors import PsnbError, ServerMemoryError
from tests.conftest import wait_until
from tests.server.no_memory import Allocator, Servers
from tests.server.standby import NO_THREADS, THREADS
from tests.server.writes import push

OLD, MORE, DIM = 50, 700, 2


def sparse(name: str, **more: Any) -> CreateSparse:
    return CreateSparse(
        name,
        DIM,
        *(more.pop("rows", None), 0, 1, "float32"),
        *(Uniform(), 7, more.pop("optimizer", Adam(0.1, clipnorm=1.0))),
        **more,
    )


CREATIONS = [
    CreateDense("v", np.arange(6, dtype=np.float32).reshape(3, 2), Adam(0.1, clipvalue=0.5)),
    sparse("any"),
    sparse("counted", admission=CountFilter(2), accessor=CtrAccessor(), storage="disk"),
    sparse("chosen", admission=Probability(0.5)),
    sparse("fixed", rows=OLD + MORE, optimizer=SGD(0.1)),
]
SPARSE = [each.name for each in CREATIONS[1:]]


def ids(count: int = OLD + MORE) -> np.ndarray:
    """Return old and new ids."""
    return np.arange(count, dtype=np.uint64)


def rows(count: int = OLD + MORE) -> np.ndarray:
    return np.linspace(-1, 1, DIM * count, dtype=np.float32).reshape(count, DIM)


def learned(name: str) -> TableWrite:
    slots = {slot: rows() for slot in (() if name == "fixed" else Adam().slots)}
    return MergeRows(ids(), rows(), slots, 3, 0.5)


GRADIENT = np.full((3, 2), 0.25, np.float32)
SOME = np.array([0, 2, 0]), np.ones((3, 2), np.float32)
COUNTS = np.ones(OLD + MORE, np.float32)

OF_ROWS = (
    *("values", "slot.first_moment", "slot.second_moment", "show", "click", "unseen_days"),
    *("last_update", "uses", "last_minute"),
)

PUSHES = [
    *(on_table(name, PushRows(ids(), rows())) for name in SPARSE),
    on_table("counted", RecordUse(ids(), COUNTS, COUNTS)),
    on_table("v", PushGradient(GRADIENT)),
    *[on_table("v", BlendValues(np.full_like(GRADIENT, 0.5), GRADIENT))] * 2,
]
"""What a closure may write in all modes; in mode `Sync` it waits for the end of the round."""

OTHERS = [
    *(on_table("v", each(GRADIENT)) for each in (AssignValues, AddValues)),
    *(on_table("v", each(*SOME)) for each in (AssignRows, AddRows)),
    on_table("v", SkipUpdates(1)),
    *(on_table(name, PutRows(ids(), rows())) for name in SPARSE),
]
LEARNED = [
    *(on_table(name, learned(name)) for name in SPARSE),
    on_table("v", MergeValues(GRADIENT, dict.fromkeys(Adam().slots, GRADIENT), 3, 0.5)),
    on_table("counted", EndDay()),
]
"""What mode `Geo` writes, and what happens at once."""

WRITES = {"closures": PUSHES + OTHERS, "Geo": LEARNED}
FURTHER = pytest.mark.second_tier("the same allocations, on other servers or together")
ONLY = [
    pytest.param(True, id="one allocation fails"),
    pytest.param(False, id="all from then on", marks=FURTHER),
]
SERVERS = [
    pytest.param("ab", False, id="two servers"),
    pytest.param("aa", True, id="one server with copies"),
    pytest.param("aa", False, id="one server", marks=FURTHER),
    pytest.param("ab", True, id="two servers with copies", marks=FURTHER),
]


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    return Allocator(monkeypatch)


def servers(homes: str = "aa", *, copied: bool = False) -> Servers:
    """Return servers whose tables have the old ids."""
    found = Servers(homes, CREATIONS, copied=copied)
    old = [on_table(name, PushRows(ids(OLD), rows(OLD))) for name in SPARSE]
    for _ in range(2):
        found.commit(old)
    return found


def states(found: Servers) -> list[Any]:
    """Return what the tables of each shard hold."""
    return [contents(found.shard(index)) for index in range(len(found.placements))]


def contents(shard: ParameterShard) -> dict[str, dict[str, bytes]]:
    """Return what the tables of a shard hold, rows in the order of their ids."""
    return {name: content(shard.table(name)) for name in shard.tables()}


def content(table: Table) -> dict[str, bytes]:
    found = {**table.state(), "skipped": np.array(table.updater.skipped)}
    for ids, others in (("ids", OF_ROWS), ("waiting.ids", ("waiting.frequencies",))):
        if ids in found:
            order = np.argsort(found[ids])
            for name in (ids, *others):
                if name in found:
                    found[name] = found[name][order]
    return {name: array.tobytes() for name, array in found.items()}


def all_work(found: Servers) -> None:
    """Look the ids up in all tables, and push to them."""
    for index in range(len(found.placements)):
        for name in SPARSE:
            assert found.do(index, on_table(name, LookUpRows(ids()))).shape == (OLD + MORE, DIM)
    before = states(found)
    found.commit(PUSHES)
    assert all(one != other for one, other in zip(before, states(found), strict=True))


def copies_equal(found: Servers) -> None:
    """The copies that primaries keep have what these have."""
    for index in range(len(found.placements)):
        copy = found.copy(index)
        assert copy is None or contents(copy) == contents(found.shard(index))


@pytest.mark.parametrize("only", ONLY)
@pytest.mark.parametrize(("homes", "copied"), SERVERS)
@pytest.mark.parametrize("writes", WRITES.values(), ids=WRITES)
def test_a_commit_without_memory_changes_all_tables_or_none(
    allocator: Allocator, writes: list[OnTables], homes: str, copied: bool, only: bool
) -> None:
    whole = servers(homes)
    whole.commit(writes)
    expected, failures, at = states(whole), 0, 0
    while True:
        found = servers(homes, copied=copied)
        before = states(found)
        with allocator.fails(at, only=only):
            try:
                found.commit(writes)
            except ServerMemoryError:
                failures += 1
                assert states(found) == before
            else:
                assert states(found) == expected
        copies_equal(found)
        if not allocator.failed:
            break
        if at % 5 == 0:
            all_work(found)
            copies_equal(found)
        at += 3 if copied else 1  # copies reserve the same again
    assert at > 0
    assert failures > 0


@pytest.mark.parametrize("only", ONLY)
@pytest.mark.parametrize(("homes", "copied"), SERVERS)
def test_a_closure_of_a_round_without_memory_fails_and_the_round_ends_without_it(
    allocator: Allocator, homes: str, copied: bool, only: bool
) -> None:
    at = 0
    while True:
        found, whole = servers(homes, copied=copied), servers(homes)
        counted = [found.commit(PUSHES[:2], 0)]
        whole.commit(PUSHES[:2], 0)
        before, late = states(found), found.commits
        with allocator.fails(at, only=only):
            try:
                counted.append(found.commit(PUSHES + OTHERS, 0))
            except ServerMemoryError:
                assert states(found) == before
        failed = allocator.failed
        if len(counted) == 2:
            assert whole.commit(PUSHES + OTHERS, 0) == late
        for each in (found, whole):
            # The end of a round needs no memory, whatever other servers have.
            with allocator.fails(0):
                for index in range(len(homes)):
                    each.do(index, SquareNorms("w", 0, counted, [*SPARSE, "v"]))
                    each.do(index, EndRound("w", 0, counted, {}))
        assert states(found) == states(whole)
        copies_equal(found)
        if not failed:
            break
        if at % 5 == 0:
            all_work(found)
        at += 7 if copied else 2  # the writes are those of the test above
    assert at > 0


BOUNDED = {
    "a push": PushRows(ids(30), rows(30)),
    "new rows": PutRows(ids(30), rows(30)),
    "what was learned": MergeRows(ids(30), rows(30), dict.fromkeys(Adam().slots, rows(30)), 3, 0.5),
    "a lookup": LookUpRows(ids(30)),
}


@pytest.mark.parametrize("count", [40, pytest.param(20, marks=FURTHER)], ids=["full", "half full"])
@pytest.mark.parametrize("work", BOUNDED.values(), ids=BOUNDED)
def test_rows_that_were_to_leave_stay_where_memory_lacks_for_others(
    allocator: Allocator, work: ops.TableOperation, count: int
) -> None:
    creation = sparse("e", accessor=CtrAccessor(), eviction=Eviction(40, "lfu", None, 9))
    old = 10**9 + ids(count)

    def full() -> Servers:
        made = Servers("a", [creation], copied=True)
        for _ in range(2):
            made.commit([on_table("e", PushRows(old, rows(count)))])
        return made

    def done(made: Servers) -> None:
        if isinstance(work, TableWrite):
            made.commit([on_table("e", work)])
        else:
            made.do(0, on_table("e", work))

    whole, failures, at = full(), 0, 0
    done(whole)
    assert whole.shard(0).table("e").describe_rows()["evicted"] == count + 30 - 40  # type: ignore[attr-defined]
    while True:
        found = full()
        before = states(found)
        with allocator.fails(at):
            try:
                done(found)
            except MemoryError:
                failures += 1
                assert states(found) == before
        copies_equal(found)
        if not allocator.failed:
            break
        done(found)
        copies_equal(found)
        if found.copy(0) is not None:
            there, copied = (each.table("e").beside() for each in (found.shard(0), found.copy(0)))
            assert {k: v.tolist() for k, v in there.items()} == {
                k: v.tolist() for k, v in copied.items()
            }
        at += 1
    assert states(found) == states(whole)
    assert failures > 0


def test_what_is_prepared_is_applied_without_more_memory(allocator: Allocator) -> None:
    found, whole = (servers("ab") for _ in range(2))
    whole.commit(PUSHES)

    def attempt(requests: Any) -> Any:
        if requests and type(requests[0].operation).__name__ == "ApplyCommit":
            with allocator.fails(0):
                return Servers.attempt(found, requests)
        return Servers.attempt(found, requests)

    found.attempt = attempt  # type: ignore[method-assign]
    found.commit(PUSHES)
    assert states(found) == states(whole)


def one(creation: Any) -> Any:
    table = build(creation)
    if isinstance(table, SparseTable):
        for _ in range(2):
            push(table, ids(OLD), rows(OLD))
    return table


def rows_of_others(table: SparseTable) -> None:
    """Make rows, one at a time, in all room that there was for the old ones."""
    for number in range(OLD):
        table.lookup(np.array([10**9 + number], np.uint64))


BETWEEN: dict[str, Callable[[SparseTable], object]] = {
    "another push": lambda table: push(table, ids()[::-1].copy(), rows()),
    "a shrink": lambda table: table.shrink(1e9, 0, True),
    "a clear": lambda table: table.clear(),
    "a shrink, and others' rows": lambda table: (table.shrink(1e9, 0, True), rows_of_others(table)),
    "a clear, and others' rows": lambda table: (table.clear(), rows_of_others(table)),
    "another clipping": lambda table: table.updater.tune({"clipnorm": 0.1, "clipvalue": 0.1}),
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
@pytest.mark.parametrize("count", [OLD, OLD + MORE], ids=["old rows", "old and new rows"])
def test_what_is_prepared_keeps_its_memory_whatever_comes_between(
    allocator: Allocator, count: int, between: Callable[[SparseTable], object]
) -> None:
    creation = sparse("e", optimizer=Adam(0.1), accessor=CtrAccessor())
    found, other = one(creation), one(creation)
    make = found.reserve(PushRows(ids(count), rows(count)))
    between(found)
    between(other)
    with allocator.fails(0):
        make()
    push(other, ids(count), rows(count))
    for name, array in found.state().items():
        np.testing.assert_array_equal(array, other.state()[name], err_msg=name)


def test_the_memory_of_a_commit_that_is_given_up_is_for_others_again() -> None:
    table = one(sparse("e"))
    make = table.reserve(PushRows(ids(), rows()))
    assert table.promised > 0
    del make
    assert (table.promises, table.promised) == (0, 0)
    promise = Promise([table], 5)
    promise.release()
    promise.release()
    assert (table.promises, table.promised) == (0, 0)


def test_a_write_takes_no_memory_once_that_is_reserved() -> None:
    # Of the size of what is written; numpy reports its memory to tracemalloc.
    count = 50_000
    every, what = np.arange(count, dtype=np.uint64), np.ones((count, 8), np.float32)
    some = np.arange(count), what
    slots = dict.fromkeys(Adam().slots, what)
    optimizer = Adam(0.1, clipnorm=1.0, clipvalue=0.1)
    dense = DenseTable("v", what, optimizer)
    tables: list[tuple[Any, list[TableWrite]]] = [
        (
            dense,
            [
                PushGradient(what),
                BlendValues(0.5 * what, what),
                *(AssignValues(what), AddValues(what), AssignRows(*some), AddRows(*some)),
                MergeValues(what, slots, 3, 0.5),
            ],
        )
    ]
    use = RecordUse(every, *(np.ones(count, np.float32) for _ in range(2)))
    for admission in (CountFilter(2), Probability(0.5)):
        table = SparseTable(
            *("e", 8, None, 0, 1, "float32", Uniform(), 0, optimizer),
            admission=admission,
            accessor=CtrAccessor(),
        )
        writes = [PushRows(every, what), MergeRows(every, what, slots, 3, 0.5)]
        tables.append(
            (table, [*writes, PushRows(every, what), PutRows(every, what), use, EndDay()])
        )
    for table, writes in tables:
        for write in writes:
            table.reserve(write)  # compiles
            make = table.reserve(write)
            make()
            make = table.reserve(write)
            tracemalloc.start()
            make()
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            # Beside what is of the size of a write, numpy takes buffers of 64 KB.
            assert peak < 100_000, (type(write).__name__, admission)


def test_a_lookup_without_memory_makes_no_row_and_is_no_sighting(allocator: Allocator) -> None:
    for creation in CREATIONS[1:4]:
        at = 0
        while True:
            table = one(creation)
            before = table.describe_rows()["rows"], table.describe_rows()["waiting"]
            with allocator.fails(at):
                try:
                    table.lookup(ids())
                except MemoryError:
                    assert before == (
                        table.describe_rows()["rows"],
                        table.describe_rows()["waiting"],
                    )
            push(table, ids(), rows())
            if not allocator.failed:
                break
            at += 1
        assert at > 0


def test_an_id_whose_row_cannot_be_initialised_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, other = one(sparse("e")), one(sparse("e"))
    with monkeypatch.context() as patch:
        patch.setattr(Uniform, "fill", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            push(table, ids(), rows())
    assert table.describe_rows()["rows"] == OLD
    assert table.lookup(ids(), training=False).shape == (OLD + MORE, DIM)
    for each in (table, other):
        push(each, ids(), rows())
    np.testing.assert_array_equal(table.lookup(ids()), other.lookup(ids()))


@pytest.mark.parametrize("threshold", [0.5, 9.0], ids=["half of them", "all of them"])
def test_a_shrink_without_memory_removes_rows_or_changes_nothing(
    allocator: Allocator, threshold: float
) -> None:
    creation, at = sparse("e", accessor=CtrAccessor()), 0
    while True:
        found, other = one(creation), one(creation)
        for each in (found, other):
            each.run(ops.RecordUse(ids(OLD)[::2], COUNTS[: OLD // 2], COUNTS[: OLD // 2]))
        with allocator.fails(at), contextlib.suppress(MemoryError):
            found.run(ShrinkTable(threshold, 9, False))
        if found.describe_rows()["rows"] < OLD:
            other.run(ShrinkTable(threshold, 9, False))
        for each in (found, other):
            push(each, ids(), rows())
        for name, array in found.state().items():
            np.testing.assert_array_equal(array, other.state()[name], err_msg=name)
        if not allocator.failed:
            break
        at += 1
    assert at > 0


def test_the_error_says_what_there_is_no_memory_for() -> None:
    error = refusal(no_memory(123_456_789), "PushRows of 'e'", "server 1 at tcp://b")
    text = "server 1 at tcp://b has no memory for PushRows of 'e': that needs 123,456,789 bytes"
    assert str(error).startswith(text)
    assert isinstance(error, MemoryError)
    assert isinstance(error, PsnbError)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (ServerMemoryError, str(error))
    assert refusal(error, "something else", "somewhere") is error


def test_a_table_without_memory_is_not_made(allocator: Allocator) -> None:
    found = Servers("a", [], copied=False)
    for creation in CREATIONS:
        at = 0
        while True:
            with allocator.fails(at):
                try:
                    found.do(0, creation)
                except ServerMemoryError:
                    assert creation.name not in found.shard(0).tables()
            if not allocator.failed:
                break
            at += 1
        assert at > 0


@pytest.mark.parametrize("number", [0, 1, 255, 70_000, 1 << 40])
def test_a_request_that_cannot_be_read_is_answered_by_its_number(number: int) -> None:
    buffers: list[pickle.PickleBuffer] = []
    request = ServerRequest(number, "key", [OnShard(3, on_table("e", PushRows(ids(), rows())))])
    head = pickle.dumps(request.wire(), protocol=5, buffer_callback=buffers.append)
    assert number_in(head) == number


# Who watches a table needs memory when it changes: whoever has none does without.


def watched(kind: str) -> Any:
    return one(sparse("e")) if kind == "rows" else build(CREATIONS[0])


CHANGES: dict[str, TableWrite] = {
    "rows": PushRows(ids(), rows()),
    "variable": AssignValues(GRADIENT),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_snapshot_without_memory_ends_and_the_table_changes(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, open_snapshots = watched(kind), OpenSnapshots(PreallocatedPages(NO_THREADS))
    name = open_snapshots.begin("s", table, None).snapshot
    with monkeypatch.context() as patch:
        patch.setattr(type(open_snapshots._open[name][0]), "_keep", without_memory)
        name = open_snapshots.begin("s", table, None).snapshot
        table.run(CHANGES[kind])
    for _ in range(2):
        with pytest.raises(ServerMemoryError, match="no memory to keep rows as they were"):
            open_snapshots.read(name, 0, 1)
    name = open_snapshots.begin("s", table, None).snapshot
    assert open_snapshots.read(name, 0, 1) is not None
    table.run(CHANGES[kind])


def test_changes_that_there_was_no_memory_to_note_are_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = one(sparse("e"))
    mark = table.changed_since("").mark
    with monkeypatch.context() as patch:
        patch.setattr(ChangedRows, "changing", without_memory)
        push(table, ids(1), rows(1))
    assert table.changed_since(mark).rows is None
    mark = table.changed_since(mark).mark
    push(table, ids(1), rows(1))
    assert table.changed_since(mark).rows.tolist() == [0]


def test_a_sync_starts_over_where_there_was_no_memory_to_note_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = servers("a")
    transfer, copy = Transfer(found.shard(0)), ParameterShard("copy")
    for at in range(1000):
        if not (steps := transfer.next()):
            break
        for step in pickle.loads(pickle.dumps(steps)):
            copy.run(step)
        if at == 5:
            with monkeypatch.context() as patch:
                patch.setattr(ChangedRows, "changing", without_memory)
                found.commit(PUSHES)
    for steps in transfer.last():
        for step in pickle.loads(pickle.dumps(steps)):
            copy.run(step)
    assert contents(copy) == contents(found.shard(0))


def test_room_for_snapshots_that_there_is_no_memory_for_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room, made, real = PreallocatedPages(THREADS), [0], snapshots._chunk

    def chunk() -> np.ndarray:
        made[0] += 1
        if made[0] > 2:
            raise MemoryError
        return real()

    monkeypatch.setattr(snapshots, "_chunk", chunk)
    room.want(5)
    wait_until(lambda: room.want(5), "there is what there is memory for")
    assert len(room._chunks) == 2
    room.clear()
    assert not room.want(1)


def without_memory(*_: object) -> None:
    raise MemoryError
