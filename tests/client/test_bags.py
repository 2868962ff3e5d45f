"""Tests of embedding bags against a plain loop over them, and of padding; without a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb._src.client.embedding import Embedding
from psnb._src.client.updates import Updates, buffered
from psnb._src.data.ragged import Ragged
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError
from tests.client.in_process import DIM, KINDS, ROWS, InProcess, asked_ids, embedding

COMBINERS = ["sum", "mean", "sqrtn", "max"]


def padded(padding_idx: int | None, optimizer: Optimizer | None = None, **more: Any) -> Embedding:
    e = embedding(optimizer=optimizer, dtype="float64", **more)
    e._shards.padding_idx = padding_idx
    return e


def members(
    values: list[int], offsets: list[int], weights: list[float] | None, padding_idx: int | None
) -> Iterator[list[tuple[int, float]]]:
    """Yield each bag's ids and weights, without padding."""
    for start, stop in pairwise([*offsets, len(values)]):
        yield [
            (values[i], 1.0 if weights is None else weights[i])
            for i in range(start, stop)
            if values[i] != padding_idx
        ]


def divisor(bag: list[tuple[int, float]], combiner: str) -> float:
    if combiner == "sum":
        return 1.0
    if combiner == "mean":
        return sum(weight for _, weight in bag)
    return math.sqrt(sum(weight**2 for _, weight in bag))


def combined(rows: np.ndarray, bags: list[list[tuple[int, float]]], combiner: str) -> np.ndarray:
    """Return what bags give, by their definition."""
    out = np.zeros((len(bags), DIM))
    for i, bag in enumerate(bags):
        if bag and combiner == "max":
            out[i] = np.max([rows[k] for k, _ in bag], axis=0)
        elif bag and divisor(bag, combiner):
            total = np.sum([weight * rows[k] for k, weight in bag], axis=0)
            out[i] = total / divisor(bag, combiner)
    return out


def derivative(
    rows: np.ndarray, bags: list[list[tuple[int, float]]], combiner: str, gradients: np.ndarray
) -> np.ndarray:
    """Return the gradient of every row, by the chain rule."""
    out = np.zeros_like(rows)
    for gradient, bag in zip(gradients, bags, strict=True):
        for column in range(DIM):
            if bag and combiner == "max":
                winner = max((k for k, _ in bag), key=lambda k: rows[k, column])
                out[winner, column] += gradient[column]
            elif bag and divisor(bag, combiner):
                for k, weight in bag:
                    out[k, column] += weight * gradient[column] / divisor(bag, combiner)
    return out


@st.composite
def drawn_bags(draw: st.DrawFn) -> tuple[list[int], list[int], list[float]]:
    """Draw values, offsets (empty bags among them) and weights."""
    sizes = draw(st.lists(st.integers(0, 4), max_size=6))
    offsets = np.cumsum([0, *sizes])[:-1].tolist()
    n = sum(sizes)
    values = draw(st.lists(st.integers(0, ROWS - 1), min_size=n, max_size=n))
    weight = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0])
    return values, offsets, draw(st.lists(weight, min_size=n, max_size=n))


@settings(max_examples=60)
@given(
    drawn=drawn_bags(),
    combiner=st.sampled_from(COMBINERS),
    weighted=st.booleans(),
    padding_idx=st.sampled_from([None, 0, 3]),
    rows=st.sampled_from([ROWS, None]),
)
def test_bags_and_their_gradients_are_as_defined(
    drawn: tuple[list[int], list[int], list[float]],
    combiner: str,
    weighted: bool,
    padding_idx: int | None,
    rows: int | None,
) -> None:
    values, offsets, weights = drawn
    given_weights = weights if weighted and combiner != "max" else None
    e = padded(padding_idx, SGD(1.0), rows=rows)
    before = embedding(dtype="float64").lookup(range(ROWS))
    bags = list(members(values, offsets, given_weights, padding_idx))
    closed = [*offsets, len(values)]
    ragged = Ragged(np.array(values, np.int64), np.array(closed))
    expected = combined(before, bags, combiner)
    for found in (
        e.lookup_bags(values, closed, combiner, given_weights, include_last_offset=True),
        e.lookup_bags(ragged, None, combiner, given_weights),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-12)
    if offsets and offsets[-1] == len(values):  # an empty last bag, or none?
        with pytest.raises(InvalidArrayError, match="the number of values"):
            e.lookup_bags(values, offsets, combiner, given_weights)
    else:
        found = e.lookup_bags(values, offsets, combiner, given_weights)
        np.testing.assert_allclose(found, expected, atol=1e-12)
    gradients = np.random.default_rng(0).normal(size=(len(offsets), DIM))
    e.push_bags(ragged, None, gradients, combiner, given_weights)
    e._shards.padding_idx = None  # to see that row too: it took nothing
    after = e.lookup(range(ROWS))
    expected = before - derivative(before, bags, combiner, gradients)
    np.testing.assert_allclose(after, expected, atol=1e-12)


def test_bags_ask_for_each_id_once() -> None:
    transport = InProcess(1)
    e = embedding(shards=1, transport=transport)
    transport.carried.clear()
    e.lookup_bags([4, 4, 2, 4], [0, 2])
    assert asked_ids(transport)[0].tolist() == [4, 2]


def test_bags_have_the_dtype_of_the_table() -> None:
    e = embedding(optimizer=SGD(1.0))
    e.push_bags([1, 2], [0], np.ones((1, DIM), np.float32), "sum", [0.5, 0.5])
    assert e.lookup_bags([1, 2], [0], weights=[1.0, 2.0]).dtype == np.float32


