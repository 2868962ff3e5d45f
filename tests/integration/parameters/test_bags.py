"""Bags whose rows are summed on the servers, on a real cluster."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Client

import psnb
from tests.conftest import DEADLINE

ROWS, DIM, BAGS, SIZE = 5_000, 32, 100, 40


def bags(seed: int) -> psnb.data.Ragged:
    """Return bags of which the servers' sums are far fewer bytes than the rows."""
    values = np.random.default_rng(seed).integers(0, ROWS, BAGS * SIZE)
    return psnb.data.Ragged(values, np.arange(0, values.size + 1, SIZE))


def step(e: psnb.Embedding, seed: int) -> np.ndarray:
    """Push gradients of bags, which are seen at once."""
    of = bags(seed)
    before = e.lookup_bags(of)
    e.push_bags(of, None, np.ones_like(before))
    return e.lookup_bags(of) - before


def expected(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how a step changes rows, and its bags."""
    values = bags(seed).values.reshape(BAGS, SIZE)
    rows = -np.bincount(values.reshape(-1), minlength=ROWS) / SIZE
    return rows, rows[values].mean(axis=1)


@pytest.mark.parametrize(
    ("mode", "share"), [(psnb.Async(), 1), (psnb.Sync(1), 1), (psnb.Geo(1), 1 / 2)], ids=str
)
def test_closures_look_up_and_push_bags(
    cluster: Client, mode: psnb.Async | psnb.Sync | psnb.Geo, share: float
) -> None:
    with psnb.ParameterServerStrategy(cluster, mode=mode) as strategy:
        e = strategy.embedding("e", DIM, ROWS, 0.0, optimizer=psnb.SGD(1.0))
        coordinator = psnb.ClusterCoordinator(strategy)
        (first, seen), (second, _) = expected(0), expected(1)
        result = coordinator.schedule(step, (e, 0)).fetch(DEADLINE)
        if isinstance(mode, psnb.Async):  # in the others, once a round or exchange is over
            np.testing.assert_allclose(result[:, -1], seen, atol=1e-5)
        coordinator.schedule(step, (e, 1))
        coordinator.join(DEADLINE)
        coordinator.drain()
        found = e.lookup(np.arange(ROWS))
        np.testing.assert_allclose(found[:, 0], share * (first + second), atol=1e-5)
