"""Pushes of some of a variable's numbers, wherever the variable lies and whoever adds them up."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.dense_shards import Blend, PartialGradient
from psnb._src.client.handles import shards_of
from psnb._src.client.local.downpour import accumulating
from psnb._src.client.updates import Updates, buffered
from psnb._src.client.variable import Variable
from psnb._src.server.commit_log import Commit
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables.presence import joined
from tests.client.in_process import SHARDS, InProcess, variable
from tests.client.local.test_geo import Worker, on_shards

SPANS = [(0, 3), (3, 7), (7, 9)]
STEPS: list[tuple[int, ...]] = [(0, 1, 2), (0,), (1, 2), (2,), (1,), (0, 2), (2,), (0, 1, 2)]
OPTIMIZERS: list[Optimizer] = [
    psnb.SGD(0.1, weight_decay=0.1),
    psnb.Adam(0.1, weight_decay=0.1),
    psnb.Adam(psnb.CosineDecay(0.1, 6)),
    psnb.Adam(0.1, clipnorm=0.5),
    psnb.Adam(0.1, decoupled=False, weight_decay=0.1, amsgrad=True),
    psnb.Adagrad(0.1, learning_rate_decay=0.5),
    psnb.RMSProp(0.1, momentum=0.5, centered=True),
]
KINDS = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)


def given(number: int, several: Sequence[int], together: bool = False) -> PartialGradient:
    gradient = np.random.default_rng(number).normal(size=9)
    ranges = joined(np.array([SPANS[i] for i in several], np.int64).reshape(-1, 2))
    parts = [gradient[start:stop] for start, stop in ranges]
    return PartialGradient(np.concatenate([np.empty(0), *parts]), ranges, together)


def push(handle: Variable, number: int, together: bool = False) -> None:
    handle.push(given(number, STEPS[number], together))  # type: ignore[arg-type]


def trained(handle: Variable, numbers: range = range(len(STEPS)), together: bool = False) -> Any:
    for number in numbers:
        push(handle, number, together)
    return handle.read()


@KINDS
@pytest.mark.parametrize("together", [False, True])
def test_a_variable_learns_the_same_on_any_number_of_shards(
    optimizer: Optimizer, together: bool
) -> None:
    one, three = (variable(np.ones(9), n, optimizer) for n in (1, 3))
    expected = trained(one, together=together)
    np.testing.assert_allclose(trained(three, together=together), expected, rtol=1e-12)


@KINDS
@pytest.mark.parametrize(("before", "after"), [(3, 3), (3, 1), (1, 3), (2, 3)])
def test_what_has_missed_updates_goes_on_with_other_shards(
    optimizer: Optimizer, before: int, after: int
) -> None:
    for half in (2, 4, 7):  # also where a whole shard has missed some
        expected = trained(variable(np.ones(9), 1, optimizer))
        first = variable(np.ones(9), before, optimizer)
        trained(first, range(half))
        second = variable(np.zeros(9), after, optimizer)
        shards_of(second).load_states(shards_of(first).shard_states())
        found = trained(second, range(half, len(STEPS)))
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@SHARDS
@pytest.mark.parametrize("second", [(0,), (1, 2), (), (0, 1, 2)])
@pytest.mark.parametrize("first", [(0,), (0, 1), ()])
def test_accumulated_gradients_are_of_what_any_step_has(
    first: tuple[int, ...], second: tuple[int, ...], shards: int
) -> None:
    transport = InProcess(3)
    found, expected = (variable(np.ones(9), shards, OPTIMIZERS[1], transport, n) for n in "ab")
    updates = Updates(counted=True)
    with buffered(updates), accumulating(transport):
        for number, several in enumerate((first, second)):
            found.push(given(number, several))  # type: ignore[arg-type]
    updates.commit(transport, Commit("w", 0, shards=updates.shards))
    sums = np.zeros(9)
    for number, several in enumerate((first, second)):
        for start, stop in given(number, several).ranges:
            sums[start:stop] += np.random.default_rng(number).normal(size=9)[start:stop]
    both = joined(np.array(sorted(SPANS[i] for i in {*first, *second}), np.int64).reshape(-1, 2))
    parts = [sums[start:stop] for start, stop in both]
    expected.push(PartialGradient(np.concatenate([np.empty(0), *parts]), both))  # type: ignore[arg-type]
    np.testing.assert_allclose(found.read(), expected.read(), rtol=1e-12)


@KINDS
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("closures", [1, 3])
def test_one_worker_of_mode_geo_is_one_that_writes_at_once(
    optimizer: Optimizer, together: bool, closures: int
) -> None:
    expected = trained(variable(np.ones(9), 3, optimizer), together=together)
    transport = InProcess(3)
    found = variable(np.ones(9), 3, optimizer, transport)
    near, worker = on_shards(found), Worker(transport, closures)
    for number in range(len(STEPS)):
        worker.run(partial(push, near, number, together))
    worker.copies.exchange()
    np.testing.assert_allclose(found.read(), expected, rtol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("first", ["learns", "is rewritten"])
def test_a_number_that_learns_and_is_rewritten_in_one_cycle_of_mode_geo_counts_once(
    first: str, share: float
) -> None:
    moved = np.array([1.0, 1, 1, 0, 0, 0, 0, 0, 0])
    start = np.append(np.ones(8), -np.inf)  # one that is masked, and stays so
    transport = InProcess(3)
    expected = variable(start, 3, psnb.SGD(0.1))
    found = variable(start, 3, psnb.SGD(0.1), transport)
    near, worker = on_shards(found), Worker(transport, 100)
    learns = [given(0, (0, 1)), Blend(share * moved, 2 * moved)]
    for each in (learns if first == "learns" else learns[::-1]) * 2:
        expected.push(each)  # type: ignore[arg-type]
        worker.run(partial(near.push, each))  # type: ignore[arg-type]
    worker.copies.exchange()
    np.testing.assert_allclose(found.read(), expected.read(), rtol=1e-12)
