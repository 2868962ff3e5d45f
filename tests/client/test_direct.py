"""Numbers of commits: what shards are told, and what they have to remember."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psnb._src.client.direct import CommitNumbers
from psnb._src.placement.layout import ShardId
from psnb._src.utils.range_set import RangeSet

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
