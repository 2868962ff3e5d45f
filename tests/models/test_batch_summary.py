"""Tests of what is said of a batch."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import numpy as np

from psnb._src.models.batch_rows import batch_summary
from psnb._src.worker.context import WorkerContext, entered
from psnb._src.worker.lease_requests import LeaseRequests
from psnb._src.worker.resources import SharedIterator
from psnb.data import Dataset


def test_fields_that_are_not_finite_come_first() -> None:
    fields = [("x", np.array([[1.0, 2.5]])), ("y", np.array([3.0, np.nan])), ("ids", np.arange(3))]
    assert batch_summary(fields) == "y [2] 3 to 3, 1 not finite; x [1, 2] 1 to 2.5; ids [3] int64"


def test_many_fields_are_counted() -> None:
    fields = [(f"f{number}", np.zeros(0)) for number in range(11)]
    assert batch_summary(fields).endswith("; and 3 more")
    assert batch_summary([("y", np.full(2, np.inf))]) == "y [2] nothing finite, 2 not finite"


def test_the_element_that_the_closure_took_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n3\n4\n5\n")
    dataset = Dataset.text_lines(tmp_path / "a.txt").map(float).batch(2)
    taken = SharedIterator(iter(dataset))
    requests = LeaseRequests(0, Future, bool, ())
    with entered(WorkerContext(0, 1, "w", 1, lambda *_: None, lease_requests=requests)):
        assert batch_summary([("y", next(taken))]) == (
            "y [2] 1 to 2; it is element 0 (its first example is of "
            f"{tmp_path / 'a.txt'}, record 1) of this worker's dataset (elements count from 0)"
        )
        next(taken)
        assert "element 1 (" in batch_summary([])
        assert "record 3)" in batch_summary([])
    assert batch_summary([("y", np.zeros(1))]) == "y [1] 0 to 0"
