"""Interrupts wherever they may strike in calls from the notebook, on a real cluster."""

from __future__ import annotations

import itertools
import threading
import time
import traceback

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.client import direct
from psnb._src.coordinator.coordinator import coordinator_core
from tests.conftest import DEADLINE, wait_until
from tests.interrupting import (
    Scene,
    assert_as_before,
    interrupt_its_sleep,
    interrupt_when,
    interrupted_everywhere,
    sleeping,
)


def thread_names() -> list[str]:
    return [each.name for each in threading.enumerate()]


def test_a_write_is_made_once_or_not_at_all(strategy: psnb.ParameterServerStrategy) -> None:
    v = strategy.variable(np.zeros(3))
    written = 0.0

    def make() -> Scene:
        def check(error: BaseException | None) -> None:
            nonlocal written
            # What was interrupted goes on in a thread of its own.
            wait_until(lambda: "psnb-aside" not in thread_names(), "the write has ended")
            (value,) = set(v.read().tolist())
            assert value - written in ([0.0, 1.0] if error is not None else [1.0])
            written = value

        return lambda: v.assign_add(np.ones(3)), check

    interrupted_everywhere(make)
    # None of the numbers of writes is left open, which servers would remember for ever.
    numbers = direct._numbers
    assert numbers._ended == numbers._next


def test_a_read_returns_what_is_there_after_an_interrupted_one(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    v = strategy.variable(np.arange(100_000.0))

    def check(error: BaseException | None) -> None:
        assert v.read()[-1] == 99_999

    interrupted_everywhere(lambda: (v.read, check))


def test_a_variable_is_made_or_its_name_is_free(strategy: psnb.ParameterServerStrategy) -> None:
    numbers = itertools.count()

    def make() -> Scene:
        name = f"v{next(numbers)}"

        def check(error: BaseException | None) -> None:
            made = strategy.parameters.get(name)
            assert made is not None or error is not None
            made = made or strategy.variable([1.0], name)
            assert made.read().tolist() == [1]

        return lambda: strategy.variable([1.0], name), check

    interrupted_everywhere(make)


def test_a_per_worker_value_that_was_never_returned_is_forgotten(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    live = coordinator_core(coordinator).resources._live

    def make() -> Scene:
        got: list[object] = []

        def check(error: BaseException | None) -> None:
            assert got or error is not None
            got.clear()
            if error is not None:
                traceback.clear_frames(error.__traceback__)  # they hold what was made
            assert not live

        return lambda: got.append(coordinator.create_per_worker_resource(int, ("7",))), check

    interrupted_everywhere(make)
    assert coordinator.create_per_worker_resource(int, ("7",)).fetch(DEADLINE) == [7, 7]


def test_per_worker_values_are_fetched_after_an_interrupt(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    value = coordinator.create_per_worker_resource(int, ("7",))

    def check(error: BaseException | None) -> None:
        queue = coordinator.statistics()
        assert (queue.queued, queue.failed) == (0, 0)

    interrupted_everywhere(lambda: (value.fetch, check))
    assert value.fetch(DEADLINE) == [7, 7]


@pytest.mark.parametrize(
    "every", [11, pytest.param(3, marks=pytest.mark.second_tier("more places in the same call"))]
)
def test_the_coordinator_is_closed_wholly_or_not_at_all(
    strategy: psnb.ParameterServerStrategy, every: int
) -> None:
    def make() -> Scene:
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.schedule(len, ("abc",)).fetch(DEADLINE)

        def check(error: BaseException | None) -> None:
            if coordinator.statistics().state == "closed":
                assert psnb.ClusterCoordinator(strategy) is not coordinator
                connections = coordinator_core(coordinator).membership._tasks
                wait_until(lambda: not connections, "the connections end")
            else:
                assert error is not None
                assert coordinator.schedule(len, ("abc",)).fetch(DEADLINE) == 3
            psnb.ClusterCoordinator(strategy).close()

        return coordinator.close, check

    interrupted_everywhere(make, every=every)


def test_pause_calls_back_what_was_sent_or_has_done_nothing(
    coordinator: psnb.ClusterCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    called_back: list[object] = []
    assert coordinator.schedule(len, ("abc",)).fetch(DEADLINE) == 3  # there is a worker
    scheduler = coordinator_core(coordinator).queue._scheduler
    monkeypatch.setattr(scheduler, "_call_back", called_back.append)  # each worker

    def make() -> Scene:
        called_back.clear()

        def check(error: BaseException | None) -> None:
            paused = coordinator.paused  # when all that was posted is done
            assert bool(called_back) == paused
            coordinator.resume()
            assert coordinator.schedule(len, ("abc",)).fetch(DEADLINE) == 3

        return coordinator.pause, check

    interrupted_everywhere(make)


def test_interrupted_rebalancing_goes_on(cluster: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with psnb.ParameterServerStrategy(cluster, 1, shards=4) as strategy:
        v = strategy.variable(np.ones(10))
        interrupt_its_sleep(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            strategy.rebalance()
        layout = strategy._core.servers
        wait_until(lambda: len(layout.layout.servers) == 2, "shards are on both servers")
        assert v.read().sum() == 10
        assert_as_before()


def test_the_stop_button_ends_every_wait_at_once(coordinator: psnb.ClusterCoordinator) -> None:
    release = coordinator.strategy.variable(0.0)

    def wait() -> None:
        pause = threading.Event()
        while not release.read():
            pause.wait(0.01)

    remote = coordinator.schedule(wait)
    waits = (coordinator.join, remote.fetch, remote.wait, coordinator.drain)
    for each in waits:
        before = time.monotonic()
        with interrupt_when(sleeping), pytest.raises(KeyboardInterrupt):
            each()
        assert time.monotonic() - before < 5
        assert_as_before()
    coordinator.resume()
    release.assign(1.0)
    coordinator.join(DEADLINE)
