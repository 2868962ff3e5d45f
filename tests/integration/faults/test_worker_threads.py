"""Workers that cannot start the threads of a session: there may be no memory for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import EventKind
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import Steps, address_of, kinds_of, wait_until_ready

NAMES = ("worker-0", "worker-1")
HEARTBEAT = 2.0


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two workers with two threads each, and a server."""
    with psnb.local_cluster(workers=2, servers=1, threads_per_worker=2) as client:
        yield client


@contextmanager
def starting(client: Client, name: str, start: Callable[[], None]) -> Iterator[None]:
    """Have the second of two closure threads of a worker be started otherwise."""

    def replace() -> None:
        real, numbers = threading.Thread.start, iter(range(1_000_000))

        def replaced(thread: threading.Thread) -> None:
            if thread.name.startswith("psnb-closure") and next(numbers) % 2:
                start()
            real(thread)

        replaced.real = real  # type: ignore[attr-defined]
        threading.Thread.start = replaced  # type: ignore[method-assign]

    def put_back() -> None:
        threading.Thread.start = threading.Thread.start.real  # type: ignore[attr-defined]

    address = address_of(client, name)
    client.run(replace, workers=[address])
    try:
        yield
    finally:
        client.run(put_back, workers=[address])


def joined(coordinator: psnb.ClusterCoordinator, name: str, times: int = 1) -> None:
    wait_until(
        lambda: kinds_of(coordinator, name).count(EventKind.WORKER_JOINED) == times,
        f"{name} has joined {times} times",
        2 * DEADLINE,
    )


def test_a_worker_whose_loop_waits_for_a_thread_is_lost_and_comes_back(
    client: Client, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"

    def never() -> None:  # as `Thread.start` where the thread has no memory to say that it runs
        while not go_on.exists():
            time.sleep(0.05)

    with psnb.ParameterServerStrategy(client) as first, psnb.ParameterServerStrategy(client) as two:
        counter = first.variable(np.int64(0))
        coordinator = psnb.ClusterCoordinator(first, heartbeat_timeout=HEARTBEAT)
        wait_until_ready(coordinator, *NAMES)
        steps = Steps(tmp_path)
        remote = coordinator.schedule(steps.counting(counter))
        (name,) = steps.begun()
        (other,) = set(NAMES) - {name}
        with starting(client, name, never):
            try:
                second = psnb.ClusterCoordinator(two, heartbeat_timeout=HEARTBEAT)
                begun = time.monotonic()
                assert steps.begun(2) == [name, other]
                assert time.monotonic() - begun < HEARTBEAT + DEADLINE / 3
                assert (
                    second.schedule(lambda: psnb.worker_context().worker_name).fetch(DEADLINE)
                    == other
                )
                steps.end()
                assert remote.fetch(DEADLINE) == other
            finally:
                go_on.touch()
            joined(coordinator, name, 2)
        assert int(counter.read()) == 1


def closure_threads() -> int:
    return sum(each.name.startswith("psnb-closure") for each in threading.enumerate())


def test_a_worker_without_memory_for_a_thread_says_so_and_keeps_none(client: Client) -> None:
    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    name = NAMES[0]
    with psnb.ParameterServerStrategy(client) as first, psnb.ParameterServerStrategy(client) as two:
        coordinator = psnb.ClusterCoordinator(first)
        wait_until_ready(coordinator, *NAMES)
        address = address_of(client, name)

        def threads() -> int:
            found: dict[str, int] = client.run(closure_threads, workers=[address])
            return found[address]

        wait_until(lambda: threads() == 2, "those of other sessions have ended")
        with starting(client, name, refuse):
            second = psnb.ClusterCoordinator(two)
            wait_until(
                lambda: kinds_of(second, name).count(EventKind.WORKER_UNREACHABLE) >= 2,
                "it was tried again",
            )
            event = next(each for each in second.events() if each.worker == name)
            assert event.message.endswith('RuntimeError("can\'t start new thread")')
            wait_until(lambda: threads() == 2, "no thread is left")
            at = coordinator.schedule(lambda: psnb.worker_context().worker_name, worker=name)
            assert at.fetch(DEADLINE) == name
        joined(second, name)
        assert threads() == 4
