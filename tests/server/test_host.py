"""Shards and their copies on several servers, with wires between them that a test can hold up."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb._src.placement.layout import ServerAddress, ShardPlace
from psnb._src.placement.shard_status import CopyState, Role, ShardStatus
from psnb._src.server import transfer
from psnb._src.server.admission import CountFilter
from psnb._src.server.commit_messages import Commit, Part
from psnb._src.server.ctr import CtrAccessor
from psnb._src.server.host import Host
from psnb._src.server.initializers import Constant
from psnb._src.server.operations import (
    APART,
    ApplyCommit,
    CommitParts,
    CreateDense,
    CreateSparse,
    CreateTable,
    Done,
    DropTable,
    Failed,
    FenceCommits,
    FollowPlaces,
    GiveUpCommit,
    HostOperation,
    HostShards,
    Moved,
    OnShard,
    PreparePart,
    ReadPiece,
    ReleaseSnapshot,
    ServerAnswer,
    StopServer,
    TakeSnapshot,
)
from psnb._src.server.optimizers.adam import Adam
from psnb._src.server.optimizers.sgd import SGD
from psnb._src.server.parameter_shard import ParameterShard
from psnb._src.server.reply import PendingReply
from psnb._src.server.shard_copy import ForwardedRequest, Opening
from psnb._src.server.table_operations import (
    ClearTable,
    EndDay,
    FinishTable,
    LookUpRows,
    OnTable,
    Operation,
    PushGradient,
    PushRows,
    PutPiece,
    ReadValues,
    RecordUse,
    ShardOperation,
    ShrinkTable,
    TuneOptimizer,
)
from psnb.errors import ConfigurationError, InternalError

FILLING, FILLED = CopyState.FILLING, CopyState.FILLED
ONES = np.ones(2, np.float32)
SPARSE = CreateSparse(
    *("e", 2, None, 0, 1, "float32", Constant(1.0), 0, Adam(0.1)),
    admission=CountFilter(2),
    accessor=CtrAccessor(),
)


A, B = ServerAddress("a", "a"), ServerAddress("b", "b")


class Wire:
    """A connection to a host: what is sent arrives when the test says so."""

    def __init__(self, to: Host, opening: Opening) -> None:
        self._to, self.opening = to, opening
        self.waiting: deque[tuple[ForwardedRequest, bytes]] = deque()
        self.closed = False

    def send(self, exchange: ForwardedRequest) -> None:
        self.waiting.append((exchange, pickle.dumps(exchange.message())))

    def close(self) -> None:
        self.closed = True

    def deliver(self) -> None:
        """Let one message arrive, and its answer."""
        exchange, message = self.waiting.popleft()
        _, operations = pickle.loads(message)

        def send(answers: list[ServerAnswer]) -> None:
            exchange.answered(pickle.loads(pickle.dumps(answers)))

        self._to.run(operations, PendingReply(send), nowhere)


def nowhere(address: str, opening: Opening) -> None:
    opening.broken(ConnectionRefusedError("nobody is there"))


class Pair:
    """Two hosts, the first of which holds shard 0, and the wires between them."""

    def __init__(self) -> None:
        self.hosts = {name: Host(name, name) for name in "ab"}
        self.wires: list[Wire] = []
        self.place = ShardPlace(A)
        self.manage("a", HostShards({0: self.place}, []))
        for name in "vw":
            self.do(CreateDense(name, np.zeros(2, np.float32), SGD(1.0)))
        self.do(SPARSE)
        self.commits = 0

    def connect(self, address: str, opening: Opening) -> None:
        self.wires.append(Wire(self.hosts[address], opening))
        opening.opened(self.wires[-1])

    def send(self, host: str, *operations: Operation) -> list[ServerAnswer]:
        """Run a message's operations on shard 0, or on the server or shard that they name.

        The list gets their answers when they are sent.
        """
        answers: list[ServerAnswer] = []
        sent = [
            each if isinstance(each, HostOperation) else OnShard(0, each) for each in operations
        ]
        self.hosts[host].run(sent, PendingReply(answers.extend), self.connect)
        return answers

    def manage(self, host: str, operation: HostOperation) -> Any:
        answers = self.send(host, operation)
        return result(answers) if answers else answers

    def tell(self, *hosts: str, **changes: Any) -> None:
        """Let hosts hear of the next place of the shard."""
        self.place = self.place.next(**changes)
        for host in hosts:
            self.beat(host, self.place)

    def beat(self, host: str, place: ShardPlace) -> dict[int, ShardStatus]:
        mine = {0: place} if host in {server.key for server in place.servers} else {}
        found: dict[int, ShardStatus] = self.manage(host, FollowPlaces(mine, [place.version]))
        return found

    def do(self, operation: ShardOperation, host: str = "a") -> Any:
        return result(self.send(host, operation))

    def commit(self, *writes: OnTable, number: int = -1, host: str = "a") -> list[ServerAnswer]:
        if number < 0:
            number, self.commits = self.commits, self.commits + 1
        return self.send(host, CommitParts(Commit("w", number), {0: Part(writes)}))

    def shard(self, host: str) -> ParameterShard:
        return self.hosts[host]._hosted[0].shard

    def holding(self, host: str) -> ShardStatus:
        return self.hosts[host]._hosted[0].status()

    def copied(self) -> CopyState:
        """Return how far the copy is."""
        return self.holding("a").copies["b"]

    def read(self, host: str) -> list[float]:
        """Return what the variable has, whatever the host is for the shard."""
        values: list[float] = self.shard(host).run(READ).tolist()
        return values

    def flow(self) -> None:
        """Let everything arrive."""
        while any(wire.waiting for wire in self.wires):
            for wire in self.wires:
                if wire.waiting:
                    wire.deliver()

    def fill(self) -> None:
        self.tell("a", filling=B)
        self.flow()
        assert self.copied() is FILLED
        self.tell("a", "b", copies=(B,), filling=None)

    def promote(self) -> None:
        """Let the copy hear that it is the primary, and nobody else."""
        self.tell("b", primary=B, copies=())


def result(answers: list[ServerAnswer]) -> Any:
    (answer,) = answers
    if isinstance(answer, Failed):
        raise answer.error
    return answer.result if isinstance(answer, Done) else answer


def same(one: ParameterShard, other: ParameterShard) -> bool:
    """Return whether two shards hold the same."""
    return held(one) == held(other)


def held(shard: ParameterShard) -> Any:
    """Return what a shard holds, rows in the order of their ids, as plain objects."""
    tables = []
    for name in sorted(shard.tables()):
        state = {**shard.table(name).state(), "skipped": shard.table(name).skipped()}
        tables.append((name, plain(shard.creation(name), state)))
    writers = shard.log()._writers.items()
    log = [
        (name, each.low, sorted((n, e.state, e.commit.attempt) for n, e in each.entries.items()))
        for name, each in sorted(writers)
    ]
    return tables, log, shard.version


def plain(creation: CreateTable, contained: Any) -> Any:
    arrays = {key: np.asarray(value) for key, value in contained.items()}
    for ids in ("ids", "waiting.ids"):
        if ids in arrays:
            order = np.argsort(arrays[ids])
            waits = ids.startswith("waiting.")
            arrays |= {
                key: array[order]
                for key, array in arrays.items()
                if key.startswith("waiting.") == waits and key not in ("step", "skipped")
            }
    lists = sorted((key, array.tolist()) for key, array in arrays.items())
    return repr(creation), lists


def push(name: str = "v") -> OnTable:
    return OnTable(name, PushGradient(-ONES))


def push_rows(*ids: int) -> OnTable:
    gradients = np.full((len(ids), 2), 0.5, np.float32)
    return OnTable("e", PushRows(np.array(ids, np.uint64), gradients))


def results(answers: list[ServerAnswer]) -> list[Any]:
    """Return what was answered."""
    return [each.result if isinstance(each, Done) else each for each in answers]


def moved(answers: list[ServerAnswer]) -> bool:
    """Return whether the answer is that the shard is elsewhere."""
    return [type(each) for each in answers] == [Moved]


READ = OnTable("v", ReadValues())


def test_a_copy_holds_what_the_shard_holds() -> None:
    pair = Pair()
    for _ in range(3):
        pair.commit(push(), push_rows(1, 2, 3))
    pair.fill()
    assert same(pair.shard("a"), pair.shard("b"))


def test_a_change_is_answered_when_the_copy_has_it() -> None:
    pair = Pair()
    pair.fill()
    answers = pair.commit(push())
    assert answers == []
    pair.wires[0].deliver()
    assert results(answers) == [None]
    assert same(pair.shard("a"), pair.shard("b"))


def test_a_step_of_a_commit_is_a_change_as_well() -> None:
    pair = Pair()
    pair.fill()
    commit = Commit("w", 0)
    for step in (PreparePart(commit, Part([push()])), ApplyCommit(commit), GiveUpCommit(commit)):
        answers = pair.send("a", step)
        assert answers == []
        pair.flow()
        assert results(answers) == [None]
    fenced = pair.send("a", FenceCommits({"w": {1: 1}}))
    assert fenced == []
    pair.flow()
    assert results(fenced) == [[]]
    assert same(pair.shard("a"), pair.shard("b"))


def test_reads_wait_for_no_copy() -> None:
    pair = Pair()
    pair.fill()
    pair.commit(push())
    assert pair.do(READ).tolist() == [1, 1]


def test_what_waits_for_a_copy_is_answered_as_it_was() -> None:
    pair = Pair()
    pair.fill()
    both = pair.send("a", CommitParts(Commit("w", 100), {0: Part([push()])}), READ)
    pair.commit(push())
    pair.flow()
    assert results(both)[1].tolist() == [1, 1]


def test_a_copy_that_is_being_filled_keeps_nobody_waiting() -> None:
    pair = Pair()
    pair.tell("a", filling=B)
    pair.wires[0].deliver()
    assert results(pair.commit(push())) == [None]
    assert pair.copied() is FILLING
    pair.flow()
    assert pair.copied() is FILLED
    assert same(pair.shard("a"), pair.shard("b"))


def test_a_copy_that_has_everything_is_waited_for_before_anybody_has_heard_so() -> None:
    pair = Pair()
    pair.tell("a", filling=B)
    pair.flow()
    answers = pair.commit(push())
    assert answers == []
    pair.flow()
    assert results(answers) == [None]


def test_a_copy_answers_nobody_until_it_is_the_primary() -> None:
    pair = Pair()
    pair.fill()
    pair.commit(push())
    pair.flow()
    assert moved(pair.send("b", READ))
    pair.promote()
    assert pair.do(READ, "b").tolist() == [1, 1]


def test_a_commit_that_the_dead_primary_answered_is_not_applied_again_by_its_copy() -> None:
    pair = Pair()
    pair.commit(push(), number=5)  # before there is a copy
    pair.fill()
    pair.commit(push(), number=6)
    pair.flow()
    pair.promote()
    for number in (5, 6, 7):
        pair.commit(push(), number=number, host="b")
    assert pair.read("b") == [3, 3]


def test_what_the_dead_primary_held_its_copy_holds() -> None:
    pair = Pair()
    commit = Commit("w", 0)
    pair.send("a", PreparePart(commit, Part([push()])))
    pair.fill()
    pair.promote()
    pair.send("b", ApplyCommit(commit))
    assert pair.read("b") == [1, 1]


def test_a_primary_that_was_given_up_by_mistake_acknowledges_nothing_any_more() -> None:
    pair = Pair()
    pair.fill()
    pair.promote()
    answers = pair.commit(push())
    pair.flow()
    assert moved(answers)
    assert pair.holding("a").role is Role.RETIRED
    assert moved(pair.send("a", READ))
    assert pair.read("b") == [0, 0]


def test_nor_when_it_hears_of_it() -> None:
    pair = Pair()
    pair.fill()
    answers = pair.commit(push())
    pair.tell("b", "a", primary=B, copies=(), leaving=(A,))
    assert moved(answers)
    assert moved(pair.send("a", READ))


def test_what_waits_for_a_broken_copy_is_answered_when_it_is_let_go() -> None:
    pair = Pair()
    pair.fill()
    answers = pair.commit(push())
    pair.wires[0].opening.broken(ConnectionResetError("gone"))
    later = pair.commit(push())
    assert answers == later == []
    assert pair.copied() is CopyState.BROKEN
    pair.tell("a", copies=(), leaving=(B,))
    assert results(answers) == results(later) == [None]
    assert pair.wires[0].closed


def test_a_server_that_is_not_there_makes_a_broken_copy_for_which_nobody_waits() -> None:
    pair = Pair()
    pair.connect = nowhere  # type: ignore[method-assign]
    pair.tell("a", filling=B)
    assert pair.copied() is CopyState.BROKEN
    assert results(pair.commit(push())) == [None]


def test_a_copy_that_broke_while_it_was_filled_is_filled_anew() -> None:
    pair = Pair()
    pair.tell("a", filling=B)
    pair.wires[0].opening.broken(ConnectionResetError("gone"))
    pair.commit(push())
    pair.tell("a", filling=None)
    pair.tell("a", filling=B)
    pair.flow()
    assert pair.copied() is FILLED
    assert same(pair.shard("a"), pair.shard("b"))


def test_so_it_is_if_the_primary_has_not_heard_in_between_that_it_is_given_up() -> None:
    pair = Pair()
    pair.tell("a", filling=B)
    pair.wires[0].opening.broken(ConnectionResetError("gone"))
    pair.tell(filling=None)
    pair.tell("a", filling=B)
    pair.flow()
    assert pair.copied() is FILLED


def test_a_shard_is_handed_over_with_everything_and_the_old_primary_goes_on_as_a_copy() -> None:
    pair = Pair()
    pair.fill()
    answers = pair.commit(push())
    pair.tell("a", heir=B)
    assert moved(pair.commit(push()))
    assert (pair.holding("a").role, pair.holding("a").idle) == (Role.RETIRED, False)
    pair.flow()
    assert results(answers) == [None]
    assert pair.holding("a").idle
    pair.tell("b", primary=B, copies=(A,), heir=None)
    answers = pair.commit(push(), number=50, host="b")
    assert answers == []  # it is on both, as before
    pair.flow()
    assert results(answers) == [None]
    assert pair.holding("a").role is Role.COPY
    assert pair.read("a") == pair.read("b") == [2, 2]


def test_a_primary_that_keeps_its_shard_after_all_goes_on() -> None:
    pair = Pair()
    pair.fill()
    pair.tell("a", heir=B)
    pair.tell("a", heir=None)
    answers = pair.commit(push())
    pair.flow()
    assert results(answers) == [None]


def test_an_old_place_that_comes_late_changes_nothing() -> None:
    pair = Pair()
    pair.fill()
    before = pair.place
    pair.tell("a", heir=B)
    pair.beat("a", before)
    assert pair.holding("a").role is Role.RETIRED


def test_only_one_that_holds_the_very_same_is_taken_for_a_copy_without_being_filled() -> None:
    pair = Pair()
    pair.fill()
    pair.tell("b", primary=B, copies=(A,), heir=None)  # it did not wait for the last change
    pair.commit(push(), number=9)  # of which nothing is on the way yet
    pair.hosts["a"]._hosted[0].copies.clear()
    pair.flow()
    assert pair.holding("b").copies["a"] is CopyState.BROKEN


def test_changes_that_come_out_of_turn_break_a_copy() -> None:
    pair = Pair()
    pair.fill()
    pair.commit(push())
    pair.commit(push("w"))
    pair.wires[0].waiting.popleft()  # as no connection does
    pair.flow()
    assert pair.copied() is CopyState.BROKEN
    assert pair.read("b") == [0, 0]


def test_a_shard_that_is_not_here_is_elsewhere() -> None:
    pair = Pair()
    assert moved(pair.send("b", READ))
    pair.tell("a", primary=B)
    assert moved(pair.send("a", READ))
    assert pair.beat("a", pair.place) == {}  # and so it was dropped


def test_a_shard_that_a_newer_place_has_brought_is_not_dropped_for_an_older_one() -> None:
    pair = Pair()
    place = ShardPlace(B, version=7)
    pair.manage("b", HostShards({0: place}, []))
    assert set(pair.beat("b", ShardPlace(A, version=6))) == {0}
    assert set(pair.beat("b", ShardPlace(A, version=7))) == set()


def test_a_change_that_failed_half_way_through_a_bug_breaks_the_copies() -> None:
    pair = Pair()
    pair.fill()
    with pytest.raises(InternalError):
        pair.do(OnTable("e", PutPiece(None)))  # type: ignore[arg-type]
    assert pair.copied() is CopyState.BROKEN


def test_a_change_that_is_refused_does_not() -> None:
    pair = Pair()
    pair.fill()
    with pytest.raises(ConfigurationError):
        pair.do(push("gone"))
    assert pair.copied() is FILLED


def test_what_was_refused_is_not_kept() -> None:
    pair, gradient = Pair(), ONES.copy()
    kept = weakref.ref(gradient)
    pair.send("a", OnTable("gone", PushGradient(gradient)))
    del gradient
    gc.collect()
    assert kept() is None


def test_unknown_operations_are_refused() -> None:
    pair = Pair()
    with pytest.raises(InternalError, match="no operation StopServer"):
        pair.manage("a", StopServer())  # which is for its process


class Two:
    """A host with two shards."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.pair.manage("a", HostShards({1: ShardPlace(A)}, []))
        self.pair.send("a", OnShard(1, CreateDense("v", np.zeros(2, np.float32), SGD(1.0))))

    def commit(self, *writes: Any, number: int = 0) -> Any:
        parts = {0: Part([push()]), 1: Part(writes or [push()])}
        return self.pair.do(CommitParts(Commit("w", number), parts))

    def values(self) -> list[float]:
        reads = results(self.pair.send("a", READ, OnShard(1, READ)))
        return [float(values[0]) for values in reads]


