"""Gradients of several steps that are added up before they are pushed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.local.downpour import accumulating
from psnb._src.client.updates import Updates, buffered
from psnb._src.server.commit_log import Commit
from psnb._src.server.tables.operations import OnTables, PushGradient, PushRows
from tests.client.in_process import SHARDS, InProcess, embedding, variable


def _written(updates: Updates) -> list[OnTables]:
    return [write for part in updates.parts().values() for write in part.writes]


@SHARDS
def test_the_gradients_of_a_variable_become_one_push_with_their_sum(shards: int) -> None:
    transport, updates = InProcess(3), Updates(counted=True)
    value = variable(np.zeros(6), shards, psnb.SGD(1.0), transport)
    with buffered(updates), accumulating(transport):
        value.push(np.full(6, 1.0))
        value.push(np.full(6, 2.0))
    found = [each.operation for each in _written(updates)]
    assert all(isinstance(each, PushGradient) for each in found)
    assert [set(each.gradient) for each in found] == [{3.0}] * shards  # type: ignore[attr-defined]


def test_a_pushed_array_that_changes_later_does_not_change_the_sum() -> None:
    transport, updates = InProcess(3), Updates(counted=True)
    value, gradient = variable(np.zeros(2), 1, psnb.SGD(1.0), transport), np.ones(2)
    with buffered(updates), accumulating(transport):
        value.push(gradient)
        gradient[:] = 7.0
        value.push(np.ones(2))
    (write,) = _written(updates)
    assert write.operation.gradient.tolist() == [2.0, 2.0]  # type: ignore[attr-defined]


def test_rows_that_several_steps_push_are_pushed_once_with_their_sum() -> None:
    transport, updates = InProcess(1), Updates(counted=True)
    rows = embedding(shards=1, optimizer=psnb.SGD(1.0), transport=transport)
    with buffered(updates), accumulating(transport):
        rows.push([1, 2], np.ones((2, 2), np.float32))
        rows.push([2, 3], np.ones((2, 2), np.float32))
    (write,) = _written(updates)
    assert isinstance(write.operation, PushRows)
    assert write.operation.ids.tolist() == [1, 2, 3]
    assert write.operation.gradients[:, 0].tolist() == [1.0, 2.0, 1.0]


def test_tables_that_are_pushed_together_are_pushed_in_one_operation() -> None:
    transport, updates = InProcess(1), Updates(counted=True)
    tables = [embedding(None, 1, psnb.SGD(1.0), transport, name=name) for name in ("e", "f")]
    before = [each.lookup([2]) for each in tables]
    with buffered(updates), accumulating(transport):
        for _ in range(2):
            psnb.push({each: ([2], np.ones((1, 2), np.float32)) for each in tables})
    assert len(_written(updates)) == 1
    updates.commit(transport, Commit("w", 1))
    for each, rows in zip(tables, before, strict=True):
        np.testing.assert_array_equal(each.lookup([2]), rows - 2)


@pytest.mark.parametrize("other", [{"dtype": "bfloat16"}, {"slot_dtype": "float16"}, {"rows": 10}])
def test_tables_of_several_kinds_are_pushed_apart(other: dict[str, Any]) -> None:
    transport, updates = InProcess(1), Updates(counted=True)
    how: dict[str, Any] = {"shards": 1, "optimizer": psnb.Adagrad(1.0), "transport": transport}
    tables = [
        embedding(**{"rows": None, **how}),
        embedding(**{"rows": None, **how, **other}, name="f"),
    ]
    before = [each.lookup([2]) for each in tables]
    with buffered(updates), accumulating(transport):
        for each in tables:
            each.push([2], np.ones((1, 2), np.float32))
    updates.commit(transport, Commit("w", 1))
    for each, rows in zip(tables, before, strict=True):
        assert (each.lookup([2]) < rows - 0.5).all()


def test_gradients_that_travel_with_16_bits_do_so_as_a_sum_too() -> None:
    transport, updates = InProcess(1), Updates(counted=True)
    rows = embedding(shards=1, optimizer=psnb.SGD(1.0), transport=transport, half=True)
    with buffered(updates), accumulating(transport):
        rows.push([1, 2], np.ones((2, 2), np.float32))
        rows.push([2, 3], np.ones((2, 2), np.float32))
    (write,) = _written(updates)
    assert write.operation.half  # type: ignore[attr-defined]


def test_reads_do_not_see_what_was_pushed_but_what_was_assigned() -> None:
    transport = InProcess(3)
    value = variable(np.zeros(2), 1, psnb.SGD(1.0), transport)
    with buffered(Updates(counted=True)), accumulating(transport):
        value.push(np.ones(2))
        assert value.read().tolist() == [0.0, 0.0]
        value.assign(np.full(2, 5.0))
        assert value.read().tolist() == [5.0, 5.0]


def test_nothing_is_written_if_a_step_raises() -> None:
    transport, updates = InProcess(3), Updates(counted=True)
    value = variable(np.zeros(2), 1, psnb.SGD(1.0), transport)
    with buffered(updates), suppress(ZeroDivisionError), accumulating(transport):
        value.push(np.ones(2))
        raise ZeroDivisionError
    assert not updates


def test_the_versions_that_were_read_are_those_of_the_closure() -> None:
    transport, updates = InProcess(3), Updates(counted=True)
    value = variable(np.zeros(2), 1, psnb.SGD(1.0), transport)
    with buffered(updates):
        with accumulating(transport):
            value.read()
        assert list(updates.seen) == [transport.shards[0]]


def test_outside_of_a_closure_pushes_are_made_at_once() -> None:
    transport = InProcess(3)
    value = variable(np.zeros(2), 1, psnb.SGD(1.0), transport)
    with accumulating(transport):
        value.push(np.ones(2))
        assert value.read().tolist() == [-1.0, -1.0]
