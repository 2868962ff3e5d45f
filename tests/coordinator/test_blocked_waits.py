"""All waits of the notebook end with an error where a server that does not respond holds them up.

Each wait is crossed with all ways of being held up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from psnb import as_completed
from psnb._src.coordinator.broadcast import Broadcasts
from psnb._src.coordinator.closures import completion, remote_value
from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue
from psnb._src.coordinator.datasets.epoch import map_splits, run_in_order
from psnb._src.coordinator.datasets.leased import WholeSplits
from psnb._src.coordinator.datasets.partitioned import _LoadInProgress
from psnb._src.coordinator.scheduling.work import Work
from psnb.errors import ServerUnresponsiveError
from tests.conftest import DEADLINE
from tests.coordinator.queues import (
    UNRESPONSIVE,
    ClosureQueue,
    call_with,
    in_thread,
    opened,
    put,
    put_one,
    succeed,
    wait_for_waiter,
)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (completion, remote_value):
        monkeypatch.setattr(module, "_LOOK_AGAIN", 0.02)
    monkeypatch.setattr("psnb._src.coordinator.broadcast._PATIENCE", 0.02)
    monkeypatch.setattr("psnb._src.coordinator.datasets.epoch._LOOK_AGAIN", 0.02)


class Core:
    """What datasets need of a coordinator; all that is scheduled is one remote value."""

    count = 1

    def __init__(self, queue: ClosureQueue, remote: RemoteValue) -> None:
        self.queue, self.remote = queue, remote
        self.membership = self.saving = self
        self.broadcasts = Broadcasts(self.schedule, lambda: {"a"}, queue)

    def schedule(self, *_: object) -> RemoteValue:
        return self.remote

    def progress(self, *_: object) -> Any:
        return contextlib.nullcontext()

    poll = look_again = staticmethod(bool)


def splits() -> WholeSplits:
    return WholeSplits(SimpleNamespace(), [lambda worker: True])  # type: ignore[arg-type]


async def awaited(remote: RemoteValue) -> object:
    return await remote


WAITS: dict[str, Callable[[ClosureQueue, RemoteValue], object]] = {
    "fetch": lambda queue, remote: remote.fetch(),
    "wait": lambda queue, remote: remote.wait(),
    "await": lambda queue, remote: asyncio.run(awaited(remote)),
    "as_completed": lambda queue, remote: next(as_completed([remote])),
    "as_completed in time": lambda queue, remote: next(as_completed([remote], DEADLINE)),
    "join": lambda queue, remote: queue.join(),
    "map_splits": lambda queue, remote: map_splits(
        Core(queue, remote),  # type: ignore[arg-type]
        abs,
        splits(),
        shown=False,
    ),
    "in memory": lambda queue, remote: _LoadInProgress(
        Core(queue, remote),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        0,
        1,
    ).wait(),
    "on each worker": lambda queue, remote: Core(queue, remote).broadcasts.run([("a", abs, ())]),
    "in order": lambda queue, remote: [
        each.fetch()
        for each in run_in_order(
            Core(queue, remote),  # type: ignore[arg-type]
            iter([1]),
            lambda _: remote,
        )
    ],
}


def in_doubt() -> tuple[ClosureQueue, RemoteValue]:
    """Return a closure whose worker was lost."""
    queue, (lost,) = opened()
    return queue, lost.remote


def dependent() -> tuple[ClosureQueue, RemoteValue]:
    """Return one that waits for the result of one that waits for the result of such a one."""
    queue, (lost,) = opened()
    middle = put_one(queue, 7, call=call_with(queue, lost.remote))
    return queue, put_one(queue, 8, call=call_with(queue, middle.remote)).remote


HELD_UP = {"in doubt": in_doubt, "waits for its result": dependent}


@pytest.mark.parametrize("held_up", HELD_UP.values(), ids=HELD_UP)
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_wait_for_what_is_held_up_raises_and_changes_nothing(
    wait: Callable[[ClosureQueue, RemoteValue], object],
    held_up: Callable[[], tuple[ClosureQueue, RemoteValue]],
) -> None:
    queue, remote = held_up()
    status = remote.status
    waiting = in_thread(lambda: wait(queue, remote))
    queue.block(UNRESPONSIVE)
    with pytest.raises(ServerUnresponsiveError, match="server-0 says nothing"):
        waiting.result(DEADLINE)
    assert remote.status is status


@pytest.mark.parametrize("wait", ["fetch", "wait", "await", "as_completed", "map_splits"])
def test_a_wait_goes_on_when_the_server_is_back(wait: str) -> None:
    queue, (lost,) = opened()
    queue.block(UNRESPONSIVE)
    queue.put_back([lost], 0, "its worker was lost")
    queue.take(1)
    waiting = in_thread(lambda: WAITS[wait](queue, lost.remote))
    succeed(queue, lost, (3, []))  # as `map_splits` takes it: and the partitions read
    waiting.result(DEADLINE)
    assert lost.remote.status is ClosureStatus.COMPLETED


def test_those_that_go_on_are_waited_for_beside_one_that_is_held_up() -> None:
    queue, (lost,) = opened()
    other: Work = put_one(queue, 7)
    queue.take(1)
    queue.block(UNRESPONSIVE)
    ending = as_completed([lost.remote, other.remote])
    first = in_thread(lambda: next(ending))
    waiting = in_thread(lambda: other.remote.wait())
    wait_for_waiter(queue)
    succeed(queue, other)
    assert first.result(DEADLINE) is other.remote
    assert waiting.result(DEADLINE)
    with pytest.raises(ServerUnresponsiveError):
        next(ending)


def test_what_waits_behind_a_round_that_is_held_up_raises() -> None:
    queue = ClosureQueue(10)
    (one,) = put(queue, 1)
    queue.scheduler.gate.open = lambda: False  # type: ignore[method-assign]
    queue.block(UNRESPONSIVE)
    with pytest.raises(ServerUnresponsiveError):
        one.remote.wait(DEADLINE)


def test_a_wait_that_takes_too_long_returns_as_before() -> None:
    _, (lost,) = opened()
    assert not lost.remote.wait(0.01)
    with pytest.raises(TimeoutError):
        next(as_completed([lost.remote], 0.05))
