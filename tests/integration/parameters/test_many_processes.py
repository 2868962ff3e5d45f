"""Reads and writes of several processes at the same time: nothing is torn, nothing out of order.

Writers go on until the readers have seen enough different values; so reads and writes overlap
however fast the machine is. `Ledger` tells readers what they may see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

import psnb
from tests.conftest import DEADLINE

SEEN = 40
"""Different values that each reader waits for."""

THREADS = 3
"""Readers in each process: they share a connection, and one uses what it has read while others
read on."""

WRITERS = ["worker-0", "worker-1"]
READERS = ["worker-2", "worker-3"]

Look = Callable[[], Any]
"""Reads once, checks what it found, and returns it as something that can be told from others."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(True, id="shared memory"),
        pytest.param(
            False,
            id="network",
            marks=pytest.mark.second_tier("tests/client has threads that read over the network"),
        ),
    ],
)
def many(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Four workers and two servers, each a process, which use shared memory or do not."""
    with (
        dask.config.set({"psnb.shared-memory": request.param}),
        psnb.local_cluster(workers=4, servers=2) as client,
    ):
        yield client


class Ledger:
    """How often each writer has begun and ended to add 1 to each of some counters.

    In a file that all processes map: each writer has places of its own in it.
    """

    def __init__(self, folder: Path, counters: int) -> None:
        self._path, self._shape = folder / "ledger", (2, len(WRITERS), counters)
        np.zeros(self._shape, np.int64).tofile(self._path)

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what was begun and what has ended, each (writer, counter)."""
        begun, ended = np.memmap(self._path, np.int64, "r+", shape=self._shape)
        return begun, ended

    def watched(self, look: Callable[[], np.ndarray]) -> Look:
        """Return a look that checks the counters it finds against the ledger, and their order."""
        begun, ended = self()
        last = np.zeros(begun.shape[1], np.int64)

        def checked() -> bytes:
            low = ended.sum(axis=0)
            found = look().astype(np.int64)
            high = begun.sum(axis=0)
            assert (low <= found).all(), f"lost: {found} where {low} had been acknowledged"
            assert (found <= high).all(), f"{found} where no more than {high} had been begun"
            assert (last <= found).all(), f"{found} after {last}: it went backwards"
            last[...] = found
            return found.tobytes()

        return checked


def watch(make_look: Callable[[], Look]) -> None:
    """Look in each of some threads until it has seen `SEEN` different things."""
    end = time.monotonic() + DEADLINE

    def until_seen(look: Look) -> None:
        seen = set()
        while len(seen) < SEEN:
            assert time.monotonic() < end, f"only {len(seen)} different values: do writers write?"
            seen.add(look())

    with ThreadPoolExecutor(THREADS) as pool:
        for watching in [pool.submit(until_seen, make_look()) for _ in range(THREADS)]:
            watching.result()


@contextmanager
def writing(
    coordinator: psnb.ClusterCoordinator, done: Path, write: Callable[[int], None]
) -> Iterator[None]:
    """Call ``write(writer)`` again and again, each writer in a process, while the block runs."""

    def go_on(writer: int) -> None:
        while not done.exists():
            write(writer)

    remotes = [coordinator.schedule(go_on, (i,), worker=name) for i, name in enumerate(WRITERS)]
    try:
        yield
    finally:
        done.touch()
    for remote in remotes:
        remote.fetch(DEADLINE)


def watch_everywhere(coordinator: psnb.ClusterCoordinator, make_look: Callable[[], Look]) -> None:
    """Watch from two workers and from here, at the same time."""
    remotes = [coordinator.schedule(watch, (make_look,), worker=name) for name in READERS]
    watch(make_look)
    for remote in remotes:
        remote.fetch(DEADLINE)


def only(array: np.ndarray) -> Any:
    """Return the one number that is everywhere in an array."""
    assert array.min() == array.max(), f"torn: {np.unique(array)}"
    return array.flat[0]


def test_no_read_of_a_variable_is_half_old_half_new(many: Client, tmp_path: Path) -> None:
    with psnb.ParameterServerStrategy(many) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        v = strategy.variable(np.zeros((300, 1000), np.float32))

        def write(writer: int) -> None:
            value = np.float32(np.random.default_rng().random() + writer)
            v.assign(np.full(v.shape, value), immediate=True)

        def make_look() -> Look:
            return lambda: only(v.read())

        with writing(coordinator, tmp_path / "done", write):
            watch_everywhere(coordinator, make_look)


def test_a_variable_holds_what_was_acknowledged_and_at_most_what_was_begun(
    many: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(many) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        v, ledger = strategy.variable(np.zeros(20_000, np.int64)), Ledger(tmp_path, 1)
        ones = np.ones(20_000, np.int64)

        def write(writer: int) -> None:
            begun, ended = ledger()
            begun[writer] += 1
            v.assign_add(ones, immediate=True)
            ended[writer] += 1

        def make_look() -> Look:
            return ledger.watched(lambda: np.array([only(v.read())]))

        with writing(coordinator, tmp_path / "done", write):
            watch_everywhere(coordinator, make_look)
        begun, _ = ledger()
        assert only(v.read()) == begun.sum()


def test_rows_hold_what_was_acknowledged_and_at_most_what_was_begun(
    many: Client, tmp_path: Path
) -> None:
    ids = (np.arange(32, dtype=np.uint64) * np.uint64(2**59)) + np.uint64(1)
    with psnb.ParameterServerStrategy(many) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        e = strategy.embedding("e", 400, None, 0.0, psnb.SGD(1.0))
        ledger = Ledger(tmp_path, ids.size)

        def write(writer: int) -> None:
            begun, ended = ledger()
            rng = np.random.default_rng()
            which = rng.random(ids.size) < 0.5
            begun[writer] += which
            e.push(ids[which], np.full((which.sum(), 400), -1, np.float32), immediate=True)
            ended[writer] += which
            e.lookup(rng.integers(0, 2**63, 20))  # the table grows meanwhile

        def make_look() -> Look:
            return ledger.watched(lambda: np.array([only(row) for row in e.lookup(ids)]))

        with writing(coordinator, tmp_path / "done", write):
            watch_everywhere(coordinator, make_look)
        begun, _ = ledger()
        np.testing.assert_array_equal(e.lookup(ids)[:, 0], begun.sum(axis=0))


def test_what_one_server_holds_is_pulled_as_one_push_or_commit_left_it(
    many: Client, tmp_path: Path
) -> None:
    ids = np.arange(50)
    with psnb.ParameterServerStrategy(many, num_servers=1) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        v = strategy.variable(np.zeros(20_000, np.float32), optimizer=psnb.SGD(1.0))
        e = strategy.embedding("e", 400, 50, 0.0, psnb.SGD(1.0))
        by_v, by_e = np.full(20_000, -1, np.float32), np.full((50, 400), -1, np.float32)

        def step() -> None:  # its writes are held back, and committed at its end
            v.push(by_v)
            e.push(ids, by_e)

        def write(writer: int) -> None:
            psnb.push({v: by_v, e: (ids, by_e)}, immediate=True)

        def make_look() -> Look:
            def look() -> Any:
                found = psnb.pull({v: None, e: ids})
                return only(np.append(found[v], found[e]))

            return look

        for _ in range(100):
            coordinator.schedule(step, worker=WRITERS[0])
        with writing(coordinator, tmp_path / "done", write):
            watch_everywhere(coordinator, make_look)
        coordinator.join(DEADLINE)
