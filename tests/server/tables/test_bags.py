"""Bags that come to a table: checked before any loop, and without memory nothing is changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb._src.server import kernels
from psnb._src.server.optimizers import SGD
from psnb._src.server.rounds import Rounds
from psnb._src.server.tables.admission import CountFilter
from psnb._src.server.tables.bags import MEMBER
from psnb._src.server.tables.fused import look_up, reserve_push
from psnb._src.server.tables.initializers import Uniform
from psnb._src.server.tables.operations import BagMembers, LookUpRows, PushRows, on_table
from psnb._src.server.tables.sparse import SparseTable
from psnb.errors import InternalError, PsnbError
from tests.server.no_memory import Allocator

DIM = 3
IDS = np.array([7, 8, 9], np.uint64)


def table(**more: Any) -> SparseTable:
    return SparseTable("e", DIM, None, 0, 1, "float32", Uniform(), 1, SGD(1.0), **more)


def members(position: Any = (0, 1, 1, 2), bounds: Any = (0, 3, 3, 4), factors: Any = ()) -> Any:
    dtypes = MEMBER, np.dtype(np.int64), np.dtype(np.float32)
    given = zip((position, bounds, factors), dtypes, strict=True)
    return BagMembers(*(a if hasattr(a, "dtype") else np.array(a, d) for a, d in given))


def gradients(bags: int = 3) -> np.ndarray:
    return np.arange(bags * DIM, dtype=np.float32).reshape(bags, DIM)


def refused_by_all(bags: Any, given: Any) -> SparseTable:
    """Return a table that has refused bags of its ids at each door."""
    made, push = table(), PushRows(IDS, given, bags=bags)
    with pytest.raises(PsnbError):
        reserve_push([made], push)
    with pytest.raises(PsnbError):
        Rounds().reserve(made, on_table("e", push))
    return made


@pytest.mark.parametrize(
    "bad",
    [
        {"position": (0, 1, 1, 3)},
        {"position": (0, -1, 1, 2)},
        {"position": np.zeros(4, np.int64)},
        {"position": np.zeros((4, 1), MEMBER)},
        {"bounds": (0, 3, 2, 4)},
        {"bounds": (0, 3, 3, 5)},
        {"bounds": (0, 3, 3, 3)},
        {"bounds": (1, 3, 3, 4)},
        {"bounds": ()},
        {"bounds": np.array([0, 3, 3, 4], np.int32)},
        {"factors": (1.0, 2.0)},
        {"factors": np.ones(4)},
        {"factors": np.ones((4, 1), np.float32)},
    ],
    ids=str,
)
def test_bags_that_do_not_fit_reach_no_loop(bad: dict[str, Any]) -> None:
    made = refused_by_all(members(**bad), gradients())
    with pytest.raises(PsnbError):
        look_up([made], LookUpRows(IDS, bags=members(**bad)))
    assert made.describe_rows()["rows"] == 0


@pytest.mark.parametrize(
    "given",
    [gradients(2), gradients(4), gradients()[:, :2], gradients().astype("f8"), gradients()[0]],
    ids=lambda each: f"{each.dtype} {each.shape}",
)
def test_gradients_that_are_not_of_the_bags_are_refused(given: np.ndarray) -> None:
    assert refused_by_all(members(), given).describe_rows()["rows"] == 0


def test_bags_are_of_one_table() -> None:
    offsets = np.array([0, 1, 3])
    with pytest.raises(InternalError):
        look_up([table(), table()], LookUpRows(IDS, offsets, bags=members()))
    with pytest.raises(InternalError):
        reserve_push([table(), table()], PushRows(IDS, gradients(), offsets, bags=members()))


def test_a_lookup_of_bags_counts_each_id_once() -> None:
    made = table(admission=CountFilter(2))
    for rows in (0, 3):
        look_up([made], LookUpRows(IDS, bags=members()))
        assert made.describe_rows()["rows"] == rows


@pytest.mark.parametrize("push", [True, False])
def test_bags_without_memory_change_nothing(push: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator, made = Allocator(monkeypatch), table(admission=CountFilter(2))
    made.lookup(IDS)

    def run() -> None:
        if push:
            reserve_push([made], PushRows(IDS, gradients(), bags=members()))()
        else:
            look_up([made], LookUpRows(IDS, bags=members()))

    first = 0
    while True:
        with allocator.fails(first):
            try:
                run()
            except MemoryError:
                assert made.describe_rows()["waiting"] == len(IDS)
            else:
                break
        first += 1
    assert first > 1
    assert made.describe_rows()["rows"] == len(IDS)


HOSTILE = [
    ([0, 9, -9, 2**31 - 1], [0, 3, 3, 4]),
    ([0, 1, 1, 2], [0, 9, 3, -5]),
    ([0, 1, 1, 2], [0, -(2**63), 2**63 - 1, 2]),
]


@pytest.mark.parametrize(("position", "bounds"), HOSTILE)
@pytest.mark.parametrize("factors", [(), (1.0, 2.0, 3.0, 4.0)])
def test_bags_that_change_after_the_check_are_summed_within_their_arrays(
    position: list[int], bounds: list[int], factors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "ask_for", lambda array, row, line: array[row])
    # In Python, where numpy raises; compiled, other memory would be read, or written.
    given = members(position, bounds, factors)
    of = given.position, given.bounds, given.factors
    out = np.zeros((3, DIM), np.float32)
    for kernel in (kernels.add_rows_to_bags, kernels.add_bags_to_rows):
        kernel.py_func(gradients(), *of, out)
