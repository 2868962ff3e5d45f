"""Tests of the ids of a lookup or push."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from psnb._src.client.arguments import checked_ids
from psnb._src.client.ids import Ids, SeenIds
from psnb._src.server.hashing import Distinct, distinct_of_parts
from psnb._src.utils.ownership import may_change
from psnb.errors import IdOutOfRangeError

DIM = 3


def ids_of(given: ArrayLike, padding: int | None = None) -> Ids:
    return Ids(checked_ids(given, "e", None), padding)


def table(rows: int) -> np.ndarray:
    return np.arange(rows * DIM, dtype="f4").reshape(rows, DIM) + 1


@settings(max_examples=100)
@given(
    ids=st.lists(st.integers(0, 5), max_size=8) | st.lists(st.integers(0, 5), min_size=64),
    padding=st.sampled_from([None, 0, 3]),
)
def test_rows_of_what_is_asked_become_rows_of_all(ids: list[int], padding: int | None) -> None:
    of_ids = ids_of(ids, padding)
    found = of_ids.spread(table(6)[of_ids.asked.astype(int)])
    expected = table(6)[np.array(ids, int)]
    if padding is not None:
        expected[np.array(ids, int) == padding] = 0
    np.testing.assert_array_equal(found, expected)


def test_ids_of_any_shape_give_rows_of_that_shape() -> None:
    assert ids_of([[1, 2], [2, 1]]).spread(table(4)).shape == (2, 2, DIM)
    assert ids_of(4).spread(table(1)).shape == (DIM,)
    assert ids_of(np.zeros((0, 7), int)).spread(table(0)).shape == (0, 7, DIM)


def test_few_ids_or_ids_that_hardly_repeat_are_asked_for_as_they_are() -> None:
    for ids in ([1, 1, 1], np.arange(5000)):
        assert ids_of(ids).asked.tolist() == list(ids)


def test_ids_that_are_there_once_need_no_positions_and_are_sent_without_a_copy() -> None:
    found, position = ids_of(np.arange(100)).distinct
    assert found.tolist() == [*range(100)]
    assert position is None
    assert not may_change(found)
    _, position = ids_of([3, 4, 3]).distinct
    assert position is not None
    assert position.tolist() == [0, 1, 0]


def test_few_ids_that_repeat_are_numbered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    numbered = list[int]()

    def noting(parts: list[np.ndarray]) -> list[Distinct]:
        numbered.extend(part.size for part in parts)
        return distinct_of_parts(parts)

    monkeypatch.setattr("psnb._src.client.ids.distinct_of_parts", noting)
    of_ids = ids_of([7] * 100)
    assert of_ids.asked.tolist() == [7]
    assert of_ids.distinct[0].tolist() == [7]
    assert numbered == [100]


def test_the_same_object_is_looked_through_once() -> None:
    seen, ids = SeenIds(), np.arange(10)
    first = seen.get(ids, "deep", 10, None)
    assert seen.get(ids, "wide", 10, None) is first
    assert seen.get(ids.copy(), "wide", 10, None) is not first


def test_tables_of_other_rows_or_padding_look_for_themselves() -> None:
    seen, ids = SeenIds(), np.arange(10)
    assert seen.get(ids, "large", 10, None).flat.size == 10
    assert seen.get(ids, "padded", 10, 0).flat.size == 9
    with pytest.raises(IdOutOfRangeError, match="'small' has 5 rows"):
        seen.get(ids, "small", 5, None)


def test_another_object_in_the_same_place_is_not_taken_for_the_first() -> None:
    seen = SeenIds()
    found = [seen.get(np.full(3, n), "e", None, None).flat.tolist() for n in range(50)]
    assert found == [[n] * 3 for n in range(50)]
