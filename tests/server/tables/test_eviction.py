"""Which rows are the next to leave a table, of a policy alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from psnb._src.server.tables.eviction import leaving, policy, replacing
from psnb._src.server.tables.eviction.leaving import Leaving
from psnb._src.server.tables.eviction.policy import (
    Eviction,
    RowUsage,
    bound_of_lowest,
    in_order,
)
from psnb._src.server.tables.row_use import CtrAccessor
from psnb.errors import ConfigurationError

STAMPS = np.array([5, 3, 9, 3], np.uint32)
USAGE = RowUsage(
    *(10 - STAMPS, np.array([2, 2, 1, 7], np.uint32)),
    *(np.array(each, np.float32) for each in ([0, 4, 4, 1], [0, 1, 0, 0], [0, 0, 0, 3])),
)


def order(evict: Any, usage: RowUsage = USAGE) -> list[int]:
    found = Eviction(4, evict).order(usage, STAMPS, CtrAccessor(), "e")
    assert found.dtype.kind == "u"
    return np.argsort(found, kind="stable").tolist()


def test_the_least_recently_used_leave_first() -> None:
    assert order("lru") == [1, 3, 0, 2]


def test_the_least_often_used_leave_first_of_equal_ones_the_older() -> None:
    assert order("lfu") == [2, 1, 0, 3]


def test_the_lowest_scores_of_the_accessor_leave_first() -> None:
    assert order("score") == [0, 3, 2, 1]


def test_the_lowest_scores_of_a_function_leave_first() -> None:
    assert order(lambda use: np.array([0.5, -1e300, -0.0, 1e-320])) == [1, 2, 3, 0]
    assert order(lambda use: -use.unseen_days) == [3, 0, 1, 2]
    assert order(lambda use: use.age > 5) == [0, 2, 1, 3]


@pytest.mark.parametrize(
    "found",
    [
        *(None, 1.0, [1.0] * 4, np.zeros(3), np.zeros((4, 1)), np.full(4, np.nan)),
        *(np.array([0, 1, 2, np.inf]), np.zeros(4, complex), np.array(["a"] * 4)),
    ],
    ids=lambda each: str(each).replace("\n", " ")[:20],
)
def test_what_is_no_score_for_each_row_is_refused(found: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'e'.*must return an array of 4 finite"):
        order(lambda use: found)


def test_a_function_that_raises_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"evict=.*raised KeyError: 'x'") as caught:
        order(lambda use: {}["x"])
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("most", [0, 3, 2**20, 2**64 - 1])
@pytest.mark.parametrize("count", [1, 50, 5000])
def test_the_lowest_are_found_and_of_equal_ones_the_first(most: int, count: int) -> None:
    random = np.random.default_rng(most % 1000)
    numbers = random.integers(0, most, 5000, dtype=np.uint64, endpoint=True)
    expected = np.argsort(numbers, kind="stable")[:count]
    out = np.empty(numbers.size, np.int64)
    size, alike = replacing.find_below(numbers, *bound_of_lowest(numbers, count), 7, out)
    at = out[:size] - 7
    assert (at.tolist(), alike) == (sorted(expected), 0)
    assert in_order(numbers[at], at.astype(np.uint64)).tolist() == expected.tolist()


def test_equal_rows_take_turns(few_at_a_time: Callable[[np.ndarray], Leaving]) -> None:
    of, ids, seen = few_at_a_time(np.zeros(128, np.uint32)), np.arange(128, dtype=np.uint64), []
    for _ in range(6):
        seen += of.lowest(9, ids, 0, None, "e").tolist()
    assert seen[:128] == [*range(128)]


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[np.ndarray], Leaving]:
    """Have choices look at few of the rows, as those of large tables do."""
    for name, most in (("_SAMPLE", 64), ("_MOST", 16), ("BLOCK", 32)):
        monkeypatch.setattr(leaving, name, most)
    monkeypatch.setattr(policy, "BLOCK", 32)

    def make(stamps: np.ndarray) -> Leaving:
        made = Leaving(Eviction(stamps.size))
        for array in made.arrays:
            array.grow(stamps.size)
        made.stamps[:] = stamps
        return made

    return make


def test_each_choice_goes_on_where_the_last_one_ended(
    few_at_a_time: Callable[[np.ndarray], Leaving],
) -> None:
    stamps = np.random.default_rng(0).permutation(2048).astype(np.uint32)
    of, ids, seen = few_at_a_time(stamps), np.arange(2048, dtype=np.uint64), []
    for _ in range(24):
        found = of.lowest(4, ids, 3000, None, "e")
        assert 4 <= found.size < 64  # of the lowest, which are 132
        assert (np.diff(of.stamps[found].astype(np.int64)) > 0).all()
        seen += found.tolist()
        of.stamps[found] += 3000  # they are used
    assert stamps[seen].max() < 800
    assert np.count_nonzero(of.stamps < 50) < 10  # it has gone round


def test_all_rows_are_looked_at_where_none_that_is_lower_may_stay(
    few_at_a_time: Callable[[np.ndarray], Leaving],
) -> None:
    stamps = np.random.default_rng(0).permutation(2048).astype(np.uint32)
    ids = np.arange(2048, dtype=np.uint64)
    found = few_at_a_time(stamps).lowest(300, ids, 3000, None, "e", whole=True)
    assert stamps[found[:300].astype(np.int64)].tolist() == [*range(300)]


def test_a_sample_that_is_not_like_the_rest_is_made_up_for(
    few_at_a_time: Callable[[np.ndarray], Leaving],
) -> None:
    stamps = np.full(2048, 9, np.uint32)
    stamps[::32] = 0  # all that are in the sample
    found = few_at_a_time(stamps).lowest(1000, np.arange(2048, dtype=np.uint64), 10, None, "e")
    assert found.size >= 1000
