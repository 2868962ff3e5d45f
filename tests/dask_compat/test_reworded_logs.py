"""What is said in place of Dask's own log lines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from distributed.core import Status

from psnb._src.dask_compat.local import await_heartbeats, of_process

NANNY, WORKER = (logging.getLogger(f"distributed.{name}") for name in ("nanny", "worker"))


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = [(each, list(each.filters)) for each in (NANNY, WORKER)]
    yield
    for each, filters in before:
        each.filters = filters


def test_a_process_of_ours_is_named_by_its_role(caplog: pytest.LogCaptureFixture) -> None:
    with of_process("server-0"):
        NANNY.warning("Restarting worker (status=%s)", Status.running)
        NANNY.warning("Worker process still alive after 4.0 seconds, killing")
        NANNY.warning("something else")
    NANNY.warning("Restarting worker (status=%s)", "another cluster's")
    assert caplog.messages == [
        "the process of server-0 has ended: it is started again, empty",
        "the process of server-0 did not end in time, and was killed",
        "something else",
        "Restarting worker (status=another cluster's)",
    ]


@pytest.mark.parametrize("status", [Status.running, Status.closing])
def test_a_heartbeat_that_fails_is_logged_if_the_worker_goes_on(
    caplog: pytest.LogCaptureFixture, status: Status
) -> None:
    async def beat() -> None:
        worker = SimpleNamespace(name="worker-0", status=Status.running)
        await_heartbeats(worker, patience=0.0)  # type: ignore[arg-type]
        try:
            raise OSError("hung up")
        except OSError:
            WORKER.exception("Failed to communicate with scheduler during heartbeat.")
        WORKER.warning("something else")
        worker.status = status
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(0.0, later.set)
        await later.wait()

    asyncio.run(beat())
    said = ["worker-0 has no answer from the scheduler: hung up"]
    assert caplog.messages == ["something else", *(said if status is Status.running else [])]
