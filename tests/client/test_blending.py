"""Blends that are pushed to variables, and how late they may come; servers in this process."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import psnb
from psnb._src.client.dense_shards import Blend
from psnb._src.client.local.downpour import accumulating
from psnb._src.client.updates import Round, Updates, buffered
from psnb._src.client.variable import Variable
from psnb._src.server.commit_log import Commit
from psnb.errors import InvalidArrayError
from tests.client.in_process import SHARDS, InProcess, variable
from tests.client.local.test_geo import Worker, on_shards


def moving(target: float, share: float = 0.25) -> Blend:
    """Return what moves values a share of the way."""
    return Blend(np.full(4, share), np.full(4, share * target))


@SHARDS
def test_a_blend_is_pushed_to_all_shards_of_a_variable_without_an_optimizer(shards: int) -> None:
    v = variable(np.arange(4.0), shards)
    psnb.push({v: Blend(np.array([0.0, 0.5, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 0.0]))})
    assert v.read().tolist() == [1.0, 1.5, 1.0, 3.0]


def test_a_blend_that_is_not_finite_is_refused_and_changes_nothing() -> None:
    v = variable(np.arange(4.0), 1)
    with pytest.raises(InvalidArrayError, match="not finite"):
        psnb.push({v: moving(np.nan)})
    assert v.read().tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_late_blends_leave_values_between_what_was_blended_in(order: tuple[int, ...]) -> None:
    transport = InProcess(1)
    v = variable(np.ones(4), 1, None, transport)
    closures = [Updates(counted=True) for _ in order]
    for each in closures:
        with buffered(each):
            assert v.read().tolist() == [1.0] * 4
            psnb.push({v: moving(0.0)})
    for _ in range(20):
        psnb.push({v: moving(0.0)})
    for number in order:
        closures[number].commit(transport, Commit("a", number))
    np.testing.assert_allclose(v.read(), 0.75**23, rtol=1e-12)


def test_a_closure_that_has_only_blended_counts_in_its_round() -> None:
    updates = Updates(counted=True, sync_round=Round("s", 0))
    with buffered(updates):
        psnb.push({variable(np.ones(4), 1): moving(0.0)})
    assert updates.pushed


def test_blends_of_several_steps_that_are_pushed_together_come_one_after_the_other() -> None:
    transport, updates = InProcess(1), Updates(counted=True)
    v = variable(np.ones(4), 1, None, transport)
    with buffered(updates), accumulating(transport):
        for target in (0.0, 8.0):
            psnb.push({v: moving(target)})
    updates.commit(transport, Commit("a", 0))
    np.testing.assert_allclose(v.read(), 0.75 * 0.75 + 0.25 * 8)


def geo(v: Variable, transport: InProcess, workers: int) -> tuple[Worker, Variable]:
    return Worker(transport, 100, workers), on_shards(v)


def test_one_worker_with_copies_gives_what_the_servers_give() -> None:
    transport = InProcess(1)
    v = variable(np.ones(4), 1, None, transport)
    worker, near = geo(v, transport, 1)
    for target in (0.0, 8.0, 4.0):
        worker.run(lambda target=target: psnb.push({near: moving(target)}))
    expected = near_value = ((0.75 * 1.0) * 0.75 + 2.0) * 0.75 + 1.0
    assert worker.run(near.read).tolist() == [near_value] * 4
    worker.copies.exchange()
    np.testing.assert_allclose(v.read(), expected, rtol=1e-12)


def test_a_late_exchange_leaves_values_between_what_was_blended_in() -> None:
    transport = InProcess(1)
    v = variable(np.ones(4), 1, None, transport)
    worker, near = geo(v, transport, 2)
    for _ in range(3):
        worker.run(lambda: psnb.push({near: moving(0.0)}))
    for _ in range(40):
        psnb.push({v: moving(0.0)})
    worker.copies.exchange()
    # Half of the way that the three have gone.
    np.testing.assert_allclose(v.read(), (1 + 0.75**3) / 2 * 0.75**40, rtol=1e-12)
