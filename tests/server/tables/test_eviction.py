"""Which rows are the next to leave a table, of a policy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb._src.server import hashing
from psnb._src.server.tables.eviction.policy import Eviction, RowUsage, lowest
from psnb._src.server.tables.row_use import CtrAccessor
from psnb.errors import ConfigurationError

STAMPS = np.array([5, 3, 9, 3], np.uint32)
USAGE = RowUsage(
    *(10 - STAMPS, np.array([2, 2, 1, 7], np.uint32)),
    *(np.array(each, np.float32) for each in ([0, 4, 4, 1], [0, 1, 0, 0], [0, 0, 0, 3])),
)


def order(evict: Any, usage: RowUsage = USAGE) -> list[int]:
    found = Eviction(4, evict).order(usage, STAMPS, CtrAccessor(), "e")
    assert found.dtype == np.uint64
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
def test_the_lowest_are_in_order_whatever_the_order_of_the_rows(most: int, count: int) -> None:
    random = np.random.default_rng(most % 1000)
    ids = random.choice(1 << 40, 5000, replace=False).astype(np.uint64)
    numbers = random.integers(0, most, ids.size, dtype=np.uint64, endpoint=True)
    hashes = np.empty_like(ids)
    hashing.hash_ids(ids, hashes)
    expected = ids[np.lexsort((hashes, numbers))][:count].tolist()
    for _ in range(2):
        assert lowest(numbers, ids, count).tolist() == expected
        other = random.permutation(ids.size)
        ids, numbers = ids[other], numbers[other]


def test_of_none_the_lowest_are_none() -> None:
    assert lowest(np.empty(0, np.uint64), np.empty(0, np.uint64), 0).size == 0
