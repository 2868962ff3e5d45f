from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb.data import Ragged
from psnb.errors import DatasetError

ROWS = st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=8)


def ragged(rows: list[list[int]]) -> Ragged:
    return Ragged.from_rows(rows, np.int64)


@given(ROWS)
def test_rows_come_back_as_they_went_in(rows: list[list[int]]) -> None:
    made = ragged(rows)
    assert made.to_list() == rows
    assert [made[i].tolist() for i in range(len(made))] == rows


@given(ROWS, st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([None, 1, 2, -1, -3]))
def test_slices_are_those_of_a_list(
    rows: list[list[int]], start: int, stop: int, step: int | None
) -> None:
    cut = slice(start, stop, step)
    assert ragged(rows)[cut].to_list() == rows[cut]


@given(ROWS, st.data())
def test_take_gathers_rows(rows: list[list[int]], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    assert ragged(rows).take(np.array(indices, int)).to_list() == [rows[i] for i in indices]


@given(ROWS, ROWS)
def test_concatenation_is_that_of_lists(left: list[list[int]], right: list[list[int]]) -> None:
    assert Ragged.concatenate([ragged(left), ragged(right)]).to_list() == left + right


def test_padding_fills_up() -> None:
    assert ragged([[1], [], [2, 3]]).pad(value=-1).tolist() == [[1, -1], [-1, -1], [2, 3]]
    with pytest.raises(DatasetError, match="row 1 has 2 values"):
        ragged([[1], [2, 3]]).pad(1)


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        ([[3, 4], [], [5]], np.int64),
        ([[], [2.5]], np.float64),
        ([[], [True]], np.bool_),
        ([[], ["a", "bc"]], "<U2"),
        ([[], []], np.float64),
        ([np.array([]), np.array([3])], np.int64),
        ([np.empty(0, np.float32), np.ones(1, np.int8)], np.float32),
    ],
)
def test_an_empty_list_has_no_say_in_the_dtype(rows: list[object], dtype: object) -> None:
    assert Ragged.from_rows(rows).dtype == dtype


def test_rows_may_have_more_axes() -> None:
    rows = [np.ones((2, 3)), np.zeros((0, 3))]
    made = Ragged.from_rows(rows)
    assert made.shape == (2, None, 3)
    assert made[1].shape == (0, 3)


def test_equality_is_of_rows_and_it_pickles() -> None:
    made = ragged([[1], [2, 3]])
    assert pickle.loads(pickle.dumps(made)) == made
    assert made != ragged([[1, 2], [3]])


@pytest.mark.parametrize(
    "offsets", [[], [1, 3], [0, 2], [0, 3, 2, 3], [[0, 3]], [0.0, 3.0]], ids=str
)
def test_offsets_that_do_not_fit_are_refused(offsets: list[int]) -> None:
    with pytest.raises(DatasetError, match="offsets"):
        Ragged(np.arange(3), np.array(offsets))
