"""Tests of where answers are written."""

from __future__ import annotations

import numpy as np

from psnb._src.server.memory import answer_array, answers_in
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.sparse import SparseTable

F4 = np.dtype("f4")


class Lender:
    """Lends arrays and remembers them; the first ``most``."""

    def __init__(self, most: int = 9) -> None:
        self.lent: list[np.ndarray] = []
        self._most = most

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        if len(self.lent) == self._most:
            return None
        self.lent.append(np.full(shape, np.nan, dtype))
        return self.lent[-1]


def test_answers_are_new_arrays_where_none_is_lent() -> None:
    assert answer_array((2, 3), F4).shape == (2, 3)


def test_what_is_looked_up_or_gathered_lies_in_lent_memory() -> None:
    lender = Lender()
    sparse = SparseTable("e", 2, 9, 0, 1, "float32", Constant(1.0), 0, None)
    dense = DenseTable("v", np.ones((5, 2), "f4"), None)
    token = answers_in.set(lender)
    looked_up = sparse.lookup(np.array([1, 2], np.uint64))
    gathered = dense.gather(np.array([4, 0, 4]))
    answers_in.reset(token)
    assert looked_up is lender.lent[0]
    assert gathered is lender.lent[1]
    assert (looked_up == 1).all()
    assert (gathered == 1).all()


def test_without_room_answers_are_new_arrays() -> None:
    token = answers_in.set(Lender(most=0))
    assert answer_array((4,), F4).shape == (4,)
    answers_in.reset(token)
