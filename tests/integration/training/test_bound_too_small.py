"""A bound that is too small for what is pushed is said, without an epoch or a dashboard."""

from __future__ import annotations

import numpy as np

import psnb
from tests.conftest import wait_until

BATCH = 500


def test_pushes_whose_rows_are_gone_are_said_and_known_ones_are_not() -> None:
    gradients = np.ones((BATCH, 1), np.float32)
    with (
        psnb.local_cluster(workers=1, servers=2, processes=False) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        optimizer = psnb.SGD(0.1)
        small = strategy.embedding("small", 1, optimizer=optimizer, max_rows=3 * BATCH)
        large = strategy.embedding("large", 1, optimizer=optimizer, max_rows=3 * BATCH)
        for number in range(24):
            small.push(np.arange(BATCH) + number * BATCH, gradients)
            large.push(np.arange(BATCH), gradients)

        def said() -> list[str]:
            coordinator.statistics()  # someone looks: it is asked for at once
            events = coordinator.events()
            return [e.message for e in events if e.kind is psnb.EventKind.BOUND_TOO_SMALL]

        wait_until(said, "it is said that the bound is too small")
        (message,) = said()
        assert message.startswith("embedding 'small': max_rows=1,500 is too small: of the last ")
        assert large.statistics().missed == 0
        assert large.statistics().pushed == 24 * BATCH
        assert small.statistics().missed > 0.8 * small.statistics().pushed
