"""Direct commits: what shards learn and have to remember of them, and how those in doubt end."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.client import direct
from psnb._src.client.direct import CommitNumbers
from psnb._src.client.handles import shards_of
from psnb._src.client.requests import Request
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.operations import GiveUpCommit, PreparePart
from psnb._src.server.tables.operations import AddValues, on_table
from psnb._src.utils.range_set import RangeSet
from tests.client.in_process import variable

A, B = ShardId("s", 0), ShardId("s", 1)


def test_what_has_ended_is_told_with_the_next_commit() -> None:
    numbers = CommitNumbers()
    assert numbers.begin([A]) == (0, ())
    numbers.end(0)
    assert numbers.begin([A]) == (1, (0, 1))


def test_what_a_shard_was_told_is_told_to_another_one_too() -> None:
    numbers = CommitNumbers()
    numbers.begin([A])
    numbers.end(0)
    assert [numbers.begin([each])[1] for each in (A, A, B)] == [(0, 1), (), (0, 1)]


def test_one_that_never_ends_costs_no_more_than_a_range() -> None:
    numbers = CommitNumbers()
    stuck, _ = numbers.begin([A])
    for _ in range(1000):
        number, told = numbers.begin([A])
        assert len(told) <= 2
        numbers.end(number)
    assert numbers._settled.bounds() == (stuck + 1, 1001)


@given(st.lists(st.tuples(st.sampled_from([(A,), (B,), (A, B)]), st.integers(0, 9)), max_size=200))
def test_a_shard_remembers_twice_what_is_under_way_at_most(
    steps: list[tuple[tuple[ShardId, ...], int]],
) -> None:
    numbers, under_way = CommitNumbers(), list[int]()
    known = {A: set[int](), B: set[int]()}
    most = travelled = 0
    for shards, ends in steps:
        number, told = numbers.begin(shards)
        under_way.append(number)
        most, travelled = max(most, len(under_way)), travelled + len(told) // 2
        settled = RangeSet(told)
        for shard in shards:
            known[shard] = {each for each in known[shard] if each not in settled} | {number}
            assert len(known[shard]) <= 2 * most
        if ends < len(under_way):
            numbers.end(under_way.pop(ends))
    assert travelled <= 3 * len(steps)


def test_a_commit_that_one_server_gave_up_is_made_by_none_when_another_answers() -> None:
    v = variable(np.zeros(4), shards=2)
    client = shards_of(v).server_client
    shards = tuple(shard for shard, _ in shards_of(v).tables)
    commit = Commit("process x", 0, shards=shards)
    for shard, table in shards_of(v).tables:
        part = Part([on_table(table, AddValues(np.ones(2)))])
        client.call([Request(shard, PreparePart(commit, part))])
    client.call([Request(shards[1], GiveUpCommit(commit))])
    ended: list[bool] = []
    direct._finish(client, commit, lambda: ended.append(True))
    assert ended
    assert v.read().tolist() == [0.0] * 4
