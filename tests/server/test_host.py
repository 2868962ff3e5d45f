"""Shards and their copies on several servers, with wires between them that a test can hold up."""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb.errors import InternalError
from psnb.server import SGD, Adam, Constant, CountFilter, CtrAccessor
from psnb.server.copy import ITSELF, Exchange
from psnb.server.host import Host, Operation
from psnb.server.reply import Answer, Reply
from psnb.server.shard import Shard

ONES = np.ones(2, np.float32)
SPARSE: dict[str, Any] = {
    "name": "e",
    "dim": 2,
    "rows": None,
    "index": 0,
    "shards": 1,
    "dtype": "float32",
    "initializer": Constant(1.0),
    "seed": 0,
    "optimizer": Adam(0.1),
    "admission": CountFilter(2),
    "accessor": CtrAccessor(),
}


class Wire:
    """A connection to a host: what is sent arrives when the test says so."""

    def __init__(self, to: Host, broken: Callable[[Sequence[Any], OSError], None]) -> None:
        self._to, self.broken = to, broken
        self.waiting: deque[tuple[Exchange, bytes]] = deque()
        self.closed = False

    def send(self, exchange: Exchange) -> None:
        self.waiting.append((exchange, pickle.dumps(exchange.message())))

    def close(self) -> None:
        self.closed = True

    def deliver(self) -> None:
        """Let one message arrive, and its answer."""
        exchange, message = self.waiting.popleft()
        _, operations = pickle.loads(message)

        def send(answers: list[Answer]) -> None:
            exchange.answered(("OK", pickle.loads(pickle.dumps(answers))))

        self._to.run(operations, Reply(send), nowhere)


async def nowhere(*_: Any) -> Any:
    raise ConnectionRefusedError("nobody is there")


class Pair:
    """Two hosts, the first of which holds shard 0, and the wires between them."""

    def __init__(self) -> None:
        self.hosts = {name: Host(name) for name in "ab"}
        self.wires: list[Wire] = []
        self.manage("a", "host", shards=[0])
        for name in "vw":
            more = {"values": np.zeros(2, np.float32), "optimizer": SGD(1.0)}
            self.do("create_dense", name=name, **more)
        self.do("create_sparse", **SPARSE)
        self.commits = 0

    async def connect(self, address: str, broken: Any) -> Wire:
        self.wires.append(Wire(self.hosts[address], broken))
        return self.wires[-1]

    def send(self, host: str, *operations: Operation) -> list[Answer]:
        """Run a message's operations; the list gets their answers when they are sent."""
        answers: list[Answer] = []

        def sent(found: list[Answer]) -> None:
            # Without the shard's version, which answers of shards come with.
            answers.extend(answer[:2] for answer in found)

        self.hosts[host].run(operations, Reply(sent), self.connect)
        return answers

    def manage(self, host: str, operation: str, **arguments: Any) -> Any:
        answers = self.send(host, (ITSELF, "", operation, arguments))
        return result(answers) if answers else answers

    def do(self, operation: str, host: str = "a", **arguments: Any) -> Any:
        return result(self.send(host, (0, "", operation, arguments)))

    def commit(self, *writes: tuple[str, str, dict[str, Any]], number: int = -1) -> list[Answer]:
        if number < 0:
            number, self.commits = self.commits, self.commits + 1
        arguments = {"writer": "w", "number": number, "settled_below": 0, "writes": writes}
        return self.send("a", (0, "", "commit", arguments))

    def shard(self, host: str) -> Shard:
        return self.hosts[host]._held[0].shard

    def copied(self) -> str:
        """Return how far the copy is."""
        return self.manage("a", "describe")[0][1]["b"]

    async def flow(self) -> None:
        """Let everything arrive."""
        await asyncio.sleep(0)
        while any(wire.waiting for wire in self.wires):
            for wire in self.wires:
                if wire.waiting:
                    wire.deliver()
            for _ in range(3):
                await asyncio.sleep(0)

    async def fill(self) -> None:
        self.manage("a", "copy", index=0, address="b", key="b")
        await self.flow()
        assert self.copied() == "filled"


def result(answers: list[Answer]) -> Any:
    ((status, *rest),) = answers
    if status == "error":
        raise rest[0]
    return rest[0] if rest else status


def same(one: Shard, other: Shard) -> bool:
    """Return whether two shards hold the same."""
    return held(one) == held(other)


def held(shard: Shard) -> Any:
    """Return what a shard holds, rows in the order of their ids, as plain objects."""
    tables = [(name, plain(shard.content(name))) for name in sorted(shard.tables())]
    writers = shard.log()._writers.items()
    return tables, sorted((name, each.low, sorted(each.applied)) for name, each in writers)


