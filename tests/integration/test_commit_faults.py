"""Workers that die while a closure commits: the closure still counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb.parameters import CommTransport, Request
from tests.conftest import DEADLINE
from tests.integration.helpers import kill_myself, wait_until_whole

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def started() -> Iterator[Client]:
    """Two workers, which nannies start again, and two servers."""
    with psnb.local_cluster(workers=2, servers=2) as client:
        yield client


@pytest.fixture
def whole(started: Client) -> Client:
    """The cluster, once nobody is missing."""
    wait_until_whole(started, 4)
    return started


Calls = Callable[[CommTransport, Sequence[Request]], list[Any]]


def _before(_: Calls) -> Calls:
    def call(transport: CommTransport, requests: Sequence[Request]) -> list[Any]:
        kill_myself()
        raise AssertionError

    return call


def _after_one_server(real: Calls) -> Calls:
    def call(transport: CommTransport, requests: Sequence[Request]) -> list[Any]:
        real(transport, requests[:1])
        kill_myself()
        raise AssertionError

    return call


def _after(real: Calls) -> Calls:
    def call(transport: CommTransport, requests: Sequence[Request]) -> list[Any]:
        real(transport, requests)
        kill_myself()
        raise AssertionError

    return call


def _before_the_answer(real: Calls) -> Calls:
    from psnb.parameters.transport import _Exchange

    def call(transport: CommTransport, requests: Sequence[Request]) -> list[Any]:
        # It comes, and nobody hears it.
        _Exchange.answered = lambda exchange, answer: kill_myself()  # type: ignore[method-assign]
        return real(transport, requests)

    return call


@pytest.mark.parametrize("dying", [_before, _before_the_answer, _after_one_server, _after])
def test_a_closure_whose_worker_is_killed_while_it_commits_counts_once(
    whole: Client, dying: Callable[[Calls], Calls]
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        # Two counters: the variables are spread over the servers.
        counters = [strategy.variable(np.int64(0)) for _ in range(2)]
        table = strategy.embedding("rows", 2, initializer=0.0, optimizer=psnb.SGD(1.0))

        def count() -> int:
            for counter in counters:
                counter.assign_add(np.int64(1))
            table.push(np.arange(10), -np.ones((10, 2), np.float32))
            attempt = psnb.worker_context().attempt
            if attempt == 1:
                # The next call of this closure is its commit, and this process ends with it.
                CommTransport.call = dying(CommTransport.call)  # type: ignore[method-assign]
            return attempt

        assert coordinator.schedule(count).fetch(DEADLINE) == 2
        coordinator.join(DEADLINE)
        assert [int(counter.read()) for counter in counters] == [1, 1]
        np.testing.assert_array_equal(table.lookup(np.arange(10)), np.ones((10, 2)))
        statistics = coordinator.statistics()
        assert (statistics.completed, statistics.retried, statistics.failed) == (1, 1, 0)