def test_a_commit_to_several_shards_here_is_made_at_once_and_once() -> None:
    two = Two()
    for _ in range(2):
        assert two.commit() is None
    assert two.values() == [1, 1]


def test_it_is_made_nowhere_if_it_cannot_be_made_everywhere() -> None:
    two = Two()
    with pytest.raises(ConfigurationError, match="'gone'"):
        two.commit(push("gone"))
    assert two.values() == [0, 0]


def test_it_must_be_made_in_two_steps_if_a_shard_is_elsewhere_or_has_copies() -> None:
    two = Two()
    two.pair.manage("a", FollowPlaces({0: ShardPlace(A, filling=B, version=2)}, [2, 0]))
    assert two.commit() == APART
    two = Two()
    two.pair.manage("a", FollowPlaces({1: ShardPlace(A)}, [9, 1]))
    assert moved(two.pair.send("a", READ))
    parts = {1: Part([push()]), 0: Part([push()])}
    answers = two.pair.send("a", OnShard(1, CommitParts(Commit("w", 0), parts)))
    assert results(answers) == [APART]


def test_a_snapshot_is_read_in_pieces_and_ends_when_it_is_forgotten() -> None:
    pair = Pair()
    pair.commit(push_rows(1, 2, 3))
    pair.commit(push_rows(1, 2, 3))
    header = pair.do(TakeSnapshot("e"))
    assert header.rows == 3
    assert pair.do(ReadPiece(header.snapshot, 0, 2))["ids"].tolist() == [1, 2]
    for _ in range(2):
        pair.hosts["a"].tick()
    assert pair.do(ReadPiece(header.snapshot, 2, 3)) is None
    assert not pair.shard("a").table("e").watchers
    pair.do(ReleaseSnapshot(header.snapshot))