def plain(content: Any) -> Any:
    operation, arguments, contained = content
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
    return operation, repr(sorted(arguments.items(), key=str)), lists


def push(name: str = "v") -> tuple[str, str, dict[str, Any]]:
    return name, "push", {"gradient": -ONES}


def push_rows(*ids: int) -> tuple[str, str, dict[str, Any]]:
    gradients = np.full((len(ids), 2), 0.5, np.float32)
    return "e", "push", {"ids": np.array(ids, np.uint64), "gradients": gradients}


def test_a_copy_holds_what_the_shard_holds() -> None:
    async def run() -> None:
        pair = Pair()
        for _ in range(3):
            pair.commit(push(), push_rows(1, 2, 3))
        await pair.fill()
        assert same(pair.shard("a"), pair.shard("b"))

    asyncio.run(run())


def test_a_change_is_answered_when_the_copy_has_it() -> None:
    async def run() -> None:
        pair = Pair()
        await pair.fill()
        answers = pair.commit(push())
        assert answers == []
        pair.wires[0].deliver()
        assert answers == [("OK", None)]
        assert same(pair.shard("a"), pair.shard("b"))

    asyncio.run(run())


def test_reads_wait_for_no_copy() -> None:
    async def run() -> None:
        pair = Pair()
        await pair.fill()
        pair.commit(push())
        (answer,) = pair.send("a", (0, "v", "read", {}))
        assert answer[1].tolist() == [1, 1]

    asyncio.run(run())


def test_what_waits_for_a_copy_is_answered_as_it_was() -> None:
    async def run() -> None:
        pair = Pair()
        await pair.fill()
        change = {"writer": "w", "number": 100, "settled_below": 0, "writes": [push()]}
        both = pair.send("a", (0, "", "commit", change), (0, "v", "read", {}))
        pair.commit(push())
        await pair.flow()
        assert both[1][1].tolist() == [1, 1]

    asyncio.run(run())


def test_a_copy_that_is_being_filled_keeps_nobody_waiting() -> None:
    async def run() -> None:
        pair = Pair()
        pair.manage("a", "copy", index=0, address="b", key="b")
        await asyncio.sleep(0)
        pair.wires[0].deliver()
        assert pair.commit(push()) == [("OK", None)]
        assert pair.copied() == "filling"
        await pair.flow()
        assert pair.copied() == "filled"
        assert same(pair.shard("a"), pair.shard("b"))

    asyncio.run(run())


def test_a_copy_answers_nobody_until_it_is_promoted() -> None:
    async def run() -> None:
        pair = Pair()
        await pair.fill()
        pair.commit(push())
        await pair.flow()
        assert pair.send("b", (0, "v", "read", {})) == [("moved",)]
        pair.manage("b", "promote", shards=[0])
        assert pair.send("b", (0, "v", "read", {}))[0][1].tolist() == [1, 1]

    asyncio.run(run())


def test_a_commit_that_the_dead_primary_answered_is_not_applied_again_by_its_copy() -> None:
    async def run() -> None:
        pair = Pair()
        pair.commit(push(), number=5)  # before there is a copy
        await pair.fill()
        pair.commit(push(), number=6)
        await pair.flow()
        pair.manage("b", "promote", shards=[0])
        for number in (5, 6, 7):
            arguments = {"writer": "w", "number": number, "settled_below": 0, "writes": [push()]}
            pair.do("commit", host="b", **arguments)
        assert pair.send("b", (0, "v", "read", {}))[0][1].tolist() == [3, 3]

    asyncio.run(run())


def test_a_primary_that_was_given_up_by_mistake_acknowledges_nothing_any_more() -> None:
    async def run() -> None:
        pair = Pair()
        await pair.fill()
        pair.manage("b", "promote", shards=[0])
        answers = pair.commit(push())
        await pair.flow()
        assert answers == [("moved",)]
        assert pair.send("a", (0, "v", "read", {})) == [("moved",)]
        assert pair.send("b", (0, "v", "read", {}))[0][1].tolist() == [0, 0]

    asyncio.run(run())


def test_what_waits_for_a_broken_copy_is_answered_when_it_is_let_go() -> None:
    async def run() -> None:
        pair = Pair()
        await pair.fill()
        answers = pair.commit(push())
        pair.wires[0].broken([], ConnectionResetError("gone"))
        later = pair.commit(push())
        assert answers == later == []
        assert pair.copied() == "broken"
        pair.manage("a", "let_go", index=0, key="b")
        assert answers == later == [("OK", None)]
        assert pair.wires[0].closed

    asyncio.run(run())


