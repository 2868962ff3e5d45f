"""Tests of ids that are several times in one push."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb.server.duplicates import summed


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, 6), max_size=12))
def test_summed_has_each_id_once_with_its_sum(ids: list[int]) -> None:
    array, gradients = np.array(ids, np.uint64), np.arange(2.0 * len(ids)).reshape(-1, 2)
    distinct, sums = summed(array, gradients)
    assert sorted(distinct.tolist()) == sorted(set(ids))
    for each, total in zip(distinct, sums, strict=True):
        assert total.tolist() == gradients[array == each].sum(0).tolist()
