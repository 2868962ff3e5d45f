"""Tests of what is said of a batch."""

from __future__ import annotations

import numpy as np

from psnb._src.models import batch_summary


def test_fields_that_are_not_finite_come_first() -> None:
    fields = [("x", np.array([[1.0, 2.5]])), ("y", np.array([3.0, np.nan])), ("ids", np.arange(3))]
    assert batch_summary(fields) == "y [2] 3 to 3, 1 not finite; x [1, 2] 1 to 2.5; ids [3] int64"


def test_many_fields_are_counted() -> None:
    fields = [(f"f{number}", np.zeros(0)) for number in range(11)]
    assert batch_summary(fields).endswith("; and 3 more")
    assert batch_summary([("y", np.full(2, np.inf))]) == "y [2] nothing finite, 2 not finite"