def test_a_closure_sees_the_bags_that_it_has_pushed() -> None:
    e = embedding(optimizer=SGD(1.0), dtype="float64")
    before = e.lookup_bags([1, 2], [0, 1], "max")
    with buffered(Updates()):
        e.push_bags([1, 2], [0, 1], -np.ones((2, DIM)), "max")
        np.testing.assert_allclose(e.lookup_bags([1, 2], [0, 1], "max"), before + 1)
    np.testing.assert_array_equal(e.lookup_bags([1, 2], [0, 1], "max"), before)


@pytest.mark.parametrize(
    ("values", "offsets", "more", "error", "message"),
    [
        ([[1]], [0], {}, InvalidArrayError, "values must have one axis"),
        ([1, 2], [1], {}, InvalidArrayError, "must start with 0"),
        ([1, 2], [0, 2, 1], {}, InvalidArrayError, "never fall"),
        ([1, 2], [0, 3], {}, InvalidArrayError, "end within the 2 values"),
        ([1, 2], [], {}, InvalidArrayError, "must start with 0"),
        ([1, 2], [0, 2], {}, InvalidArrayError, "include_last_offset=True"),
        ([], [0], {}, InvalidArrayError, "include_last_offset=True"),
        (
            [1, 2],
            [0, 1],
            {"include_last_offset": True},
            InvalidArrayError,
            "must end with the number",
        ),
        ([], [], {"include_last_offset": True}, InvalidArrayError, "must end with the number"),
        ([1, 2], None, {}, InvalidArrayError, "need offsets"),
        (Ragged.from_rows([[1], [2]]), [0, 1], {}, InvalidArrayError, "a Ragged has offsets"),
        ([1, 2], [0.0], {}, InvalidArrayError, "offsets must be integers"),
        ([1, 10], [0], {}, IdOutOfRangeError, "found id 10"),
        ([1, 2], [0], {"weights": [1.0]}, InvalidArrayError, r"weights of .*expected shape \(2,\)"),
        ([1], [0], {"weights": [1.0], "combiner": "max"}, InvalidArrayError, "takes no weights"),
        (
            [1],
            [0],
            {"combiner": "avg"},
            ConfigurationError,
            "combiner must be 'mean', 'sum', 'sqrtn' or 'max'",
        ),
    ],
)
def test_bad_bags_are_refused_before_anything_is_sent(
    values: Any, offsets: Any, more: dict[str, Any], error: type[Exception], message: str
) -> None:
    transport = InProcess(3)
    e = embedding(optimizer=SGD(), transport=transport)
    transport.carried.clear()
    with pytest.raises(error, match=message):
        e.lookup_bags(values, offsets, **more)
    with pytest.raises(error, match=message):
        e.push_bags(values, offsets, np.ones((1, DIM), np.float32), **more)
    assert not transport.carried


def test_gradients_of_another_number_of_bags_are_refused() -> None:
    e = embedding(optimizer=SGD())
    with pytest.raises(InvalidArrayError, match=r"expected shape \(2, 2\), found \(1, 2\)"):
        e.push_bags([1, 2], [0, 1], np.ones((1, DIM), np.float32))


@KINDS
def test_padding_gives_zeros_and_takes_no_gradient(rows: int | None) -> None:
    e = padded(3, SGD(1.0), rows=rows)
    before = embedding(rows, dtype="float64").lookup([3, 4])
    e.push([[3, 4]], np.ones((1, 2, DIM)))
    found = e.lookup([[3, 4]])
    np.testing.assert_array_equal(found, [[np.zeros(DIM), before[1] - 1]])
    e._shards.padding_idx = None
    np.testing.assert_array_equal(e.lookup(3), before[0])


def test_a_gradient_of_padding_need_not_be_finite() -> None:
    e = padded(3, SGD(1.0))
    e.push([3, 4], [[math.nan] * DIM, [1.0] * DIM])
    assert e.skipped() == 0


@pytest.mark.parametrize(("combiner", "power"), [("mean", 1.0), ("sqrtn", 0.5)])
def test_a_mean_that_counts_padding_as_paddles_is_a_sum_that_is_divided(
    combiner: str, power: float
) -> None:
    bags = Ragged.from_rows([[3, 0, 0], [0], [1, 2], [3, 1, 0]], np.int64)
    start = np.random.default_rng(0).normal(size=(ROWS, DIM))
    e, plain = padded(0, SGD(1.0), rows=ROWS), padded(None, SGD(1.0), rows=ROWS)
    for each in (e, plain):
        each.assign(np.arange(ROWS), np.concatenate([np.zeros((1, DIM)), start[1:]]))
    divisors = (bags.lengths**power)[:, None]
    # Paddle's: padding is a row of zeros like any other, but takes no gradient.
    found = e.lookup_bags(bags, combiner="sum") / divisors
    np.testing.assert_allclose(found, plain.lookup_bags(bags, combiner=combiner), atol=1e-12)
    assert not np.allclose(found, e.lookup_bags(bags, combiner=combiner))
    gradients = np.random.default_rng(1).normal(size=(len(bags), DIM))
    e.push_bags(bags, None, gradients / divisors, combiner="sum")
    plain.push_bags(bags, None, gradients, combiner=combiner)
    used = np.arange(1, ROWS)
    np.testing.assert_allclose(e.lookup(used), plain.lookup(used), atol=1e-12)
    assert not e.lookup([0]).any()
