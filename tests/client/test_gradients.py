"""Tests of what happens to gradients before they are sent: clipping by norm, NaN and infinities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb import ExponentialDecay
from psnb._src.client.arguments import as_nonfinite, split_finite
from psnb._src.client.dense_shards import PartialGradient
from psnb._src.client.updates import Updates, buffered
from psnb._src.client.variable import Variable
from psnb._src.server.optimizers import SGD, Adagrad
from psnb._src.server.tables.admission import CountFilter
from psnb.errors import ConfigurationError, InvalidArrayError
from tests.client.in_process import DIM, ROWS, InProcess, embedding, variable

NAN, INF = np.nan, np.inf
KINDS = pytest.mark.parametrize("rows", [ROWS, None], ids=["fixed", "growing"])


def split(nonfinite: str = "refuse", clipnorm: float | None = None) -> Variable:
    """Return a variable of zeros over three servers, with a rate of 1."""
    optimizer = SGD(1.0, clipnorm=clipnorm)
    return variable(np.zeros(3, np.float32), 3, optimizer, nonfinite=nonfinite)


def test_norm_is_that_of_the_whole_variable() -> None:
    v = split(clipnorm=3.5)
    v.push([3.0, 6.0, 2.0])  # norm 7
    np.testing.assert_allclose(v.read(), [-1.5, -3.0, -1.0], rtol=1e-6)


def test_gradient_within_the_norm_is_left_alone() -> None:
    v = split(clipnorm=7.0)
    v.push([3.0, 6.0, 2.0])
    assert v.read().tolist() == [-3, -6, -2]


@KINDS
def test_norm_of_an_embedding_is_that_of_all_shards_with_duplicates_summed(
    rows: int | None,
) -> None:
    e = embedding(rows, 3, SGD(1.0, clipnorm=3.5), dtype="float64")
    before = e.lookup([1, 2, 3])
    e.push([1, 2, 1, 3], [[1, 0], [0, 6], [2, 0], [2, 0]])  # 3, 6 and 2: norm 7
    expected = before - [[1.5, 0], [0, 3], [1, 0]]
    np.testing.assert_allclose(e.lookup([1, 2, 3]), expected, rtol=0, atol=1e-12)


def test_clipnorm_can_be_changed_and_switched_off_live() -> None:
    v = split(clipnorm=3.5)
    assert v.optimizer is not None
    v.optimizer.clipnorm = None
    v.push([3.0, 6.0, 2.0])
    assert v.read().tolist() == [-3, -6, -2]
    v.optimizer.clipnorm = 3.5
    v.push([3.0, 6.0, 2.0])
    np.testing.assert_allclose(v.read(), [-4.5, -9.0, -3.0], rtol=1e-6)


def test_clipnorm_of_a_variable_made_without_can_be_switched_on_live() -> None:
    v = split()
    assert v.optimizer is not None
    v.optimizer.clipnorm = 3.5
    v.push([3.0, 6.0, 2.0])
    np.testing.assert_allclose(v.read(), [-1.5, -3.0, -1.0], rtol=1e-6)


@KINDS
@pytest.mark.parametrize("made", [None, 1e30])
def test_clipnorm_of_an_embedding_on_one_server_can_be_switched_on_live(
    rows: int | None, made: float | None
) -> None:
    e = embedding(rows, 1, SGD(1.0, clipnorm=made), dtype="float64")
    assert e.optimizer is not None
    e.optimizer.clipnorm = 3.5
    before = e.lookup([1, 2, 3])
    e.push([1, 2, 1, 3], [[1, 0], [0, 6], [2, 0], [2, 0]])  # 3, 6 and 2: norm 7
    expected = before - [[1.5, 0], [0, 3], [1, 0]]
    np.testing.assert_allclose(e.lookup([1, 2, 3]), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("shards", "admission"), [(3, None), (1, CountFilter(2))])
def test_clipnorm_of_an_embedding_is_refused_live_where_no_server_knows_the_norm(
    shards: int, admission: CountFilter | None
) -> None:
    e = embedding(None, shards, SGD(1.0), admission=admission)
    assert e.optimizer is not None
    with pytest.raises(ConfigurationError, match=r"made without clipnorm.*\(clipnorm=1e30\)"):
        e.optimizer.clipnorm = 3.5
    assert e.optimizer.clipnorm is None


@pytest.mark.parametrize("shards", [1, 3])
def test_gradients_of_ids_that_are_not_admitted_count_for_the_norm(shards: int) -> None:
    e = embedding(None, shards, SGD(1.0, clipnorm=5.0), dtype="float64", admission=CountFilter(2))
    e.lookup([1])
    e.push([1, 2], [[6.0, 0.0], [0.0, 8.0]])  # norm 10, and 2 is seen for the first time
    fresh = embedding(None, shards, dtype="float64").lookup([1])
    np.testing.assert_allclose(e.lookup([1]), fresh - [[3.0, 0.0]], rtol=0, atol=1e-12)


def test_gradient_whose_norm_is_too_large_for_float64_is_finite_all_the_same() -> None:
    v = variable(np.zeros(3), 3, SGD(1.0))
    v.push([1e200, 1e200, 1.0])
    assert v.read().tolist() == [-1e200, -1e200, -1]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_bad_gradient_of_a_variable_is_refused_whole(bad: float) -> None:
    v = split()
    message = r"gradient for variable 'v': 1 of 3 numbers are not finite.*at \(2,\)"
    with pytest.raises(InvalidArrayError, match=message):
        v.push([1.0, 1.0, bad])
    assert v.read().tolist() == [0, 0, 0]


def test_bad_gradient_of_a_scalar_is_refused() -> None:
    with pytest.raises(
        InvalidArrayError, match=r"1 of 1 numbers are not finite, the first nan at \(\)"
    ):
        variable(np.float32(1), optimizer=SGD(1.0)).push(NAN)


@KINDS
def test_bad_gradient_of_an_embedding_is_refused_whole(rows: int | None) -> None:
    transport = InProcess(3)
    e = embedding(rows, 3, SGD(1.0), transport)
    transport.carried.clear()
    with pytest.raises(
        InvalidArrayError, match=r"gradients for embedding 'e': 2 of 4 .*at \(1, 0\)"
    ):
        e.push([1, 2], [[1.0, 1.0], [NAN, INF]])
    assert not transport.carried


def test_skipped_update_of_a_variable_is_counted_and_no_step() -> None:
    v = split("skip")
    v.push([1.0, NAN, 1.0])
    v.push([INF, NAN, 1.0])
    v.push([1.0, 2.0, 3.0])
    assert v.read().tolist() == [-1, -2, -3]
    assert v.skipped() == 2
    assert [state["step"].tolist() for state in v._shards.shard_states()] == [[1]] * 3


@KINDS
@pytest.mark.parametrize("clipnorm", [None, 100.0])
def test_only_rows_with_a_bad_gradient_are_skipped(
    rows: int | None, clipnorm: float | None
) -> None:
    e = embedding(rows, 3, SGD(1.0, clipnorm=clipnorm), dtype="float64", nonfinite="skip")
    before = e.lookup(range(ROWS))
    gradients = np.ones((5, DIM))
    gradients[[1, 4]] = NAN, INF
    e.push([3, 4, 4, 5, 6], gradients)
    expected = before.copy()
    expected[[3, 5]] -= 1
    np.testing.assert_allclose(e.lookup(range(ROWS)), expected, rtol=0, atol=1e-12)
    assert e.skipped() == 2  # 4, with its good gradient, and 6


def test_push_of_bad_rows_alone_changes_nothing() -> None:
    e = embedding(ROWS, 3, Adagrad(1.0), nonfinite="skip")
    before = e.lookup(range(ROWS))
    e.push([1], [[NAN, 1.0]])
    np.testing.assert_array_equal(e.lookup(range(ROWS)), before)
    assert e.skipped() == 1


def test_skips_of_a_closure_are_held_back_with_its_writes() -> None:
    v, updates = split("skip"), Updates()
    with buffered(updates):
        v.push([NAN, 1.0, 1.0])
        v.push([1.0, 1.0, 1.0])
        assert v.read().tolist() == [-1, -1, -1]
    assert v.skipped() == 0
    assert updates


def test_allowed_gradient_is_let_through() -> None:
    v = split("allow", clipnorm=None)
    v.push([1.0, NAN, INF])
    np.testing.assert_array_equal(v.read(), [-1, NAN, -INF])
    assert v.skipped() == 0


def test_bad_ids_are_distinguished_from_good_ones() -> None:
    ids = np.array([1, 2, 1, 3], np.uint64)
    good, gradients, bad = split_finite(ids, np.array([[1.0], [2.0], [NAN], [4.0]]))
    assert (good.tolist(), gradients.tolist(), bad.tolist()) == ([2, 3], [[2], [4]], [1])


@pytest.mark.parametrize("bad", ["drop", None, 1, "SKIP"])
def test_unknown_choice_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="'v': nonfinite must be 'refuse', 'skip' or '"):
        as_nonfinite(bad, "v")


@pytest.mark.parametrize("shards", [1, 3])
def test_rate_is_that_of_the_whole_variable_also_where_a_shard_had_no_gradients(
    shards: int,
) -> None:
    v = variable(np.zeros(6), shards, SGD(ExponentialDecay(1.0, 1, 0.5)))
    for _ in range(3):
        v.push(PartialGradient(np.full(2, -1.0), np.array([[0, 2]])))
    v.push(np.full(6, -1.0))
    np.testing.assert_array_equal(v.read(), [1.875, 1.875, 0.125, 0.125, 0.125, 0.125])
