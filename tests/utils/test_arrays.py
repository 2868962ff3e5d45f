"""Tests of what makes arrays of integers of whatever holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb._src.utils.arrays import bits_of, concatenated, integers_of
from psnb.data import Ragged
from psnb.errors import InvalidArrayError
from tests.utils.id_forms import FORMS, HIGH, LOW, NO_IDS


@pytest.mark.parametrize("form", FORMS)
def test_ids_of_any_form_keep_their_bits(form: str) -> None:
    make, expected = FORMS[form]
    found = bits_of(integers_of(make(), "ids"))
    assert found.reshape(-1).tolist() == expected
    assert found.shape == np.shape(make())


@pytest.mark.parametrize("form", NO_IDS)
def test_what_is_no_id_is_refused(form: str) -> None:
    make, problem = NO_IDS[form]
    with pytest.raises(InvalidArrayError, match=f"^ids.*{problem}"):
        integers_of(make(), "ids")


def test_bags_are_refused_with_what_to_take_of_them() -> None:
    with pytest.raises(InvalidArrayError, match=r"of bags take \.values, and \.offsets"):
        integers_of(Ragged.from_rows([[1], [2, 3]]), "ids")


def test_an_array_of_integers_is_not_copied() -> None:
    given = np.arange(3, dtype="u1")
    assert integers_of(given, "ids") is given


@pytest.mark.parametrize(
    ("parts", "dtype"),
    [
        ([np.array([LOW]), np.array([HIGH], "u8")], "uint64"),
        ([np.array([-1]), np.array([LOW], "u8")], "int64"),
        ([np.array([1], "i4"), np.array([2], "u4")], "int64"),
        ([np.array([1], "u1"), np.array([2], "u1")], "uint8"),
        ([np.array([1]), np.array([2.5])], "float64"),
        ([np.array([]), np.array([LOW])], "int64"),
        ([np.array([], "u8"), np.array([], "i8")], "int64"),
    ],
)
def test_integers_end_to_end_stay_such(parts: list[Any], dtype: str) -> None:
    found = concatenated(parts)
    assert (found.dtype, found.tolist()) == (dtype, [n for part in parts for n in part.tolist()])


def test_integers_that_no_type_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="no 64-bit type holds integers from -1 to 9"):
        concatenated([np.array([-1]), np.array([HIGH], "u8")])
