"""Server processes start no thread once they serve: there may be no memory for one."""

from __future__ import annotations

import contextlib
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client

import psnb
from psnb import errors
from psnb._src.server.files.writing import TableWriting
from psnb._src.server.snapshots import CHUNK
from tests.conftest import DEADLINE, wait_until
from tests.integration.counting import wait_until_copied

LARGE = 9 * CHUNK // 8
"""Numbers of a variable that several threads copy when it changes while it is saved."""


def record() -> None:
    """Note the names of all threads that this process starts from now on."""
    names: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    noted.names = names  # type: ignore[attr-defined]
    threading.Thread.start = noted  # type: ignore[method-assign]


def recorded() -> list[str]:
    names: list[str] = threading.Thread.start.names  # type: ignore[attr-defined]
    return names


class Doors:
    """All ways to have servers do something, by name; each with two servers, and with replicas."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.strategy = psnb.ParameterServerStrategy(client, replicas=1)
        wait_until_copied(self.strategy)
        self.coordinator = psnb.ClusterCoordinator(self.strategy)
        self.large = self.strategy.variable(np.zeros(LARGE), "large")
        self.count = self.strategy.variable(np.zeros(4), "count")
        self.table = self.strategy.embedding(
            "t", 32, initializer=0.0, optimizer=psnb.SGD(1.0), dtype=np.float64
        )
        self.manager = psnb.CheckpointManager(self.coordinator, folder, full_every=3)
        self.ids = 0

    def push(self) -> None:
        self.ids += 4000
        ids = np.arange(self.ids - 4000, self.ids)
        self.table.push(ids, -np.ones((ids.size, 32)))

    def commit(self) -> None:
        count, large = self.count, self.large

        def step() -> None:
            count.assign_add(np.ones(4))
            large.push(np.zeros(LARGE)) if large.optimizer else large.assign_add(np.zeros(LARGE))

        self.coordinator.schedule(step)
        self.coordinator.join(DEADLINE)

    def save(self) -> None:
        self.coordinator.schedule(self.large.assign_add, (np.zeros(LARGE),))  # meanwhile
        self.manager.save()
        self.coordinator.join(DEADLINE)

    def move(self) -> None:
        """Have another strategy fill replicas, and empty a server of it."""
        with psnb.ParameterServerStrategy(self.client, shards=4) as other:
            v = other.variable(np.arange(4000.0))
            other.rebalance(drain=[other.server_addresses[0]])
            assert v.read()[-1] == 3999
        with psnb.ParameterServerStrategy(self.client, replicas=1) as other:
            wait_until_copied(other)

    def all(self) -> dict[str, Callable[[], object]]:
        return {
            "read": self.count.read,
            "read much": self.large.read,
            "write": lambda: self.count.assign_add(np.ones(4)),
            "push": self.push,
            "lookup": lambda: self.table.lookup(np.arange(4000), training=False),
            "commit": self.commit,
            "save": self.save,
            "save again": self.save,
            "restore": self.manager.restore,
            "new table": lambda: self.strategy.variable(np.zeros(5)),
            "transfer": self.move,
            "memory": self.strategy.memory,
        }


@pytest.fixture
def doors(pair: Client, tmp_path: Path) -> Iterator[Doors]:
    made = Doors(pair, tmp_path)
    yield made
    made.strategy.close()


@pytest.mark.second_tier("all doors of a cluster once, for threads that none of them starts")
def test_no_thread_is_started_whatever_servers_are_asked_for(doors: Doors) -> None:
    servers = list(doors.strategy.server_addresses)
    doors.client.run(record, workers=servers)
    for each in doors.all().values():
        each()
    assert doors.client.run(recorded, workers=servers) == {each: [] for each in servers}


def limit(room: int) -> None:
    """Limit this process's memory to so many bytes more than it has; none below 0."""
    used = psutil.Process().memory_info().vms
    most = resource.RLIM_INFINITY if room < 0 else used + room
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


@pytest.mark.second_tier("a minute: what is above has that no thread is started")
@pytest.mark.parametrize("room", [0, 1 << 20, 8 << 20])
def test_each_door_ends_without_memory_and_works_again_with_it(doors: Doors, room: int) -> None:
    server = doors.strategy.server_addresses[0]
    for each in doors.all().values():
        each()
    doors.client.run(limit, room, workers=[server])
    ended: dict[str, object] = {}

    def enter() -> None:
        for _ in range(2):
            for name, door in doors.all().items():
                try:
                    door()
                    ended[name] = None
                except (MemoryError, psnb.errors.PsnbError) as error:
                    ended[name] = error

    entering = threading.Thread(target=enter)
    entering.start()
    entering.join(6 * DEADLINE)
    assert list(ended) == list(doors.all())
    assert not any(isinstance(each, errors.InternalError) for each in ended.values()), ended
    doors.client.run(limit, -1, workers=[server])

    def goes_on() -> bool:
        with contextlib.suppress(errors.PsnbError):
            for each in doors.all().values():
                each()
            return True
        return False

    wait_until(goes_on, "all goes on with memory", 2 * DEADLINE)


def test_a_folder_that_does_not_answer_holds_up_no_new_tables(
    cluster: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, end, write = threading.Semaphore(0), threading.Event(), TableWriting._write

    def hangs(*arguments: Any) -> Any:
        began.release()
        assert end.wait(2 * DEADLINE)
        return write(*arguments)

    monkeypatch.setattr(TableWriting, "_write", hangs)
    with contextlib.ExitStack() as stack:
        saving = stack.enter_context(ThreadPoolExecutor(3))
        strategies = [stack.enter_context(psnb.ParameterServerStrategy(cluster)) for _ in range(3)]
        stack.callback(end.set)
        for number, strategy in enumerate(strategies):
            strategy.variable(np.zeros(4), "v")
            coordinator = psnb.ClusterCoordinator(strategy)
            manager = psnb.CheckpointManager(coordinator, tmp_path / str(number))
            saving.submit(manager.save)
        assert began.acquire(timeout=DEADLINE)
        with psnb.ParameterServerStrategy(cluster) as other, ThreadPoolExecutor(1) as making:
            made = making.submit(other.variable, np.zeros(5))
            try:
                assert made.result(DEADLINE).read()[0] == 0
            finally:
                end.set()