EMPTY_ROW = {
    **{
        name: np.full((1, 2), 7, np.float32)
        for name in ("values", "slot.first_moment", "slot.second_moment")
    },
    **{name: np.full(1, 3, np.float32) for name in ("show", "click", "unseen_days")},
}
TAIL = {
    "step": np.array([5]),
    "waiting.ids": np.array([77], np.uint64),
    "waiting.sightings": np.array([1], np.uint32),
}
IDS = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True)
STEP = st.one_of(
    st.tuples(st.just("push"), st.sampled_from("vw")),
    st.tuples(st.just("rows"), IDS),
    st.tuples(st.just("both"), IDS),
    st.tuples(st.just("lookup"), IDS),
    st.tuples(st.just("prepare"), IDS),
    st.tuples(st.just("apply"), IDS),
    st.tuples(st.just("use"), IDS),
    st.tuples(st.just("load"), IDS),
    st.tuples(st.just("anew"), st.none()),
    st.tuples(st.just("day"), st.none()),
    st.tuples(st.just("shrink"), st.none()),
    st.tuples(st.just("tune"), st.floats(0.01, 1)),
    st.tuples(st.just("again"), st.integers(0, 20)),
    st.tuples(st.just("drop"), st.just("w")),
    st.tuples(st.just("create"), st.just("x")),
    st.tuples(st.just("deliver"), st.integers(1, 3)),
)