def test_a_server_that_is_not_there_makes_a_broken_copy() -> None:
    async def run() -> None:
        pair = Pair()
        pair.connect = nowhere  # type: ignore[method-assign]
        pair.manage("a", "copy", index=0, address="b", key="b")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert pair.copied() == "broken"
        assert pair.commit(push()) == [("OK", None)]

    asyncio.run(run())


def test_a_retired_primary_hands_over_everything_and_can_come_back() -> None:
    async def run() -> None:
        pair = Pair()
        await pair.fill()
        answers = pair.commit(push())
        retired = pair.send("a", (ITSELF, "", "retire", {"index": 0, "key": "b"}))
        assert pair.commit(push()) == [("moved",)]
        assert retired == []
        await pair.flow()
        assert answers == retired == [("OK", None)]
        assert same(pair.shard("a"), pair.shard("b"))
        pair.manage("a", "promote", shards=[0])
        answers = pair.commit(push())
        await pair.flow()
        assert answers == [("OK", None)]

    asyncio.run(run())


def test_a_primary_does_not_retire_without_a_complete_copy() -> None:
    pair = Pair()
    with pytest.raises(InternalError, match="no complete copy"):
        pair.manage("a", "retire", index=0, key="b")
    assert pair.commit(push()) == [("OK", None)]


def test_a_shard_that_is_not_here_is_elsewhere() -> None:
    pair = Pair()
    assert pair.send("b", (0, "v", "read", {})) == [("moved",)]
    pair.manage("a", "drop", shards=[0])
    assert pair.send("a", (0, "v", "read", {})) == [("moved",)]
    assert pair.manage("a", "describe") == {}


def test_unknown_operations_are_refused() -> None:
    pair = Pair()
    with pytest.raises(InternalError, match="no operation 'explode'"):
        pair.manage("a", "explode")
    with pytest.raises(InternalError, match="is not the primary of shard 3"):
        pair.manage("a", "let_go", index=3, key="b")


IDS = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True)
STEP = st.one_of(
    st.tuples(st.just("push"), st.sampled_from("vw")),
    st.tuples(st.just("rows"), IDS),
    st.tuples(st.just("both"), IDS),
    st.tuples(st.just("lookup"), IDS),
    st.tuples(st.just("day"), st.none()),
    st.tuples(st.just("shrink"), st.none()),
    st.tuples(st.just("tune"), st.floats(0.01, 1)),
    st.tuples(st.just("again"), st.integers(0, 20)),
    st.tuples(st.just("drop"), st.just("w")),
    st.tuples(st.just("create"), st.just("x")),
    st.tuples(st.just("deliver"), st.integers(1, 3)),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(STEP, max_size=12), st.lists(STEP, max_size=25))
def test_whatever_happens_while_a_copy_is_filled_it_ends_the_same(
    before: list[tuple[str, Any]], meanwhile: list[tuple[str, Any]]
) -> None:
    async def run() -> None:
        pair = Pair()
        for step in before:
            await take(pair, *step)
        pair.manage("a", "copy", index=0, address="b", key="b")
        for step in meanwhile:
            await take(pair, *step)
            await asyncio.sleep(0)
        await pair.flow()
        assert pair.copied() == "filled"
        assert same(pair.shard("a"), pair.shard("b"))

    asyncio.run(run())


async def take(pair: Pair, what: str, value: Any) -> None:
    """Do one thing to the pair's shard."""
    tables = pair.shard("a").tables()
    match what:
        case "push" if value in tables:
            pair.commit(push(value))
        case "rows":
            pair.commit(push_rows(*value))
        case "both":
            pair.commit(push(), push_rows(*value))
        case "lookup":
            pair.send("a", (0, "e", "lookup", {"ids": np.array(value, np.uint64)}))
        case "day":
            pair.commit(("e", "end_day", {}))
        case "shrink":
            arguments = {"threshold": 0.5, "days": 1.0, "forget_waiting": False}
            pair.send("a", (0, "e", "shrink", arguments))
        case "tune":
            pair.send("a", (0, "v", "tune", {"hyperparameters": {"learning_rate": value}}))
        case "again":
            pair.commit(push(), number=value)
        case "drop":
            pair.send("a", (0, "", "drop", {"name": value}))
        case "create" if value not in tables:
            arguments = {"name": value, "values": 3 * ONES, "optimizer": None}
            pair.send("a", (0, "", "create_dense", arguments))
        case "deliver":
            for _ in range(value):
                for wire in pair.wires:
                    if wire.waiting:
                        wire.deliver()
                await asyncio.sleep(0)
