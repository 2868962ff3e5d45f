"""Messages that every reader of JSON takes."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.monitor.updates import plain


@pytest.mark.parametrize(
    ("value", "word"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_what_is_no_finite_number_becomes_a_word(value: float, word: str) -> None:
    assert plain({"rows": [(1.5, value), (np.float64(value), np.float32(value))]}) == {
        "rows": [[1.5, word], [word, word]]
    }


def test_figures_of_numpy_become_pythons() -> None:
    made = plain([np.int64(3), np.float32(0.5), np.bool_(True), np.uint64(2**64 - 1)])
    assert made == [3, 0.5, True, 2**64 - 1]
    assert [type(each) for each in made] == [int, float, bool, int]


def test_bytes_of_file_names_that_are_no_text_are_left_out() -> None:
    name = b"caf\xe9.csv".decode("utf-8", "surrogateescape")
    assert plain({name: name, "é": "é"}) == {"caf?.csv": "caf?.csv", "é": "é"}


messages = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=20,
)


@given(messages)
def test_whatever_is_sent_can_be_read_strictly(message: Any) -> None:
    text = json.dumps(plain(message), allow_nan=False)
    assert msgspec.json.decode(text) == plain(message)