@settings(max_examples=150)
@given(st.lists(STEP, max_size=12), st.lists(STEP, max_size=25))
def test_whatever_happens_while_a_copy_is_filled_it_ends_the_same(
    before: list[tuple[str, Any]], meanwhile: list[tuple[str, Any]]
) -> None:
    pair = Pair()
    for step in before:
        take(pair, *step)
    with small_pieces():
        pair.tell("a", filling=B)
        for step in meanwhile:
            take(pair, *step)
        pair.flow()
    assert pair.copied() is FILLED
    assert same(pair.shard("a"), pair.shard("b"))
    for step in (*before, *meanwhile):
        take(pair, *step)
    pair.flow()
    assert same(pair.shard("a"), pair.shard("b"))


@contextmanager
def small_pieces() -> Iterator[None]:
    """Send a row or two at a time, and nothing at last that was not sent before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "PIECE", 80)
        patch.setattr(transfer, "LAST", 40)
        patch.setattr(transfer, "_WINDOW", 3)
        yield


def take(pair: Pair, what: str, value: Any) -> None:
    """Do one thing to the pair's shard."""
    tables = pair.shard("a").tables()
    match what:
        case "push" if value in tables:
            pair.commit(push(value))
        case "rows":
            pair.commit(push_rows(*value))
        case "both":
            pair.commit(push(), push_rows(*value))
        case "prepare":
            part = Part([push(), push_rows(*value)])
            pair.send("a", PreparePart(Commit("h", value[0]), part))
        case "apply":
            pair.send("a", ApplyCommit(Commit("h", value[0])))
        case "lookup":
            pair.send("a", OnTable("e", LookUpRows(np.array(value, np.uint64))))
        case "day":
            pair.commit(OnTable("e", EndDay()))
        case "use":
            ones = np.ones(len(value), np.float32)
            pair.commit(OnTable("e", RecordUse(np.array(value, np.uint64), ones, ones)))
        case "shrink":
            pair.send("a", OnTable("e", ShrinkTable(0.5, 1.0, forget_waiting=False)))
        case "load":
            pair.send("a", OnTable("e", ClearTable()))
            rows = {"ids": np.array(value, np.uint64), **EMPTY_ROW}
            piece = {key: np.repeat(a, len(value) if a.size else 1, 0) for key, a in rows.items()}
            piece["ids"] = rows["ids"]
            pair.send("a", OnTable("e", PutPiece(piece)))
            pair.send("a", OnTable("e", FinishTable(TAIL)))
        case "tune":
            pair.send("a", OnTable("v", TuneOptimizer({"learning_rate": value})))
        case "again":
            pair.commit(push(), number=value)
        case "drop":
            pair.send("a", DropTable(value))
        case "create" if value not in tables:
            pair.send("a", CreateDense(value, 3 * ONES, None))
        case "anew":
            pair.send("a", DropTable("e"))
            pair.send("a", SPARSE)
        case "deliver":
            for _ in range(value):
                for wire in pair.wires:
                    if wire.waiting:
                        wire.deliver()
