"""Tests of what changes about a table's optimizer: its step, its hyperparameters."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from psnb._src.server import kernels
from psnb._src.server.making import warm_up
from psnb._src.server.operations import CreateDense, CreateSparse
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adam, RMSProp
from psnb._src.server.schedules import PiecewiseConstant
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import (
    CountSkipped,
    LookUpRows,
    PushGradient,
    PushRows,
    ReadOptimizer,
    ReadRate,
    ReadValues,
    SkipUpdates,
    TableRead,
    TuneOptimizer,
)
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import Table
from psnb.errors import ConfigurationError
from tests.server.writes import push

ONE = np.ones(1, np.float32)
IDS = np.zeros(1, np.uint64)


def dense(optimizer: Optimizer | None) -> DenseTable:
    return DenseTable("v", np.zeros(1, np.float32), optimizer)


def sparse(optimizer: Optimizer | None) -> SparseTable:
    return SparseTable("e", 1, None, 0, 1, "float32", Constant(0.0), 0, optimizer)


def push_one(table: Table) -> None:
    if isinstance(table, DenseTable):
        push(table, ONE)
    else:
        table.run(PushRows(IDS, ONE[None]))


def value(table: Table) -> float:
    found: np.ndarray = table.run(read(table))
    return float(found.item())


def read(table: Table) -> TableRead:
    return LookUpRows(IDS) if isinstance(table, SparseTable) else ReadValues()


@pytest.fixture(params=[dense, sparse])
def make(request: pytest.FixtureRequest) -> Any:
    """Return what makes a table of either kind."""
    return request.param


class _WithMore(SGD):
    """Has something that is not compared."""

    def __init__(self, factor: float) -> None:
        super().__init__(1.0)
        object.__setattr__(self, "factor", factor)

    def _numbers(self, rate: float, step: int, scalar: Any) -> Any:
        return rate * self.factor, 0.0  # type: ignore[attr-defined]


def test_a_class_of_users_is_not_taken_for_another_one_that_compares_equal(make: Any) -> None:
    tables = [make(_WithMore(factor)) for factor in (1.0, 3.0)]
    for table in tables:
        push_one(table)
    assert [value(table) for table in tables] == [-1.0, -3.0]


def test_optimizers_that_were_replaced_are_forgotten(make: Any) -> None:
    table = make(SGD(0.4873))  # no other test has an equal one
    known = weakref.ref(table.updater.optimizer)
    table.run(TuneOptimizer({"learning_rate": 0.25}))
    gc.collect()
    assert known() is None


def test_schedule_goes_by_the_pushes_of_the_table(make: Any) -> None:
    table = make(SGD(PiecewiseConstant([2], [1.0, 10.0])))
    seen = []
    for _ in range(4):
        push_one(table)
        seen.append(value(table))
    assert seen == [-1, -2, -12, -22]


def test_step_is_saved_and_loaded(make: Any) -> None:
    saved, restored = (make(Adam(0.1)) for _ in range(2))
    for _ in range(3):
        push_one(saved)
    assert saved.state()["step"].tolist() == [3]
    restored.load(saved.state())
    for table in (saved, restored):
        push_one(table)
    assert value(restored) == value(saved)


def test_preview_of_a_push_leaves_step_and_count_as_they_were(make: Any) -> None:
    table = make(Adam(0.1))
    push_one(table)
    state = table.state()
    push_again = PushRows(IDS, ONE[None]) if make is sparse else PushGradient(ONE)
    seen = table.preview([push_again, SkipUpdates(2)], read(table))
    assert seen.item() < value(table)
    assert table.updater.skipped == 0
    for key, array in table.state().items():
        np.testing.assert_array_equal(array, state[key])


def test_preview_of_skips_alone_reads_the_table_as_it_is(make: Any) -> None:
    table = make(SGD(1.0))
    assert table.preview([SkipUpdates(1)], read(table)).item() == 0


def test_tuned_hyperparameters_count_from_the_next_push(make: Any) -> None:
    table = make(SGD(1.0))
    push_one(table)
    table.run(TuneOptimizer({"learning_rate": 10.0}))
    push_one(table)
    assert value(table) == -11
    assert table.run(ReadOptimizer()) == SGD(10.0)


def test_the_rate_is_that_of_the_next_push(make: Any) -> None:
    table = make(SGD(PiecewiseConstant((1,), (0.5, 0.25))))
    assert table.run(ReadRate()) == 0.5
    push_one(table)
    assert table.run(ReadRate()) == 0.25


def test_an_unknown_rate_is_nan(make: Any) -> None:
    table = make(SGD(lambda step: [0.5][step]))
    assert table.run(ReadRate()) == 0.5
    push_one(table)
    assert math.isnan(table.run(ReadRate()))
    assert math.isnan(make(None).run(ReadRate()))


@pytest.mark.parametrize("bad", [{"learning_rate": -1.0}, {"momentum": 0.5}, {"centered": True}])
def test_bad_hyperparameters_are_refused_and_change_nothing(make: Any, bad: dict[str, Any]) -> None:
    table = make(RMSProp(0.1))
    with pytest.raises(ConfigurationError, match=next(iter(bad))):
        table.updater.tune({"rho": 0.5, **bad})
    assert table.updater.optimizer == RMSProp(0.1)


def test_table_without_optimizer_cannot_be_tuned(make: Any) -> None:
    with pytest.raises(ConfigurationError, match="has no optimizer"):
        make(None).updater.tune({"learning_rate": 1.0})


def test_skips_are_counted(make: Any) -> None:
    table = make(SGD(1.0))
    table.run(SkipUpdates(2))
    table.run(SkipUpdates(1))
    assert table.run(CountSkipped()) == 3
    assert table.state()["step"].tolist() == [0]


@pytest.mark.parametrize("optimizer", [None, Adam()])
@pytest.mark.parametrize("rows", [None, 10])
def test_warming_up_takes_the_arguments_of_a_table_and_notes_changes(
    optimizer: Optimizer | None, rows: int | None
) -> None:
    warm_up(CreateDense("v", np.zeros(3, np.float32), optimizer))
    with (
        patch.object(kernels, "set_bits", wraps=kernels.set_bits) as noted,
        patch.object(kernels, "mark_rows", wraps=kernels.mark_rows) as taken,
    ):
        warm_up(CreateSparse("e", 2, rows, 1, 3, "float64", Constant(0.0), 0, optimizer))
    assert noted.called
    assert taken.called
