"""Commits while tables are loaded: each is wholly before, or wholly after. In this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from psnb._src.client import parameter_shards
from psnb._src.client.handles import shards_of
from psnb._src.client.requests import Request
from psnb._src.client.server_client import ServerClient
from psnb._src.client.tables.marks import ParameterMarks
from psnb._src.client.variable import Variable
from psnb._src.client.whole_tables import TableLoad, others_waiting
from psnb._src.placement.layout import ShardId, ShardPlacement
from psnb._src.server.commit_log import PROCESS, Commit, Part
from psnb._src.server.messages import Done, Later, PendingReply, ServerAnswer
from psnb._src.server.operations import (
    ApplyCommit,
    BeginLoading,
    CommitPart,
    CommitParts,
    CountLoading,
    CreateDense,
    EndLoading,
    EndRound,
    GiveUpCommit,
    HostShards,
    MeasureTables,
    OnShard,
    PreparePart,
    TakeSnapshot,
)
from psnb._src.server.server import Host
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.operations import (
    AddValues,
    CountUpdates,
    LookUpRows,
    Preview,
    PutSegment,
    ReadValues,
    ShardOperation,
    ShrinkTable,
    TuneOptimizer,
    on_table,
)
from psnb.errors import (
    CheckpointError,
    ConfigurationError,
    ServerLostError,
    ServerUnresponsiveError,
)
from tests.client.in_process import InProcess, nowhere, variable
from tests.server.pair import now
from tests.server.standby import THREADS

SHARDS = A, B = ShardId("s", 0), ShardId("s", 1)
COMMIT = Commit("w", 1, shards=SHARDS)


def add(start: int) -> Part:
    return Part([on_table(f"v/{start}", AddValues(np.ones(2)))])


PARTS = {A: add(0), B: add(2)}
PLACES = [*enumerate(SHARDS)]
IDS = np.arange(2, dtype=np.uint64)


@pytest.fixture
def spread() -> Variable:
    """Four zeros on two shards."""
    return variable(np.zeros(4), shards=2)


def ask(v: Variable, *requests: Request) -> list[Any]:
    return shards_of(v).server_client.call(requests)


def prepare(v: Variable) -> None:
    ask(v, *[Request(shard, PreparePart(COMMIT, PARTS[shard])) for shard in SHARDS])


def load(v: Variable, value: float) -> None:
    states = shards_of(v).shard_states()
    shards_of(v).load_states([{**each, "values": each["values"] + value} for each in states])


def test_a_commit_that_one_shard_has_applied_is_before(spread: Variable) -> None:
    prepare(spread)
    ask(spread, Request(A, ApplyCommit(COMMIT)))
    states = shards_of(variable(np.full(4, 5.0), shards=2)).shard_states()
    shards_of(spread).load_states(states)
    np.testing.assert_array_equal(spread.read(), [5, 5, 5, 5])
    ask(spread, *[Request(shard, ApplyCommit(COMMIT)) for shard in SHARDS])
    np.testing.assert_array_equal(spread.read(), [5, 5, 5, 5])


def test_a_commit_that_no_shard_has_applied_is_afterwards(spread: Variable) -> None:
    prepare(spread)
    load(spread, 5.0)
    ask(spread, *[Request(shard, ApplyCommit(COMMIT)) for shard in SHARDS])
    np.testing.assert_array_equal(spread.read(), [6, 6, 6, 6])


WAIT = {
    "commit": CommitPart(COMMIT, PARTS[A]),
    "preparing": PreparePart(COMMIT, PARTS[A]),
    "applying": ApplyCommit(COMMIT),
    "deciding": ApplyCommit(COMMIT, decided=True),
    "several": CommitParts(COMMIT, {0: PARTS[A]}),
    "round": EndRound("w", 1, (), {}),
    "read": on_table("v", ReadValues()),
    "lookup": on_table("v", LookUpRows(IDS)),
    "preview": on_table("v", Preview([], ReadValues())),
    "shrinking": on_table("v", ShrinkTable(0.5, 1.0, False)),
    "snapshot": TakeSnapshot("v"),
}
GO_ON = {
    "given up": GiveUpCommit(COMMIT),
    "loading": on_table("v", PutSegment({})),
    "tuning": on_table("v", TuneOptimizer({})),
    "counting": on_table("v", CountUpdates()),
    "measuring": MeasureTables(),
}


@pytest.mark.parametrize("operation", [*WAIT.values(), *GO_ON.values()], ids=[*WAIT, *GO_ON])
def test_while_tables_are_loaded_what_could_be_in_part_waits(operation: ShardOperation) -> None:
    shard = ParameterShard("test")
    assert not shard.waits(operation)
    shard.run(BeginLoading("one"))
    shard.run(BeginLoading("other"))
    shard.run(EndLoading("one"))
    shard.run(BeginLoading("one"))  # again, and late
    assert shard.waits(operation) == (operation in WAIT.values())
    shard.run(EndLoading("other"))
    assert not shard.waits(operation)


def test_a_commit_of_several_shards_waits_for_each_of_them() -> None:
    host = Host("key", "here", now, THREADS, THREADS)

    def run(operation: Any) -> ServerAnswer:
        answers: list[ServerAnswer] = []
        host.run([operation], PendingReply(answers.extend), nowhere)
        return answers[0]

    run(HostShards({number: ShardPlacement(None) for number in range(2)}, []))
    both = OnShard(0, CommitParts(COMMIT, {0: Part([]), 1: Part([])}))
    run(OnShard(1, BeginLoading("x")))
    assert run(both) == Later()
    run(OnShard(1, EndLoading("x")))
    assert isinstance(run(both), Done)


def test_a_load_that_fails_lets_others_go_on(
    spread: Variable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(client: ServerClient, loads: Sequence[TableLoad]) -> None:
        raise ServerLostError("gone")

    monkeypatch.setattr(parameter_shards, "load_tables", fail)
    with pytest.raises(ServerLostError):
        load(spread, 5.0)
    np.testing.assert_array_equal(spread.read(), [0, 0, 0, 0])


def test_what_is_not_loaded_wholly_is_dropped_once_at_the_end(spread: Variable) -> None:
    client = shards_of(spread).server_client
    with others_waiting(client, SHARDS) as one:
        one.drops = True
    with pytest.raises(ConfigurationError, match="it was dropped"):
        spread.read()
    ask(
        spread,
        *[Request(shard, CreateDense(f"v/{2 * n}", np.ones(2), None)) for n, shard in PLACES],
    )
    ask(spread, Request(A, EndLoading(one.key, drops=True)))  # a copy that comes late
    np.testing.assert_array_equal(spread.read(), [1, 1, 1, 1])


def test_a_mark_has_the_whole_of_a_commit_that_one_shard_has_applied(spread: Variable) -> None:
    prepare(spread)
    ask(spread, Request(A, ApplyCommit(COMMIT)))
    parameters = {"v": shards_of(spread)}
    mark = ParameterMarks(shards_of(spread).server_client, SHARDS, parameters)
    load(spread, 5.0)
    for _ in mark.loading(parameters):
        pass
    np.testing.assert_array_equal(spread.read(), [1, 1, 1, 1])


def test_an_end_that_a_server_does_not_answer_is_sent_again(
    spread: Variable, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, unresponsive = InProcess.attempt, [ServerUnresponsiveError("frozen")]

    def first_fails(self: InProcess, requests: Sequence[Request], *rest: Any) -> list[Any]:
        ends = [each for each in requests if isinstance(each.operation, EndLoading)]
        if unresponsive and ends:
            return [unresponsive.pop(), *attempt(self, requests[1:], *rest)]
        return attempt(self, requests, *rest)

    monkeypatch.setattr(InProcess, "attempt", first_fails)
    load(spread, 5.0)
    np.testing.assert_array_equal(spread.read(), [5, 5, 5, 5])


def test_changes_of_a_table_are_taken_in_their_order_and_none_after_one_that_was_missed() -> None:
    shard = ParameterShard("test")
    shard.run(BeginLoading("key"))
    for place in (1, 1, 2):
        shard.run(CountLoading("key", "t", place))
    for key, table, place in (("key", "t", 1), ("key", "t", 4), ("key", "u", 2), ("late", "t", 1)):
        with pytest.raises(CheckpointError, match="was not changed"):
            shard.run(CountLoading(key, table, place))
    shard.run(CountLoading("key", "t", 3))


def test_no_minute_passes_while_tables_are_loaded() -> None:
    shard = ParameterShard("test")
    shard.run(PreparePart(Commit(f"{PROCESS}w", 1, shards=SHARDS), Part([])))
    shard.run(BeginLoading("key"))
    for _ in range(100):
        shard.tick()
    assert len(shard.log) == 1
    shard.run(EndLoading("key"))
    for _ in range(100):
        shard.tick()
    assert len(shard.log) == 0
