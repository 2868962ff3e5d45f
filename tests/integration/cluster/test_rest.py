"""A notebook that does nothing: what it asks of Dask's scheduler, and how often workers report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from distributed import Client

import psnb
from psnb._src.coordinator.coordinator import coordinator_core
from psnb._src.transport.questions import QUESTIONS, WORKERS
from tests.conftest import wait_until


@pytest.fixture
def small() -> Iterator[Client]:
    """Two workers and a server in this process, for one test alone."""
    with psnb.local_cluster(workers=2, servers=1, processes=False) as client:
        yield client


def test_all_strategies_of_a_client_ask_the_scheduler_together_once_a_second(
    small: Client,
) -> None:
    with ExitStack() as opened:
        for _ in range(2):
            strategy = opened.enter_context(psnb.ParameterServerStrategy(small))
            psnb.ClusterCoordinator(strategy).schedule(int).fetch()
        handlers = small.cluster.scheduler.handlers  # type: ignore[union-attr]
        answer, messages = handlers[QUESTIONS], list[tuple[float, list[str]]]()

        def noting(questions: Any) -> Any:
            messages.append((time.monotonic(), [name for name, _ in questions]))
            return answer(questions)

        handlers[QUESTIONS] = noting
        wait_until(lambda: len(messages) == 3, "there are messages")
        between = messages[2][0] - messages[1][0]
        assert all(asked.count(WORKERS) == 2 for _, asked in messages[1:])
        assert between == pytest.approx(1.0, abs=0.5)


def test_workers_give_fewer_heartbeats_until_someone_looks(small: Client) -> None:
    with psnb.ParameterServerStrategy(small) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        core = coordinator_core(coordinator)
        coordinator.schedule(int).fetch()

        def beats() -> set[float]:
            return {
                session._beat
                for worker in small.cluster.workers.values()  # type: ignore[union-attr]
                if "psnb" in worker.plugins
                for session in worker.plugins["psnb"]._sessions
            }

        strategy._core.watch._wanted_seconds = -1.0  # nobody has looked for long enough
        wait_until(lambda: beats() == {core.membership._timeouts.rare_beat}, "all is quiet")
        strategy._core.watch._wanted_seconds = 1000.0
        coordinator.statistics()
        wait_until(lambda: beats() == {core.membership._timeouts.beat}, "someone looks")
        assert core.membership._timeouts.beat < core.membership._timeouts.rare_beat
