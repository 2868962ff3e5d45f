"""Tests of pushes that have gradients for some of a variable's numbers: the rest is as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb import SGD, Adagrad, Adam, Momentum, RMSProp
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.rounds import Rounds
from psnb._src.server.tables.checks import COUNTS
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.operations import PushGradient, RoundWeights, on_table
from psnb._src.server.tables.presence import UpdateCounts, counts_together, joined, union, within
from psnb.errors import InvalidArrayError

OPTIMIZERS: list[Optimizer] = [
    SGD(0.1, weight_decay=0.1),
    Momentum(0.1, 0.9, True),
    Adam(0.1, weight_decay=0.1),
    Adam(0.1, clipvalue=0.2, amsgrad=True),
    Adagrad(0.1, learning_rate_decay=0.5),
    RMSProp(0.1, momentum=0.5, centered=True),
]
SIZES = 3, 4, 2
STOPS = np.cumsum(SIZES)
SPANS = [slice(stop - size, stop) for size, stop in zip(SIZES, STOPS, strict=True)]
STEPS = [(0, 1, 2), (0,), (1, 2), (0, 2), (1,), (0, 1, 2), (2,)]
"""Which of three parameters have a gradient, step by step."""


def ranges(several: Any) -> np.ndarray:
    return joined(np.array([[SPANS[i].start, SPANS[i].stop] for i in several], np.int64))


def push(gradient: np.ndarray, several: Any, **options: Any) -> PushGradient:
    parts = [gradient[SPANS[i]] for i in several]
    return PushGradient(np.concatenate(parts), ranges=ranges(several), **options)


def gradients() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=sum(SIZES)) for _ in STEPS]


def apart(optimizer: Optimizer) -> np.ndarray:
    """Return what three variables come to, each pushed to when it has a gradient."""
    tables = [DenseTable("v", np.ones(size), optimizer) for size in SIZES]
    for gradient, several in zip(gradients(), STEPS, strict=True):
        for i in several:
            tables[i].run(PushGradient(gradient[SPANS[i]]))
    return np.concatenate([table.read() for table in tables])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_parameters_in_one_variable_learn_as_if_each_had_its_own(optimizer: Optimizer) -> None:
    table = DenseTable("v", np.ones(sum(SIZES)), optimizer)
    for gradient, several in zip(gradients(), STEPS, strict=True):
        table.run(push(gradient, several))
    np.testing.assert_array_equal(table.read(), apart(optimizer))


def test_what_has_missed_updates_travels_with_the_state() -> None:
    one = DenseTable("v", np.ones(sum(SIZES)), Adam(0.1))
    for gradient, several in list(zip(gradients(), STEPS, strict=True))[:4]:
        one.run(push(gradient, several))
    other = DenseTable("v", np.zeros(sum(SIZES)), Adam(0.1))
    other.load(one.state())
    for gradient, several in list(zip(gradients(), STEPS, strict=True))[4:]:
        other.run(push(gradient, several))
    np.testing.assert_array_equal(other.read(), apart(Adam(0.1)))


def test_all_count_an_update_together_if_that_is_asked_for() -> None:
    table = DenseTable("v", np.ones(sum(SIZES)), Adam(0.1))
    table.run(push(gradients()[0], [0], together=True))
    assert COUNTS not in table.state()
    assert table.updater.step == 1


def test_a_preview_leaves_counts_as_they_are() -> None:
    table = DenseTable("v", np.ones(sum(SIZES)), Adam(0.1))
    undo = table._saved([])
    table.run(push(gradients()[0], [0]))
    undo()
    assert COUNTS not in table.state()


def test_the_norm_is_that_of_what_has_a_gradient() -> None:
    one = DenseTable("v", np.ones(sum(SIZES)), SGD(0.1, clipnorm=0.5))
    one.run(push(gradients()[0], [0, 2]))
    one.run(push(gradients()[0], [0]))
    gradient = gradients()[0]
    gradient[SPANS[1]] = 0
    expected = 1 - 0.1 * gradient * 0.5 / np.linalg.norm(gradient)
    gradient[SPANS[2]] = 0
    expected -= 0.1 * gradient * 0.5 / np.linalg.norm(gradient)
    np.testing.assert_allclose(one.read(), expected)


@pytest.mark.parametrize(
    "bad", [[[0, 10]], [[-1, 2]], [[2, 4], [0, 1]], [[0, 2], [1, 2]], [[1, 1], [0, 3]], [0, 3]]
)
def test_ranges_are_checked(bad: Any) -> None:
    table = DenseTable("v", np.ones(sum(SIZES)), SGD(0.1))
    with pytest.raises(InvalidArrayError, match="ranges"):
        table.run(PushGradient(np.ones(3), ranges=np.array(bad, np.int64)))


def test_counts_are_checked() -> None:
    table = DenseTable("v", np.ones(3), Adam(0.1))
    wraps = [[2**63 - 1, 0], [-(2**63), 0], [-1, 0], [3, 0]]  # by 1, or up to 2**63 - 1, each
    for bad in ([[2, 0]], [[3, 5]], [[1, 0], [1, 0], [3, 0]], [[3, -1]], wraps):
        state = {**table.state(), COUNTS: np.array(bad, np.int64)}
        with pytest.raises((InvalidArrayError, ValueError), match="updates"):
            table.load(state)


def test_counts_are_those_of_shards_together() -> None:
    whole = UpdateCounts(np.array([2, 5, 9]), np.array([4, 1, 3]))
    parts = [(4, whole.part(0, 4), 4), (5, whole.part(4, 9), 4)]
    found = counts_together(parts)
    assert found is not None
    assert found.array().tolist() == whole.array().tolist()
    assert counts_together([(4, None, 4), (5, None, 4)]) is None


def test_ranges_are_cut_and_joined() -> None:
    both = union(np.array([[0, 2], [6, 8]]), np.array([[1, 4], [4, 5]]))
    assert both is not None
    assert both.tolist() == [[0, 5], [6, 8]]
    found, at = within(both, 4, 7)
    assert found.tolist() == [[0, 1], [2, 3]]
    assert (at.start, at.stop) == (4, 6)


def round_of(weights: RoundWeights | None, *pushes: PushGradient) -> np.ndarray:
    table, rounds = DenseTable("v", np.zeros(sum(SIZES)), SGD(1.0)), Rounds()
    for commit, each in enumerate(pushes):
        rounds.collect("w", commit, [rounds.reserve(table, on_table("v", each))])
    closures = range(len(pushes))
    for write in rounds.averages("w", closures, {"v": table}, weights=weights):
        assert write.make is not None
        write.make()
    return -table.read()


def test_a_round_is_the_mean_by_weight_of_what_closures_have() -> None:
    a, b = gradients()[:2]
    found = round_of(RoundWeights([3.0, 1.0], 5.0), push(a, [0, 1]), push(b, [1]))
    expected = np.zeros(sum(SIZES))
    for i in (0, 1):
        expected[SPANS[i]] += 3 * a[SPANS[i]] / 5
    expected[SPANS[1]] += b[SPANS[1]] / 5
    np.testing.assert_allclose(found, expected)


def test_a_round_of_a_whole_and_a_part_is_of_the_whole() -> None:
    a, b = gradients()[:2]
    found = round_of(None, PushGradient(a), push(b, [2]))
    expected = a / 2
    expected[SPANS[2]] += b[SPANS[2]] / 2
    np.testing.assert_allclose(found, expected)
